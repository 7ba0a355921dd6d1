"""Jobs on real Ray nodes that are really lost; `conftest.py` has the nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ray.train import RunConfig, ScalingConfig

from spotray import ElasticTrainer, SpotConfig
from spotray.events import EpochAudited, Event, JobEnded, TrainingDone
from spotray.ledger.rundir import load_run
from tests.train.ray_jobs import elastic_loop

WORKERS = 3  # nodes of the lab, and workers of a job on all of them
STEPS_PER_EPOCH = 5  # of `elastic_loop`


def trainer_of(
    folder: Path,
    name: str,
    *,
    epochs: int,
    config: dict[str, Any] | None = None,
    loop: Callable[..., None] = elastic_loop,
    workers: tuple[int, int] = (1, WORKERS),
    recovery: str = "live",
    storage: str | None = None,
    **run_config: Any,
) -> ElasticTrainer:
    """A job that saves often and audits its samples; in ``folder``, unless ``storage`` is given."""
    return ElasticTrainer(
        loop,
        train_loop_config={"epochs": epochs, "step_s": 0.2, **(config or {})},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(name=name, storage_path=storage or str(folder), **run_config),
        spot=SpotConfig(snapshot_interval_s=0.5, checkpoint_interval_s=3.0, audit_samples=True),
        recovery=recovery,  # type: ignore[arg-type]
    )


def of(events: Iterable[Event], kind: type[Any]) -> list[Any]:
    return [e for e in events if isinstance(e, kind)]


def events_of(trainer: ElasticTrainer) -> list[Event]:
    return list(load_run(trainer.run_dir).events)


def tracked(trainer: ElasticTrainer, series: str) -> list[tuple[int, float]]:
    """Step and value of each point that TensorBoard shows of a series."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    shown = EventAccumulator(f"{trainer.run_dir}/tensorboard", size_guidance={"scalars": 0})
    shown.Reload()
    return [(point.step, point.value) for point in shown.Scalars(series)]


def undisturbed(world: Any, epochs: int) -> str:
    """The weights after the same loop in one process, without Ray."""
    from spotray.train.state import weights_sha256

    runs: list[Any] = []
    elastic_loop({"epochs": epochs}, runs)
    return weights_sha256(runs[0]._models)


def assert_trained(events: list[Event], *, epochs: int) -> TrainingDone:
    """The job did all of its steps, with each sample once an epoch; how it ended."""
    done: TrainingDone = of(events, TrainingDone)[-1]
    assert done.step == STEPS_PER_EPOCH * epochs
    audits = {e.epoch: e.exactly_once for e in of(events, EpochAudited)}
    assert audits == dict.fromkeys(range(epochs), True)
    assert of(events, JobEnded)[-1].status == "finished"
    return done
