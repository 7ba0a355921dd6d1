"""The systems that are compared, the driver of a sweep, and the nodes that are taken from it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks import bench
from benchmarks.recovery.measure import Line
from benchmarks.tuning import crowd, jobs, measure
from benchmarks.tuning.crowd import Crowd
from benchmarks.tuning.jobs import Size
from benchmarks.tuning.schedule import Taker
from spotray.events import JobEnded
from spotray.lab import processes
from spotray.lab.lab import Lab
from spotray.ledger.sweepdir import load_sweep

_START_S = 180.0  # for a sweep to get going
_STUCK_S = 180.0  # without a new step
_LIMIT_S = 1200.0  # of one sweep
_LOOK_S = 0.1  # nobody announces a step
_STEPS_NOW_S = 5.0  # a trial runs if it made a step since then
_COUNT_EVERY_S = 10.0  # processes and memory: it takes some 10 ms for each


@dataclass(frozen=True, kw_only=True)
class System:
    """A way to run the sweep."""

    name: str
    tuner: str = "spotray"  # or Ray's own
    spot: bool = True
    quick_health_check: bool = True  # of Ray; False: its own settings
    driver_dies: bool = False  # by SIGKILL, and another one restores the sweep


BASELINE = "on-demand"
SYSTEMS = {
    system.name: system
    for system in (
        System(name=BASELINE, spot=False),
        System(name="spot"),
        System(name="spot-driver", driver_dies=True),
        System(name="ray-tune", tuner="ray", quick_health_check=False),
        System(name="ray-tune-tuned", tuner="ray"),
    )
}


class SpotNodes:
    """The spot nodes of a lab."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    def oldest(self) -> str | None:
        ready = [n for n in self._lab.nodes() if n.spot and n.state == "ready"]
        staying = [n for n in ready if n.deadline_s is None]
        return min(staying, key=lambda n: n.started_at_s).name if staying else None

    def kill(self, name: str) -> None:
        self._lab.kill(name)

    def preempt(self, name: str, notice_s: float) -> None:
        self._lab.preempt(name, notice_s=notice_s)

    def set_capacity(self, nodes: int, notice_s: float) -> None:
        self._lab.set_capacity(nodes, notice_s=notice_s)


class Sweep:
    """One sweep in a process of its own, on a lab's cluster."""

    def __init__(self, system: System, scheduler: str, size: Size, folder: Path, lab: Lab) -> None:
        self._system, self._scheduler, self._size = system, scheduler, size
        self._folder, self._lab = folder, lab
        self._lines = measure.SweepLines(folder / "steps")
        self.runs: Mapping[str, Sequence[Line]] = {}
        self.began_s = self.killed_s = 0.0  # Unix seconds; 0: not yet
        self.crowd: Crowd | None = None  # when most trials ran
        self._counted_at = float("-inf")
        self.ended_before: set[int] = set()  # trials that had when the driver was killed
        self._driver = self._start()

    def watch(self, taker: Taker, *, kill_at: int | None) -> str:
        """Let the schedule happen until the driver ends, or does no more; how it ended.

        Args:
            taker: Of nodes.
            kill_at: The driver dies when so many steps were done; None: it does not.
        """
        began = new_step_at = time.monotonic()
        first_step_at, steps = 0.0, 0
        while (code := self._driver.poll()) is None:
            self.runs = self._lines.read()
            now = time.monotonic()
            done = sum(len({line.step for line in lines}) for lines in self.runs.values())
            if done > steps:
                first_step_at = first_step_at or now
                steps, new_step_at = done, now
            if steps:
                taker.look(step=steps, elapsed_s=now - first_step_at)
            self._count(now)
            if kill_at is not None and steps >= kill_at:
                self._kill_driver()
                kill_at = None
            if now - new_step_at > (_STUCK_S if steps else _START_S):
                return f"stuck: no new step after {steps} for {now - new_step_at:.0f} s"
            if now - began > _LIMIT_S:
                return f"not done after {_LIMIT_S:.0f} s"
            time.sleep(_LOOK_S)
        self.runs = self._lines.read()
        if code:
            return f"the driver failed with code {code}"
        return "ok"

    def end(self) -> None:
        """Leave nothing of the driver."""
        if self._driver.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self._driver.pid, signal.SIGSTOP)
                processes.kill(self._driver.pid)
                os.kill(self._driver.pid, signal.SIGKILL)
        self._driver.wait()

    def _count(self, now: float) -> None:
        """Look at the processes, if more trials run than when that was done last."""
        since_s = time.time() - _STEPS_NOW_S
        running = sum(bool(lines) and lines[-1].at_s > since_s for lines in self.runs.values())
        most = self.crowd.trials if self.crowd is not None else 0
        if running > most and now - self._counted_at > _COUNT_EVERY_S:
            self._counted_at = now
            self.crowd = crowd.now(running)

    def _kill_driver(self) -> None:
        self.ended_before = _ended_trials(self._folder)
        self.end()
        self.killed_s = time.time()
        bench.say(f"    the driver is killed; {len(self.ended_before)} trials had ended")
        self._driver = self._start("--restore")

    def _start(self, *more: str) -> subprocess.Popen[bytes]:
        self.began_s = self.began_s or time.time()
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "SPOTRAY_"))}
        size = tuple(map(str, (self._size.trials, self._size.epochs, self._size.workers)))
        drive = (sys.executable, "-m", "benchmarks.tuning.drive", self._system.tuner)
        with open(self._folder / "driver.log", "ab") as log:
            return subprocess.Popen(
                (*drive, str(self._folder), self._scheduler, *size, *more),
                env=kept | self._lab.environment() | {"PYTHONPATH": str(bench.ROOT)},
                cwd=bench.ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # the terminal's Ctrl-C is for the benchmark alone
            )


def _ended_trials(folder: Path) -> set[int]:
    """Trials whose training has come to its end, as their journals tell."""
    runs = load_sweep(folder / "storage" / jobs.NAME).runs
    return {
        measure.number_of(run)
        for run, events in runs.items()
        if any(isinstance(e, JobEnded) and e.status == "finished" for e in events)
    }
