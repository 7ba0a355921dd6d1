"""What can be wrong with a sweep before it begins, and how Tune is kept to what fits."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ray.train.v2.api.config import ScalingConfig  # ray.train's own, as type checkers see it
from ray.tune import RunConfig, TuneConfig
from ray.tune.result import DEFAULT_METRIC
from ray.tune.schedulers import HyperBandScheduler, PopulationBasedTraining
from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter, Searcher, create_searcher

from spotray.errors import ConfigError
from spotray.train.placing import needs_of
from spotray.train.ray_internals import started_here
from spotray.tune.nodes import possible_workers, present_workers
from spotray.tune.variants import Variants

log = logging.getLogger(__name__)

# What a preemption changes: time, and counts that begin anew when a trial is restored.
WALL_TIME = frozenset(
    {
        "time_total_s",
        "time_since_restore",
        "time_this_iter_s",
        "timestamp",
        "date",
        "iterations_since_restore",
        "timesteps_since_restore",
    }
)
_ALWAYS_THERE = frozenset({"training_iteration", "step", "epoch", "loss", DEFAULT_METRIC})


@dataclass
class Limit:
    """What keeps Tune from starting more trials than fit; picklable with its search."""

    search: Any  # has max_concurrent
    most: int  # trials, however many would fit


def check_kinds(
    train_loop: Any, param_space: Any, scaling_config: Any, tune_config: Any, run_config: Any
) -> None:
    """Whether a sweep's settings are of the kinds that they must be.

    Raises:
        ConfigError: one is not.
    """
    kinds: dict[str, tuple[Any, type[Any], str]] = {
        "param_space": (param_space, Mapping, "a dict of what each trial's config is drawn from"),
        "scaling_config": (scaling_config, ScalingConfig, "a ray.train.ScalingConfig"),
        "tune_config": (tune_config, TuneConfig, "a ray.tune.TuneConfig"),
        "run_config": (run_config, RunConfig, "a ray.tune.RunConfig"),
    }
    if not callable(train_loop):
        raise ConfigError(f"train_loop is {train_loop!r}: give the training function itself")
    for name, (value, kind, wanted) in kinds.items():
        if not isinstance(value, kind):
            given = type(value)
            raise ConfigError(f"{name} is a {given.__module__}.{given.__qualname__}: give {wanted}")


def check_config(tune_config: TuneConfig, run_config: RunConfig) -> None:
    """Whether a sweep's settings make sense here.

    Raises:
        ConfigError: they do not.
    """
    scheduler = tune_config.scheduler
    time_attr = getattr(scheduler, "_time_attr", None)
    if time_attr in WALL_TIME:
        raise ConfigError(
            f"{type(scheduler).__name__}(time_attr={time_attr!r}) judges a trial by time, which "
            'its preemptions spend too: give it time_attr="training_iteration" (which counts '
            'run.report) or "step", and its intervals in that'
        )
    if isinstance(run_config.stop, dict) and (timed := WALL_TIME & run_config.stop.keys()):
        raise ConfigError(
            f"RunConfig(stop={{{sorted(timed)[0]!r}: ...}}) ends a trial by time, which its "
            'preemptions spend too: give "training_iteration" or "step", or '
            "TuneConfig(time_budget_s=) for the sweep as a whole"
        )
    checkpoints = run_config.checkpoint_config
    if checkpoints is not None and checkpoints.num_to_keep is not None:
        raise ConfigError(
            f"CheckpointConfig(num_to_keep={checkpoints.num_to_keep}) would delete what another "
            "trial may be about to clone: leave it out; SpotConfig(keep_checkpoints=) says how "
            "many checkpoints of a trial stay"
        )
    most = tune_config.max_concurrent_trials
    if most is not None and most < 0:
        raise ConfigError(f"max_concurrent_trials must not be negative, got {most}")


def check_tracking(names: Sequence[str]) -> None:
    """Whether a sweep asks for trackers that only a single run tells.

    Raises:
        ConfigError: it does.
    """
    theirs = {"mlflow": "MLflowLoggerCallback", "wandb": "WandbLoggerCallback"}
    for name in names:
        if name in theirs:
            raise ConfigError(
                f"SpotConfig(tracking={name!r}) is for a single run; the trials of a sweep are "
                "told by Ray Tune's own callback: leave it out, and give "
                f"RunConfig(callbacks=[ray.air.integrations.{name}.{theirs[name]}(...)])"
            )


def check_cluster(scaling_config: ScalingConfig) -> None:
    """Whether a trial's workers will ever fit.

    Raises:
        ConfigError: they will not.
    """
    needs = needs_of(scaling_config)
    workers = scaling_config.num_workers
    check_room(
        needs,
        labels=scaling_config.label_selector,
        least=workers if isinstance(workers, int) else workers[0],
        present=present_workers(needs, scaling_config.label_selector),
        possible=possible_workers(needs),
        may_grow=not started_here(),
    )


def check_room(
    needs: Mapping[str, float],
    *,
    labels: Any = None,
    least: int,
    present: int,
    possible: int | None,
    may_grow: bool,
) -> None:
    """Whether so many workers will ever be there at once; where nobody knows, they are waited for.

    Args:
        needs: Of one worker, by Ray's names.
        labels: That its node must have.
        least: Workers of a trial.
        present: Workers that the nodes hold that are there.
        possible: Workers that the autoscaler may bring it to; None: nobody told.
        may_grow: Somebody may start nodes by hand.

    Raises:
        ConfigError: they will not.
    """
    most = max(present, possible or 0)
    if most >= least:
        return
    each = ", ".join(f"{amount:g} {name}" for name, amount in sorted(needs.items()))
    where = f" on nodes with the labels {labels}" if labels else ""
    what = f"each trial needs at least {least} workers of {each} each{where}"
    if possible is None and may_grow:
        log.warning("%s, and the nodes that are there hold %d: waiting for more", what, present)
        return
    raise ConfigError(
        f"{what}, and the cluster can never hold more than {most}: lower num_workers or "
        "resources_per_worker, or allow more nodes"
    )


def metrics_needed(tune_config: TuneConfig) -> dict[str, str]:
    """Metrics that every report must have, and who wants them."""
    scheduler, search = tune_config.scheduler, tune_config.search_alg
    wanted: list[tuple[Any, str]] = [(tune_config.metric, "TuneConfig(metric=)")]
    if scheduler is not None and not isinstance(scheduler, str):
        name = type(scheduler).__name__
        wanted += [(scheduler.metric, name), (getattr(scheduler, "_time_attr", None), name)]
    if search is not None and not isinstance(search, str):
        of_search = getattr(search, "metric", None)
        each = of_search if isinstance(of_search, list) else [of_search]
        wanted += [(metric, type(search).__name__) for metric in each]
    needed: dict[str, str] = {}
    for metric, who in wanted:
        if metric is not None and metric not in _ALWAYS_THERE:
            needed.setdefault(metric, who)
    return needed


def pauses(scheduler: Any) -> bool:
    """Whether a scheduler lets trials wait so that others get their turn."""
    if isinstance(scheduler, str):
        return scheduler.startswith(("pbt", "pb2", "hyperband", "bohb"))
    return isinstance(scheduler, PopulationBasedTraining | HyperBandScheduler)


def limited(tune_config: TuneConfig, *, most: int) -> tuple[Any, Limit | None]:
    """The search, such that no more trials run than fit, and where that number is set.

    Args:
        tune_config: The user's.
        most: Trials at most.
    """
    search: Any = tune_config.search_alg
    if isinstance(search, str):
        search = create_searcher(search)
    if search is None:
        search = Variants()
    elif type(search) is BasicVariantGenerator:  # another one's ways are its user's own
        search = Variants.of(search)
    if pauses(tune_config.scheduler):
        # A trial that waits is alive for a searcher: the limit is in the processes' resources.
        if tune_config.max_concurrent_trials and _is_bare(search):
            search = ConcurrencyLimiter(search, max_concurrent=most)
        return search, None
    if isinstance(search, BasicVariantGenerator):
        if search.max_concurrent:
            return search, None
        search.max_concurrent = most
    elif _is_bare(search):
        search = ConcurrencyLimiter(search, max_concurrent=most)
    else:
        return search, None
    return search, Limit(search, most)


def _is_bare(search: Any) -> bool:
    """Whether a searcher leaves it to others how many trials run."""
    return isinstance(search, Searcher) and not isinstance(search, ConcurrencyLimiter)
