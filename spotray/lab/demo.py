"""The demo: one training run that loses its machines, one that does not, and their comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spotray.errors import ConfigError
from spotray.events import EpochAudited, Reported, TrainingDone
from spotray.lab.demo_job import train_digits
from spotray.lab.digits import DigitsPaths, write_digits
from spotray.lab.lab import Lab
from spotray.lab.scenario import Scenario, ScriptedEvent
from spotray.ledger.cost import cost
from spotray.ledger.goodput import goodput
from spotray.ledger.recovery import RecoverySummary, summarize_recoveries
from spotray.ledger.rundir import RunEvents, load_run

if TYPE_CHECKING:
    from spotray.train.config import SpotConfig

WORKERS = 4
_SEED = 0


@dataclass(frozen=True, kw_only=True)
class DemoSize:
    """How long the demo's job is, and when which loss comes (steps are optimizer steps)."""

    epochs: int
    width: int = 64
    depth: int = 4
    taken_at: int  # one node with notice, not replaced
    given_back_at: int
    killed_at: int  # one node without notice
    noticed_at: int  # the first worker's node with notice, replaced in time
    all_killed_at: int  # all workers in one instant


FULL = DemoSize(
    epochs=28, taken_at=50, given_back_at=90, killed_at=270, noticed_at=400, all_killed_at=550
)
QUICK = DemoSize(
    epochs=16, taken_at=20, given_back_at=40, killed_at=130, noticed_at=200, all_killed_at=310
)


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """What the demo shows; `broken` names the promises that did not hold.

    Costs are those of the nodes' real seconds at the scenario's prices.
    """

    preemptions: Mapping[str, int]  # noticed, silent
    steps: int
    steps_lost_noticed: int
    steps_lost_silent_max: int  # of a loss that left a worker alive
    steps_lost_all_max: int  # of the loss of all workers at once
    samples_exactly_once: bool  # in every epoch of the disturbed run, counted
    same_weights: bool
    weights_sha256: Mapping[str, str]  # disturbed, undisturbed
    accuracy: Mapping[str, float | None]
    recovery_s: Mapping[str, float | None]  # median, max
    recoveries: tuple[Mapping[str, Any], ...]
    goodput_frac: float | None
    cost_usd: float | None  # the disturbed run, as it was
    on_demand_cost_usd: float | None  # the same nodes for the same time, on demand
    saved_frac: float | None
    undisturbed_on_demand_cost_usd: float | None  # the undisturbed run, on demand
    wall_s: Mapping[str, float]  # disturbed, undisturbed
    broken: tuple[str, ...]


@dataclass(frozen=True)
class Stage:
    """Where the demo is: for a live view."""

    title: str
    run_dir: str  # "" before there is a job
    nodes: Callable[[], Any]  # the lab's nodes now


def run_demo(folder: Path, *, size: DemoSize, show: Callable[[Stage], None]) -> DemoResult:
    """Train twice in a lab, with and without losses.

    Args:
        folder: For data, checkpoints and journals; made if missing, must be empty of runs.
        size: Of the job.
        show: Called at the start of each stage.

    Raises:
        ConfigError: the folder holds an earlier demo, or scikit-learn is missing.
        LabError: the lab cannot run on this machine.
        ray.train.TrainingFailedError: a training run failed.
    """
    folder = folder.absolute()
    if (folder / "disturbed").exists():
        raise ConfigError(f"{folder} holds an earlier demo: remove it, or give another --run-dir")
    data = write_digits(folder / "data", seed=_SEED)
    scenario = Scenario(workers=WORKERS, provisioning_s=2.0, events=_script(size))
    journal = folder / "cluster"
    show(Stage(f"starting a Ray cluster: one on-demand head, {WORKERS} spot workers", "", tuple))
    with Lab(scenario=scenario, journal=journal) as lab:
        lab.wait_for_workers(WORKERS)
        lab.connect()
        show(Stage("training while nodes are taken away", str(folder / "disturbed"), lab.nodes))
        play = lab.play()
        try:
            _train("disturbed", folder, data, size, str(journal))
        finally:
            play.stop()
        lab.set_capacity(WORKERS + 1)
        lab.wait_for_workers(WORKERS)
        show(Stage("training once more, undisturbed", str(folder / "undisturbed"), lab.nodes))
        _train("undisturbed", folder, data, size, str(journal))
    return _compare(load_run(str(folder / "disturbed")), load_run(str(folder / "undisturbed")))


def _script(size: DemoSize) -> tuple[ScriptedEvent, ...]:
    event = ScriptedEvent
    return (
        event(at_step=size.taken_at, action="capacity", count=WORKERS - 1, notice_s=10),
        # One more than wanted, so that a node under notice can be replaced before it goes.
        event(at_step=size.given_back_at, action="capacity", count=WORKERS + 1),
        event(at_step=size.killed_at, action="kill", rank=1),
        event(at_step=size.noticed_at, action="notice", rank=0, notice_s=25),
        event(at_step=size.all_killed_at, action="kill_all"),
    )


def _train(
    name: str, folder: Path, data: DigitsPaths, size: DemoSize, cluster_journal: str
) -> None:
    from ray.train import RunConfig
    from ray.train.v2.api.config import ScalingConfig  # ray.train's own, as type checkers see it

    from spotray.train.trainer import ElasticTrainer

    ElasticTrainer(
        train_digits,
        train_loop_config={
            "train": str(data.train),
            "test": str(data.test),
            "epochs": size.epochs,
            "width": size.width,
            "depth": size.depth,
            "lr": 2e-3,
            "seed": _SEED,
        },
        scaling_config=ScalingConfig(num_workers=(1, WORKERS)),
        run_config=RunConfig(name=name, storage_path=str(folder)),
        spot=_spot(cluster_journal),
    ).fit()


def _spot(cluster_journal: str) -> SpotConfig:
    from spotray.train.config import SpotConfig

    # Minutes stand for hours here, so checkpoints come every few seconds.
    return SpotConfig(
        snapshot_interval_s=2.0,
        checkpoint_interval_s=8.0,
        audit_samples=True,
        cluster_journal=cluster_journal,
    )


def _compare(disturbed: RunEvents, undisturbed: RunEvents) -> DemoResult:
    done = {"disturbed": _done(disturbed), "undisturbed": _done(undisturbed)}
    weights = {name: one.weights_sha256 for name, one in done.items()}
    accuracy = {"disturbed": _accuracy(disturbed), "undisturbed": _accuracy(undisturbed)}
    recovery = summarize_recoveries(disturbed.events)
    money, alone = cost(disturbed.events), cost(undisturbed.events)
    once = _exactly_once(disturbed)
    same = len(set(weights.values())) == 1 and bool(weights["disturbed"])
    return DemoResult(
        preemptions={
            "noticed": recovery.preemptions_noticed,
            "silent": recovery.preemptions_silent,
        },
        steps=done["disturbed"].step,
        steps_lost_noticed=recovery.steps_lost_noticed,
        steps_lost_silent_max=recovery.steps_lost_silent_max,
        steps_lost_all_max=recovery.steps_lost_all_max,
        samples_exactly_once=once,
        same_weights=same,
        weights_sha256=weights,
        accuracy=accuracy,
        recovery_s={"median": recovery.recovery_s_median, "max": recovery.recovery_s_max},
        recoveries=tuple(_rows(recovery)),
        goodput_frac=goodput(disturbed.events).goodput_frac,
        cost_usd=money.total.cost_usd,
        on_demand_cost_usd=money.total.on_demand_cost_usd,
        saved_frac=money.saved_frac,
        undisturbed_on_demand_cost_usd=alone.total.on_demand_cost_usd,
        wall_s={
            "disturbed": goodput(disturbed.events).wall_s,
            "undisturbed": goodput(undisturbed.events).wall_s,
        },
        broken=tuple(_broken(recovery, same=same, once=once)),
    )


def _broken(recovery: RecoverySummary, *, same: bool, once: bool) -> list[str]:
    broken = []
    if not same:
        broken.append("the weights differ")
    if not once:
        broken.append("samples were not used exactly once")
    if recovery.steps_lost_noticed:
        broken.append(f"{recovery.steps_lost_noticed} steps were lost in spite of a notice")
    alone = any(r.kind == "silent" and not r.all_lost for r in recovery.recoveries)
    together = any(r.all_lost for r in recovery.recoveries)
    if recovery.preemptions_noticed < 2 or not alone or not together:
        broken.append("fewer nodes were lost than the script says")
    return broken


def _rows(recovery: RecoverySummary) -> list[dict[str, Any]]:
    return [
        {
            "kind": one.kind,
            "mode": one.mode,
            "world_size": [one.world_before, one.world_after],
            "seconds": one.seconds,
            "parts": one.parts,
            "pause_s": one.pause_s,
            "steps_lost": one.steps_lost,
            "source": one.source,
            "all_lost": one.all_lost,
        }
        for one in recovery.recoveries
    ]


def _done(run: RunEvents) -> TrainingDone:
    done = [e for e in run.events if isinstance(e, TrainingDone)]
    if not done:
        raise ConfigError(f"{run.run_dir} tells of no finished training")
    return done[-1]


def _accuracy(run: RunEvents) -> float | None:
    """Of the last report."""
    reports = [e for e in run.events if isinstance(e, Reported)]
    return float(reports[-1].metrics["accuracy"]) if reports else None


def _exactly_once(run: RunEvents) -> bool:
    """Whether every epoch was counted, and its last count is right.

    An epoch whose last steps were done again is counted again.
    """
    audits = {e.epoch: e.exactly_once for e in run.events if isinstance(e, EpochAudited)}
    return bool(audits) and set(audits) == set(range(max(audits) + 1)) and all(audits.values())
