"""Sweeps on real Ray nodes that are really lost."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ray import tune
from ray.train import ScalingConfig
from ray.tune import Callback, RunConfig, TuneConfig
from ray.tune.search.sample import Domain

from spotray import SpotConfig, SpotTuner
from spotray.controller.applications import jobs_seen, running_jobs
from spotray.controller.progress import JobSeen
from spotray.events import CheckpointCommitted, Event, Restored
from spotray.lab.lab import Lab
from spotray.ledger.rundir import load_run
from tests.train.workers import WorkerPool
from tests.tune.sweep_jobs import sweep_loop, undisturbed

ROOT = Path(__file__).parents[2]
WORKERS = 4  # nodes of the lab
RATES = [1e-3, 2e-3, 3e-3, 5e-3, 1e-2, 2e-2, 3e-2, 5e-2]

_REFERENCES: dict[tuple[float, int], str] = {}  # of all tests: learning rate and epochs


def references(rates: Sequence[float], epochs: int) -> dict[float, str]:
    """The weights at each learning rate after the same loop in one process."""
    missing = [lr for lr in rates if (lr, epochs) not in _REFERENCES]
    if missing:
        pool = WorkerPool(1)
        try:
            for lr in missing:
                _REFERENCES[lr, epochs] = str(pool.run(1, undisturbed, lr, epochs)[0])
        finally:
            pool.close()
    return {lr: _REFERENCES[lr, epochs] for lr in rates}


def tuner_of(
    storage: Path | str,
    name: str,
    *,
    lrs: Sequence[float] | Domain,
    epochs: int,
    loop: Callable[..., None] = sweep_loop,
    workers: tuple[int, int] = (1, WORKERS),
    config: Mapping[str, Any] | None = None,
    metric: str = "val",
    step_s: float = 0.2,
    spot: SpotConfig | None = None,
    callbacks: Sequence[Callback] = (),
    run_config: Mapping[str, Any] | None = None,
    **tune_config: Any,
) -> SpotTuner:
    """A sweep over learning rates."""
    return SpotTuner(
        loop,
        param_space={
            "lr": lrs if isinstance(lrs, Domain) else tune.grid_search(list(lrs)),
            "epochs": epochs,
            "step_s": step_s,
            **(config or {}),
        },
        tune_config=TuneConfig(metric=metric, mode="min", **tune_config),
        run_config=RunConfig(
            name=name, storage_path=str(storage), callbacks=list(callbacks), **(run_config or {})
        ),
        scaling_config=ScalingConfig(num_workers=workers),
        spot=spot or SpotConfig(snapshot_interval_s=0.5, checkpoint_interval_s=5.0),
    )


def uses_torch(name: str) -> list[bool]:
    """Of each process of this machine that Ray calls ``name``: whether torch is loaded in it."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if folder.joinpath("cmdline").read_bytes().startswith(f"ray::{name}".encode()):
                found.append("libtorch" in folder.joinpath("maps").read_text())
        except (FileNotFoundError, ProcessLookupError):  # it ended just now
            continue
    return found


class Disturber(Callback):
    """Takes nodes when the sweep has so many reports: report -> ``kill`` or ``notice``.

    Args:
        lab: Whose nodes.
        script: What to do at which report.
    """

    def __init__(self, lab: Lab, script: Mapping[int, str]) -> None:
        self._lab, self._script = lab, dict(script)
        self._reports = 0
        self._threads: list[threading.Thread] = []
        self.done: list[tuple[int, str, str]] = []
        self.errors: list[Exception] = []
        self.trials_with_torch: list[bool] = []

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune keeps its callbacks; the lab is this process's alone

    def on_trial_result(
        self, iteration: int, trials: Any, trial: Any, result: Any, **_: Any
    ) -> None:
        self._reports += 1
        if self._reports == 1:
            self.trials_with_torch = uses_torch("sweep_loop")
        if (action := self._script.get(self._reports)) is not None:
            thread = threading.Thread(target=self._act, args=(self._reports, action))
            thread.start()
            self._threads.append(thread)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()
        assert not self.errors, self.errors

    def _act(self, report: int, action: str) -> None:
        try:
            there = [n for n in self._lab.nodes() if n.state == "ready" and n.spot]
            there = [n for n in there if n.deadline_s is None]
            oldest = min(there, key=lambda node: node.started_at_s)
            if action == "kill":
                self._lab.kill(oldest.name)
            else:
                self._lab.preempt(oldest.name, notice_s=6.0)
            self.done.append((report, action, oldest.name))
        except Exception as exc:  # told to the test when it joins
            self.errors.append(exc)


class Looker(Callback):
    """Looks at the sweep's jobs as the cluster's controller does, now and then at a report."""

    def __init__(self) -> None:
        self.looks: list[tuple[float, list[JobSeen]]] = []  # Unix seconds, what was there

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune keeps its callbacks

    def on_trial_result(self, *_: Any, **__: Any) -> None:
        now_s = time.time()
        if not self.looks or now_s - self.looks[-1][0] > 0.5:
            self.looks.append((now_s, jobs_seen(running_jobs())))


def run_events(tuner: SpotTuner, run: str) -> list[Event]:
    return list(load_run(f"{tuner.sweep_dir}/trials/{run}").events)


def runs(tuner: SpotTuner) -> list[str]:
    return sorted(path.name for path in Path(tuner.sweep_dir).glob("trials/*"))


def results_of(path: str) -> list[dict[str, Any]]:
    """All results that Tune's loggers saw of a trial."""
    lines = Path(path, "result.json").read_text().splitlines()
    return [json.loads(line) for line in lines]


def fell_back(events: Iterable[Event]) -> bool:
    """Whether a run that had a checkpoint began anew."""
    has_checkpoint = False
    for event in events:
        has_checkpoint |= isinstance(event, CheckpointCommitted)
        if isinstance(event, Restored) and event.step == 0 and has_checkpoint:
            return True
    return False


def of(events: Iterable[Event], kind: type[Any]) -> list[Any]:
    return [e for e in events if isinstance(e, kind)]
