"""Twenty random things happen to one training job; the weights are those of a job left alone.

Each seed has a Ray cluster of real raylets of its own, and a job with live recovery.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import bench
from benchmarks.events import jobs
from benchmarks.events.draw import COUNT, KINDS, Blow, draw
from benchmarks.events.storm import NoVictim, Storm
from spotray.errors import LabError
from spotray.events import EpochAudited, Event, StepsDone, WorkerGroupStarted
from spotray.lab import processes
from spotray.lab.lab import Lab
from spotray.lab.scenario import Scenario
from spotray.ledger.recovery import summarize_recoveries
from spotray.ledger.rundir import load_run

PROVISIONING_S = 1.0
NOTICE_S = 5.0  # the shortest
START_S = 180.0  # for a job to get going
STUCK_S = 90.0  # without a new step
LIMIT_S = 600.0  # of one job
_LOOK_S = 0.02  # nobody announces a step


@dataclass(frozen=True, kw_only=True)
class Size:
    """How long a job is, and how much happens to it."""

    steps: int
    blows: int

    def draw(self, seed: int) -> list[Blow]:
        return draw(seed, count=self.blows, first_step=8, last_step=self.steps * 9 // 10)


FULL = Size(steps=200, blows=COUNT)
QUICK = Size(steps=60, blows=6)


class LabSite:
    """The nodes of a lab, each with one worker; the lab's market replaces what it takes."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self._lab, self._folder = lab, folder

    def step(self) -> int:
        return self._lab.step()

    def living(self) -> list[str]:
        return [n.name for n in self._lab.nodes() if n.spot and n.state == "ready"]

    def kill_process(self, name: str) -> None:
        for file in (self._folder / "processes" / name).glob("*"):
            with suppress(ProcessLookupError):
                os.kill(int(file.name), signal.SIGKILL)
                file.unlink()
                return
            file.unlink()
        raise NoVictim(f"no worker runs on {name}")

    def kill_nodes(self, names: Sequence[str]) -> None:
        there = {node.name for node in self._lab.nodes()}
        if not (lost := [name for name in names if name in there]):
            raise NoVictim(f"{' '.join(names)} went before")
        if set(lost) == {node.name for node in self._lab.nodes() if node.spot}:
            self._lab.kill_all()
            return
        with self._has_node(), ThreadPoolExecutor(max_workers=len(lost)) as pool:
            list(pool.map(self._lab.kill, lost))

    def freeze(self, name: str) -> None:
        with self._has_node():
            self._lab.freeze(name)

    def thaw(self, name: str) -> None:
        with self._has_node():
            self._lab.thaw(name)

    def notice(self, name: str, seconds: float) -> None:
        with self._has_node():
            self._lab.preempt(name, notice_s=seconds)

    def cancel(self, name: str) -> None:
        with self._has_node():
            self._lab.cancel_notice(name)

    def want(self, workers: int, replaced_after_s: float) -> None:
        """The market replaces after a time of its own; no node that is there is taken."""
        del replaced_after_s
        there = [node for node in self._lab.nodes() if node.spot]
        passing = sum(n.deadline_s is not None or n.state == "frozen" for n in there)
        self._lab.set_capacity(max(len(there), workers + passing))

    @contextmanager
    def _has_node(self) -> Iterator[None]:
        try:
            yield
        except LabError as exc:
            raise NoVictim(str(exc)) from exc


def go_through(blows: Sequence[Blow], size: Size, *, reference: str, logs: Path) -> dict[str, Any]:
    """Run one job through ``blows``; the row of it. ``logs`` takes those of a job that failed."""
    with tempfile.TemporaryDirectory(prefix="spotray-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        scenario = Scenario(workers=jobs.WORKERS, provisioning_s=PROVISIONING_S)
        with Lab(scenario=scenario, journal=folder / "cluster") as lab:
            lab.wait_for_workers(jobs.WORKERS)
            site = LabSite(lab, folder)
            storm = Storm(site, blows, notice_s=NOTICE_S)
            driver = _start(folder, size.steps, lab.environment())
            began = time.monotonic()
            try:
                outcome = _watch(driver, storm)
            finally:
                _end(driver)
            wall_s = time.monotonic() - began
            memory_left = sum(len(list(n.shm_dir.glob("*"))) for n in lab.nodes() if n.spot)
        left = len(processes.descendants(os.getpid()))
        events = list(load_run(folder / "storage" / jobs.JOB).events)
        weights = (folder / "weights").read_text() if (folder / "weights").exists() else ""
        row = {
            "outcome": outcome,
            "happened": " ".join(storm.happened),
            "blows": len(storm.happened),
            "steps": size.steps,
            **_told(events, size),
            "wall_s": round(wall_s, 1),
            "weights_equal": weights == reference,
            "processes_left": left,
            "files_left": memory_left,
        }
        if not is_good(row):
            logs.mkdir(parents=True, exist_ok=True)
            (logs / "storm.log").write_text("\n".join(storm.log) + "\n")
            with suppress(FileNotFoundError):
                shutil.copy(folder / "driver.log", logs)
                shutil.copytree(folder / "storage" / jobs.JOB, logs / "job", dirs_exist_ok=True)
        return row


def _start(folder: Path, steps: int, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "SPOTRAY_"))}
    more = {"PYTHONPATH": str(bench.ROOT), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    with open(folder / "driver.log", "wb") as log:
        return subprocess.Popen(
            (sys.executable, "-m", "benchmarks.events.jobs", str(folder), str(steps)),
            env=kept | environment | more | {"RAY_DEDUP_LOGS": "0"},
            cwd=bench.ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # the terminal's Ctrl-C is for the benchmark alone
        )


def _watch(driver: subprocess.Popen[bytes], storm: Storm) -> str:
    """Let the storm rage until the driver ends, or does no more; how it ended."""
    began = new_step_at = time.monotonic()
    step = 0
    while driver.poll() is None:
        storm.look()
        now = time.monotonic()
        if storm.step > step:
            step, new_step_at = storm.step, now
        if now - new_step_at > (STUCK_S if step else START_S):
            return f"stuck: no step after {step} for {now - new_step_at:.0f} s"
        if now - began > LIMIT_S:
            return f"not done after {LIMIT_S:.0f} s"
        time.sleep(_LOOK_S)
    storm.say(f"the driver ended with code {driver.returncode}")
    left = storm.left
    storm.end()
    if driver.returncode:
        return f"the driver failed with code {driver.returncode}"
    return f"the job ended before {left} blow(s)" if left else "ok"


def _end(driver: subprocess.Popen[bytes]) -> None:
    if driver.poll() is None:
        with suppress(ProcessLookupError):
            os.kill(driver.pid, signal.SIGSTOP)
            processes.kill(driver.pid)
            os.kill(driver.pid, signal.SIGKILL)
    driver.wait()


def _told(events: Sequence[Event], size: Size) -> dict[str, Any]:
    """What the journal says of a job."""
    summary = summarize_recoveries(events)
    ends = sorted(at for e in events if isinstance(e, StepsDone) for at in e.ended_at_s)
    pauses = [later - earlier for earlier, later in itertools.pairwise(ends)]
    audits = [e for e in events if isinstance(e, EpochAudited)]
    epochs = set(range(size.steps // jobs.STEPS_PER_EPOCH))
    restarts = [r for r in summary.recoveries if r.mode != "live"]
    return {
        "generations": sum(isinstance(e, WorkerGroupStarted) for e in events),
        "from_memory_of_peers": len(summary.recoveries) - len(restarts),
        "steps_redone": sum(r.steps_lost or 0 for r in summary.recoveries),
        "longest_pause_s": round(max(pauses, default=0.0), 2),
        # Where nobody is left, the next workers begin from what was saved: that is no giving way.
        "fell_back": sum(one.to == "restart" for one in summary.fallbacks),
        "samples_once": {e.epoch for e in audits} == epochs and all(e.exactly_once for e in audits),
    }


def is_good(row: bench.Row) -> bool:
    """Whether all that is promised held."""
    return bool(
        row["outcome"] == "ok"
        and row["weights_equal"]
        and row["samples_once"]
        and not row["processes_left"]
        and not row["files_left"]
        and not row["fell_back"]
    )


def reference_weights(steps: int) -> str:
    """The digest of the weights after the same steps in one process, without Ray."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            (sys.executable, "-m", "benchmarks.events.jobs", folder, str(steps), "--alone"),
            env=os.environ | {"PYTHONPATH": str(bench.ROOT), "OMP_NUM_THREADS": "1"},
            cwd=bench.ROOT,
            check=True,
        )
        return (Path(folder) / "weights").read_text()


_SHOWN = (
    *("seed", "blows", "generations", "steps_redone", "longest_pause_s", "wall_s"),
    *("weights_equal", "samples_once", "processes_left", "files_left", "outcome"),
)


def summary(rows: Sequence[bench.Row]) -> str:
    """A line per seed, and what happened in all."""
    kinds = Counter(one.split(":")[1] for row in rows for one in str(row["happened"]).split())
    told = ", ".join(f"{kind} {kinds[kind]}" for kind in KINDS if kinds[kind])
    stormy = [row for row in rows if row["seed"] != "none"]
    good = sum(map(is_good, stormy))
    lines = [[str(row[column]) for column in _SHOWN] for row in rows]
    return f"{bench.table(_SHOWN, lines)}\n{good} of {len(stormy)} seeds good; happened: {told}"


def picture(path: Path, rows: Sequence[bench.Row]) -> bool:
    """Wall time of each job."""
    bars = [
        bench.Bar(
            group="undisturbed" if row["seed"] == "none" else "with events",
            label=f"seed {row['seed']}",
            parts=(("", float(row["wall_s"])),),
            note="" if is_good(row) else str(row["outcome"]),
        )
        for row in rows
    ]
    title = "One job, from its driver's start to its end"
    return bench.bars(path, bars, title=title, unit="seconds", log_scale=False)


def main(argv: Sequence[str] | None = None) -> int:
    parser = bench.parser(__file__, __doc__)
    parser.add_argument(
        "--seeds", type=bench.at_least(1), metavar="N", help="default: 10, quick: 1"
    )
    parser.add_argument("--first", type=bench.at_least(0), default=0, metavar="SEED")
    arguments = parser.parse_args(argv)
    bench.end_like_ctrl_c()
    processes.adopt_orphans()
    size = QUICK if arguments.quick else FULL
    seeds = range(
        arguments.first, arguments.first + (arguments.seeds or (1 if arguments.quick else 10))
    )
    rows: list[dict[str, Any]] = []
    reference = reference_weights(size.steps)
    bench.say(f"{size.steps} steps in one process: weights {reference[:12]}")
    try:
        for seed in ("none", *seeds):
            blows = [] if seed == "none" else size.draw(int(seed))
            row = go_through(
                blows, size, reference=reference, logs=arguments.json.parent / f"seed-{seed}"
            )
            rows.append({"seed": seed} | row)
            bench.write_rows(arguments.json, rows)
            told = ", ".join(f"{k} {v}" for k, v in row.items() if k != "happened")
            bench.say(f"seed {seed}: {told}")
    except KeyboardInterrupt:
        bench.say("interrupted: all nodes are ended; the rows so far are kept")
        return 130
    print(summary(rows))
    print(bench.machine())
    drawn = arguments.json.with_suffix(".svg")
    print(f"rows: {arguments.json}" + (f", picture: {drawn}" if picture(drawn, rows) else ""))
    return 0 if all(map(is_good, rows)) else 1


if __name__ == "__main__":
    sys.exit(main())
