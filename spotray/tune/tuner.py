"""`SpotTuner`: Ray Tune's Tuner for machines that may be taken away."""

from __future__ import annotations

import contextlib
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow.fs as pafs
import ray
import ray.tune
import ray.util
from ray.train.v2.api.config import ScalingConfig  # ray.train's own, as type checkers see it
from ray.tune import RunConfig, TuneConfig, Tuner
from ray.tune.schedulers import PopulationBasedTraining, create_scheduler

from spotray.cluster.job_actors import sweep_actor_name, sweep_of
from spotray.environment import environment
from spotray.errors import ConfigError, SpotrayError
from spotray.ledger.journal import read_journal
from spotray.ledger.sweep import SweepSummary, summarize_sweep
from spotray.ledger.sweepdir import load_sweep
from spotray.storage import Store, split
from spotray.train.config import SpotConfig
from spotray.train.lease import Lease
from spotray.train.placing import needs_of
from spotray.train.ray_internals import analysis_of
from spotray.train.trainer import check_workers, worker_range
from spotray.tune.about import (
    FOLDER,
    about_of_loop,
    class_name,
    describe,
    has_state,
    is_sweep,
    loop_name,
    settings_of,
)
from spotray.tune.budget import check_prices
from spotray.tune.callback import SweepCallback
from spotray.tune.checks import (
    check_cluster,
    check_config,
    check_kinds,
    check_tracking,
    limited,
    metrics_needed,
    pauses,
)
from spotray.tune.grid import SpotResultGrid
from spotray.tune.lives import JobPlan
from spotray.tune.nodes import node_ups
from spotray.tune.place import beside_driver, trials_at_once
from spotray.tune.progress import JournalStatus, Progress, quiet_ray
from spotray.tune.running import RunningSweep
from spotray.tune.runs import TRIALS
from spotray.tune.sweep import NODES, SweepPlan
from spotray.tune.trial import trainable
from spotray.tune.turns import Turns

log = logging.getLogger(__name__)

MOST_TRIALS = 32  # at once: each takes some 200 MB of the driver's node
_THREADS, _MOST_THREADS = 32, 768
_STATE_EVERY_S = "2"  # Tune writes down how far it is; what is newer, runs tell again


class SpotTuner:
    """Tunes on the nodes that are there, through preemptions, with the same answer.

    ::

        tuner = spotray.SpotTuner(
            train_loop,
            param_space={"lr": ray.tune.loguniform(1e-4, 1e-1)},
            tune_config=ray.tune.TuneConfig(metric="accuracy", mode="max", num_samples=8),
            run_config=ray.tune.RunConfig(name="vit", storage_path="s3://bucket/sweeps"),
            scaling_config=ray.train.ScalingConfig(num_workers=(1, 4)),
        )
        best = tuner.fit().get_best_result()

    A trial's training loop is that of an `ElasticTrainer`, with a `spotray.Run` in it. Its
    workers come and go without a change of its result, so trials share what nodes there
    are. Losses of nodes never count as failures of a trial.

    After each ``run.report`` the workers wait for the scheduler's decision, at the next
    point between two steps. ``training_iteration`` counts the reports; each result has
    ``step`` and ``epoch`` too.

    Args:
        train_loop: The training function, with or without a config argument.
        param_space: What Ray Tune chooses each trial's config from.
        tune_config: Ray Tune's. A scheduler must judge trials by their steps: one whose
            ``time_attr`` is wall time is refused, since preemptions spend that too. Without
            ``max_concurrent_trials``, as many trials run as the nodes hold.
        run_config: Ray Tune's; ``storage_path`` must be reachable from all nodes.
            ``FailureConfig(max_failures=)`` counts bugs of the training loop alone.
        scaling_config: Ray Train's, of each trial; ``num_workers=(min, max)`` makes trials
            elastic.
        spot: How trials guard themselves; the defaults work.

    Raises:
        ConfigError: a setting makes no sense here.
    """

    def __init__(
        self,
        train_loop: Callable[..., Any],
        *,
        param_space: dict[str, Any] | None = None,
        tune_config: TuneConfig | None = None,
        run_config: RunConfig | None = None,
        scaling_config: ScalingConfig | None = None,
        spot: SpotConfig | None = None,
    ) -> None:
        param_space = {} if param_space is None else param_space
        run_config = run_config or RunConfig()
        self.train_loop = train_loop
        self.tune_config = tune_config or TuneConfig()
        self.scaling_config = scaling_config or ScalingConfig()
        self.spot = spot or SpotConfig()
        check_tracking(self.spot.trackers)
        check_kinds(train_loop, param_space, self.scaling_config, self.tune_config, run_config)
        self.param_space = dict(param_space)
        self.run_config = _named(run_config)
        self._needs = metrics_needed(self.tune_config)
        self._pauses = pauses(self.tune_config.scheduler)
        self._actor_name = sweep_actor_name(str(self.run_config.name))
        self._restore: dict[str, Any] | None = None  # what Tuner.restore is given
        check_workers(self.scaling_config)
        check_config(self.tune_config, self.run_config)

    @classmethod
    def restore(
        cls,
        path: str | os.PathLike[str],
        train_loop: Callable[..., Any],
        *,
        resume_unfinished: bool = True,
        resume_errored: bool = False,
        restart_errored: bool = False,
        param_space: dict[str, Any] | None = None,
        scaling_config: ScalingConfig | None = None,
        spot: SpotConfig | None = None,
        storage_filesystem: pafs.FileSystem | None = None,
    ) -> SpotTuner:
        """Go on with a sweep whose driver ended, by `fit`.

        Trials that ended stay ended; the others go on from their newest saved state, and the
        searcher's state is kept.

        Args:
            path: The sweep's folder, ``storage_path/name``.
            train_loop: The same training function.
            resume_unfinished: As `ray.tune.Tuner.restore` has it; so the next three.
            resume_errored: Trials in error go on too.
            restart_errored: They begin anew.
            param_space: The same, for objects in it that a new cluster does not know.
            scaling_config: Instead of the sweep's own.
            spot: Instead of the sweep's own.
            storage_filesystem: If ``path`` is a path inside of it.

        Raises:
            ConfigError: the folder is no sweep's, or the sweep's training loop is another.
        """
        folder = os.fspath(path).rstrip("/")
        home = Store.at(folder, filesystem=storage_filesystem)
        about = about_of_loop(home, train_loop)
        settings = settings_of(home)
        parent, last = split(folder)
        tuner = cls(
            train_loop,
            param_space=param_space,
            tune_config=settings["tune_config"],
            run_config=RunConfig(
                name=last, storage_path=parent, storage_filesystem=storage_filesystem
            ),
            scaling_config=scaling_config or settings["scaling_config"],
            spot=spot or settings["spot"],
        )
        tuner._actor_name = sweep_actor_name(about["name"])  # as Tune has it in its own state
        tuner._needs, tuner._pauses = settings["needs"], settings["pauses"]
        tuner._restore = {
            "resume_unfinished": resume_unfinished,
            "resume_errored": resume_errored,
            "restart_errored": restart_errored,
            "param_space": param_space,
            "storage_filesystem": storage_filesystem,
        }
        return tuner

    @classmethod
    def can_restore(
        cls,
        path: str | os.PathLike[str],
        *,
        storage_filesystem: pafs.FileSystem | None = None,
    ) -> bool:
        """Whether `restore` will find a sweep in a folder."""
        home = Store.at(os.fspath(path), filesystem=storage_filesystem)
        return is_sweep(home) and has_state(home)

    @property
    def sweep_dir(self) -> str:
        """The sweep's folder, for ``spotray status``, ``spotray cost`` and `restore`."""
        return self._home().url

    def fit(self) -> SpotResultGrid:
        """Tune to the end.

        Returns:
            Ray Tune's grid of results; ``result.checkpoint`` is the trial's last durable
            checkpoint, readable by `torch.distributed.checkpoint`, and
            ``result.metrics["spot"]`` what it cost and went through. A trial whose training
            loop failed is in it, with its error.

        Raises:
            ConfigError: the storage cannot be written or holds a sweep of this name, or no
                trial can run: its workers do not fit into the cluster, the metric is not
                reported, the searcher cannot take the search space, live recovery cannot
                serve the loop.
        """
        home = self._home()
        own = home.child(FOLDER)
        own.check_writable()
        if self._restore is None and home.list(TRIALS):
            cure = f"go on with it by SpotTuner.restore({home.url!r}, train_loop)"
            if not has_state(home):
                cure = "it ended before there was anything to go on with: remove the folder"
            raise ConfigError(f"{home.url} holds a sweep: {cure}, or give this one another name")
        if ray.util.client.ray.is_connected():
            raise ConfigError("SpotTuner runs on the cluster: submit it as a job, not by ray://")
        if not ray.is_initialized():
            ray.init()
        check_cluster(self.scaling_config)
        self._check_budget()
        lease = Lease(own, str(self.run_config.name))
        lease.take()
        try:
            self._describe(own)
            return self._tune(home)
        finally:
            lease.give_back()

    # -- inside ------------------------------------------------------------------------

    def _home(self) -> Store:
        filesystem = self.run_config.storage_filesystem
        path = str(self.run_config.storage_path)
        return Store.at(path, filesystem=filesystem).child(str(self.run_config.name))

    def _check_budget(self) -> None:
        max_cost_usd = self.spot.max_cost_usd
        if max_cost_usd is None:
            return
        if self.run_config.storage_filesystem is not None:
            raise ConfigError(
                "max_cost_usd needs a storage_path that is a URL: with a storage_filesystem nobody "
                "else can read what the sweep cost"
            )
        now_s = time.time()
        journal = self._cluster_journal()
        facts = read_journal(Store.at(journal)) if journal else node_ups(now_s)
        check_prices(facts, max_cost_usd=max_cost_usd, now_s=now_s)

    def _cluster_journal(self) -> str:
        """URL of the facts about nodes; empty if the cluster has none."""
        return self.spot.cluster_journal or os.environ.get("SPOTRAY_JOURNAL", "")

    def _describe(self, own: Store) -> None:
        """Write down what the sweep is."""
        least, most = worker_range(self.scaling_config)
        about = {
            "name": sweep_of(self._actor_name),
            "metric": self.tune_config.metric,
            "mode": self.tune_config.mode,
            "loop": loop_name(self.train_loop),
            "num_samples": self.tune_config.num_samples,
            "min_workers": least,
            "max_workers": most,
        }
        settings = {
            "scaling_config": self.scaling_config,
            "spot": self.spot,
            # Search and scheduling are Tune's to restore; what they want is ours to know.
            "tune_config": replace(self.tune_config, search_alg=None, scheduler=None),
            "needs": self._needs,
            "pauses": self._pauses,
        }
        describe(own, about, settings if self._restore is None else None)

    def _tune(self, home: Store) -> SpotResultGrid:
        sweep = self._start_sweep(home)
        status, why = "failed", ""
        try:
            with self._tune_as_here():
                analysis = analysis_of(self._tuner(home).fit())
            ended = all(trial.is_finished() for trial in analysis.trials)
            status = "finished" if ended else "interrupted"
        except KeyboardInterrupt:
            status = "interrupted"
            raise
        except Exception as exc:
            fatal = sweep.fatal()
            why = fatal or str(exc)[-300:]
            if fatal:
                raise ConfigError(fatal) from exc
            if isinstance(exc, ValueError | TypeError | AssertionError):
                line = " ".join(str(exc).split())
                raise ConfigError(f"Ray Tune does not take this sweep: {line}") from exc
            raise
        finally:
            sweep.end(status, why)
        return SpotResultGrid(analysis, _summary(home))

    def _tuner(self, home: Store) -> Tuner:
        bundle, selector = beside_driver(
            self.sweep_dir, at_most=self._trials_at_once() if self._pauses else None
        )
        cls = trainable(
            class_name(self.train_loop),
            sweep_actor=self._actor_name,
            bundle=bundle,
            selector=selector,
        )
        progress = self._progress(home)
        if self._restore is not None:
            tuner = Tuner.restore(home.url, cls, **self._restore)
            # What was pickled with the sweep shows nothing.
            assert tuner._local_tuner is not None, "Ray Client was refused"
            run_config = tuner._local_tuner.get_run_config()
            others = [one for one in run_config.callbacks or [] if not isinstance(one, Progress)]
            run_config.callbacks = [*others, *progress]
            return tuner
        search, limit = limited(self.tune_config, most=self._most_trials())
        scheduler: Any = self.tune_config.scheduler
        if isinstance(scheduler, str):
            scheduler = create_scheduler(scheduler)
        callback = SweepCallback(self._actor_name, search=search, limit=limit, scheduler=scheduler)
        if isinstance(scheduler, PopulationBasedTraining) and not scheduler._synch:
            scheduler = Turns(scheduler, at_once=self._trials_at_once(), waits=callback.waits)
        return Tuner(
            cls,
            param_space=self.param_space,
            tune_config=replace(
                self.tune_config,
                search_alg=search,
                scheduler=scheduler,
                reuse_actors=True,
                max_concurrent_trials=None,  # in the searcher, or in the processes' resources
            ),
            run_config=replace(
                self.run_config,
                callbacks=[callback, *(self.run_config.callbacks or []), *progress],
                verbose=0,
            ),
        )

    def _progress(self, home: Store) -> list[Progress]:
        """What shows the sweep while it goes on; nothing if the user wants silence."""
        if self.run_config.verbose == 0:
            return []
        status = JournalStatus(home.url) if self.run_config.storage_filesystem is None else None
        return [
            Progress(
                status or (lambda: None),
                metric=self.tune_config.metric,
                mode=self.tune_config.mode,
            )
        ]

    @contextlib.contextmanager
    def _tune_as_here(self) -> Iterator[None]:
        """What Tune takes from the environment alone."""
        every_s = os.environ.get("TUNE_GLOBAL_CHECKPOINT_S", _STATE_EVERY_S)
        settings = {"TUNE_GLOBAL_CHECKPOINT_S": every_s}
        if "TUNE_RESULT_BUFFER_LENGTH" in os.environ:
            settings["TUNE_RESULT_BUFFER_LENGTH"] = "1"  # a decision comes before a further step
        with environment(**settings), quiet_ray():
            yield

    def _most_trials(self) -> int:
        return self.tune_config.max_concurrent_trials or MOST_TRIALS

    def _trials_at_once(self) -> int:
        return trials_at_once(
            needs_of(self.scaling_config),
            least=worker_range(self.scaling_config)[0],
            most=self._most_trials(),
        )

    def _start_sweep(self, home: Store) -> RunningSweep:
        least, most = worker_range(self.scaling_config)
        journal = self._cluster_journal()
        plan = SweepPlan(
            name=str(self.run_config.name),
            home=home,
            job=JobPlan(
                loop=self.train_loop,
                spot=self.spot,
                least=least,
                most=most,
                needs=needs_of(self.scaling_config),
                cluster_journal=journal or home.child(*NODES).url,
            ),
            scaling_config=self.scaling_config,
            needs=self._needs,
            writes_nodes=not journal,
        )
        # Workers that meet or ask hold a thread each, and so does each trial.
        threads = _THREADS + 2 * self._most_trials() * (1 + most)
        return RunningSweep.start(
            plan, actor_name=self._actor_name, threads=min(_MOST_THREADS, threads)
        )


def _named(config: RunConfig) -> RunConfig:
    name = config.name or f"sweep-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}"
    return replace(config, name=name)


def _summary(home: Store) -> SweepSummary | None:
    """The sweep's ledger; None if it cannot be read, for the results are there all the same."""
    try:
        return summarize_sweep(load_sweep(home))
    except SpotrayError as exc:
        log.warning("what the sweep cost is unknown: %s", exc)
        return None
