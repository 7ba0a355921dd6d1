"""What the safety costs while nothing happens: step time against plain Ray Train.

All sides train the same model on the same machine, in turns of equal steps. A side's
seconds are compared with plain Ray Train's of the same round.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks import bench
from benchmarks.overhead.sides import DRIVERS, ON_RAY
from benchmarks.overhead.turns import Broken, Conductor
from spotray.lab import processes
from spotray.lab.lab import Lab

BASELINE = "ray-train"
QUICK = ("torch", BASELINE, "spotray-live")
_GATHER_S = 240.0  # for all jobs to get to their first step
_WARM_STEPS = 8
_SLOWEST = 20.0  # times as long as expected: then a turn is given up
_TAIL_CHARS = 300


def rows_of(turns: Sequence[bench.Row], workers: int) -> list[dict[str, Any]]:
    """One row for each side, from the turns of all rounds that have the baseline."""
    rows = []
    base = {t["round"]: t["seconds"] / t["steps"] for t in turns if t["side"] == BASELINE}
    for (side,), mine in bench.by_key(turns, "side").items():
        step = bench.spread((s for turn in mine for s in turn["steps_s"]), inner=True)
        ratio = bench.spread(
            (t["seconds"] / t["steps"] / base[t["round"]] for t in mine if t["round"] in base),
            inner=True,
        )
        assert step is not None, "a turn has at least one step"
        seconds = sum(turn["seconds"] for turn in mine)
        steps = sum(turn["steps"] for turn in mine)
        rows.append(
            {
                "system": side,
                "workers": workers,
                "rounds": len(mine),
                "steps": steps,
                "seconds": round(seconds, 3),
                "step_ms": round(1000 * step.median, 2),
                "step_ms_low": round(1000 * step.low, 2),
                "step_ms_high": round(1000 * step.high, 2),
                "mean_step_ms": round(1000 * seconds / steps, 2),
                "ratio": round(ratio.median, 4) if ratio else None,
                "ratio_low": round(ratio.low, 4) if ratio else None,
                "ratio_high": round(ratio.high, 4) if ratio else None,
            }
        )
    return rows


def summary(rows: Sequence[bench.Row]) -> str:
    """One line for each side: medians, with the first and third quartile."""
    lines = [
        [
            row["system"],
            f"{row['step_ms']:.1f} ({row['step_ms_low']:.1f}-{row['step_ms_high']:.1f})",
            f"{row['mean_step_ms']:.1f}",
            f"{row['seconds']:.1f}",
            "-"
            if row["ratio"] is None
            else f"{row['ratio']:.3f} ({row['ratio_low']:.3f}-{row['ratio_high']:.3f})",
        ]
        for row in rows
    ]
    steps = max((row["steps"] for row in rows), default=0)
    return bench.table(["system", "step ms", "mean ms", f"{steps} steps s", "ratio"], lines)


@contextmanager
def jobs(sides: Sequence[str], workers: int, batch: int, logs: Path) -> Iterator[Conductor]:
    """All sides' jobs, up to their first step; all of it ends with the block.

    ``logs`` takes those of all jobs if one of them breaks.
    """
    started: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}

    def why_ended() -> str:
        for name, (process, log) in started.items():
            if (code := process.poll()) is not None:
                lines = log.read_text(errors="replace").strip().splitlines() or ["no output"]
                return f"{name} ended with code {code}: {lines[-1].strip()[:_TAIL_CHARS]}"
        return ""

    def end_jobs() -> None:
        for process, _ in started.values():
            if process.poll() is None:
                processes.kill(process.pid)
                process.kill()
            process.wait()

    with ExitStack() as undo:
        folder = Path(tempfile.mkdtemp(prefix="spotray-bench-overhead-"))
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        undo.callback(bench.end_descendants)
        environment = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        on_ray = [side for side in sides if side in ON_RAY]
        if on_ray:
            lab = undo.enter_context(
                Lab(workers=workers, cpus_per_worker=len(on_ray), quick_health_check=False)
            )
            environment |= lab.environment()
        if "torchft" in sides:
            environment["TORCHFT_LIGHTHOUSE"] = undo.enter_context(_lighthouse(workers))
            environment["RUST_LOG"] = "error"
        undo.callback(end_jobs)
        conductor = Conductor(sides, workers, why_ended=why_ended)
        undo.callback(conductor.close)
        for side in sides:
            config = {
                "side": side,
                "conductor": conductor.port,
                "workers": workers,
                "batch": batch,
                "folder": str(folder / "storage"),
                "port": _free_port(),
            }
            for rank in range(1 if side in ON_RAY else workers):
                name = f"{side}-{rank}"
                log = folder / f"{name}.log"
                started[name] = (_start(config | {"rank": rank}, log, environment), log)
        try:
            conductor.gather(_GATHER_S)
            yield conductor
        except Broken:
            logs.mkdir(parents=True, exist_ok=True)
            for _, log in started.values():
                shutil.copy(log, logs)
            raise


@contextmanager
def _lighthouse(workers: int) -> Iterator[str]:
    os.environ["RUST_LOG"] = "error"  # before it is loaded: it logs several lines a step
    from torchft.coordination import LighthouseServer

    server: Any = LighthouseServer(bind="[::]:0", min_replicas=workers)
    try:
        # Its address names this machine, which may have no name that others can look up.
        yield f"http://127.0.0.1:{server.address().rpartition(':')[2]}"
    finally:
        server.shutdown()


def _start(
    config: Mapping[str, Any], log: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "SPOTRAY_"))}
    with open(log, "ab") as file:
        return subprocess.Popen(
            (sys.executable, "-m", "benchmarks.overhead.drive", json.dumps(config)),
            env=kept | dict(environment),
            cwd=bench.ROOT,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # the terminal's Ctrl-C is for the benchmark alone
        )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def take_turns(
    conductor: Conductor, sides: Sequence[str], *, rounds: int, turn_s: float
) -> Iterator[dict[str, Any]]:
    """Turns of as many steps as plain Ray Train, or else the first side, does in ``turn_s``."""
    pace = BASELINE if BASELINE in sides else sides[0]
    for side in sides:
        warm = conductor.turn(side, _WARM_STEPS, timeout_s=_GATHER_S)
        if side == pace:
            step_s = min(warm.steps_s)
    steps = max(2, round(turn_s / step_s))
    bench.say(f"a step of {pace} takes {1000 * step_s:.0f} ms: {steps} steps a turn")
    for number in range(rounds):
        # There and back: a machine that gets slower and slower favours nobody.
        order = sides if number % 2 == 0 else tuple(reversed(sides))
        for side in order:
            turn = conductor.turn(side, steps, timeout_s=_SLOWEST * turn_s)
            yield {
                "round": number,
                "side": side,
                "steps": steps,
                "seconds": turn.seconds,
                "steps_s": turn.steps_s,
            }
            each = 1000 * turn.seconds / steps
            bench.say(f"round {number + 1}/{rounds}: {side}, {each:.1f} ms a step")


def missing(side: str) -> str:
    """What this machine lacks for a side; empty if nothing."""
    if side == "torchft" and importlib.util.find_spec("torchft") is None:
        return "torchft is not installed: pip install 'spotray[bench]'"
    return ""


def main(argv: Sequence[str] | None = None) -> int:
    parser = bench.parser(__file__, __doc__)
    parser.add_argument(
        "--systems", type=bench.names(DRIVERS), metavar="A,B", help=f"of {', '.join(DRIVERS)}"
    )
    parser.add_argument("--workers", type=bench.at_least(1), default=2, metavar="N")
    parser.add_argument(
        "--batch", type=bench.at_least(1), default=8, metavar="N", help="samples a worker and step"
    )
    parser.add_argument("--rounds", type=bench.at_least(1), metavar="N", help="default: 8, quick 3")
    parser.add_argument(
        "--turn", type=bench.at_least(1), metavar="S", help="seconds; default: 30, quick 10"
    )
    arguments = parser.parse_args(argv)
    bench.end_like_ctrl_c()
    processes.adopt_orphans()
    wanted = arguments.systems or (QUICK if arguments.quick else tuple(DRIVERS))
    for side in wanted:
        if why := missing(side):
            bench.say(f"{side} is left out: {why}")
    sides = tuple(side for side in wanted if not missing(side))
    rounds = arguments.rounds or (3 if arguments.quick else 8)
    turn_s = arguments.turn or (10 if arguments.quick else 30)
    turns: list[dict[str, Any]] = []
    code = 0
    try:
        bench.say(f"starting {len(sides)} jobs of {arguments.workers} workers")
        logs = arguments.json.parent / "logs"
        with jobs(sides, arguments.workers, arguments.batch, logs) as conductor:
            for turn in take_turns(conductor, sides, rounds=rounds, turn_s=turn_s):
                turns.append(turn)
                bench.write_rows(arguments.json, rows_of(turns, arguments.workers))
    except KeyboardInterrupt:
        bench.say("interrupted: all jobs are ended; the rows so far are kept")
        code = 130
    except Broken as exc:
        bench.say(f"{exc}; logs: {logs}")
        code = 1
    rows = rows_of(turns, arguments.workers)
    print(summary(rows))
    print(bench.machine())
    drawn = arguments.json.with_suffix(".svg")
    print(f"rows: {arguments.json}" + (f", picture: {drawn}" if picture(drawn, rows) else ""))
    return code


def picture(path: Path, rows: Sequence[bench.Row]) -> bool:
    """Mean step time, everything that a side does beside included."""
    bars = [
        bench.Bar(group="undisturbed", label=row["system"], parts=(("", row["mean_step_ms"]),))
        for row in rows
    ]
    return bench.bars(path, bars, title="A step", unit="milliseconds", log_scale=False)


if __name__ == "__main__":
    sys.exit(main())
