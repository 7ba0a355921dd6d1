"""What it costs training to save its state, by ways to save it and by the state's size.

All ways take turns within one run, in the same process, on the same model. Each is
compared with the blocks of steps around it in which nothing is saved.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import statistics
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
import ray.train
from ray.train.torch import TorchTrainer

from benchmarks import bench
from benchmarks.checkpoint.loop import NONE, OURS, SHAPES, SYSTEMS, measure

SHM = Path("/dev/shm")
ROUNDS, QUICK_ROUNDS = 6, 2


def rows_of(blocks: Sequence[bench.Row], systems: Sequence[str]) -> list[dict[str, Any]]:
    """One row for each size and system, from rounds that have all the systems."""
    rows = []
    for (size_mb,), of_size in bench.by_key(blocks, "size_mb").items():
        rounds = [
            of_round
            for of_round in bench.by_key(of_size, "round").values()
            if {block["system"] for block in of_round} == set(systems)
        ]
        for system in systems if rounds else ():
            rows.append(_row(size_mb, system, rounds))
        _expect(rows, size_mb)
    return rows


def _row(size_mb: float, system: str, rounds: Sequence[Sequence[bench.Row]]) -> dict[str, Any]:
    ratios, costs_s, step_s, mine = [], [], [], []
    for of_round in rounds:
        base = [b["seconds"] / b["steps"] for b in of_round if b["system"] == NONE]
        for block in (b for b in of_round if b["system"] == system):
            base_s = statistics.mean(base)
            mine.append(block)
            step_s.append(block["seconds"] / block["steps"])
            ratios.append(step_s[-1] / base_s)
            costs_s += block["costs_s"]
    ratio, cost = bench.spread(ratios, inner=True), bench.spread(costs_s, inner=True)
    assert ratio is not None, "every round has every system"
    saves = sum(block["saves"] for block in mine)
    seconds = sum(block["seconds"] for block in mine)
    middle = ratio.median
    if system == OURS:
        # Most of its blocks have few saves or none: only all of them together tell.
        steps = sum(block["steps"] for block in mine)
        bases = [b for of_round in rounds for b in of_round if b["system"] == NONE]
        base_s = sum(b["seconds"] for b in bases) / sum(b["steps"] for b in bases)
        middle = seconds / steps / base_s
    row: dict[str, Any] = {
        "system": system,
        "size_mb": round(size_mb, 1),
        "step_ms": round(statistics.median(step_s) * 1000, 3),
        "step_time_ratio": round(middle, 5),
        "ratio_low": round(ratio.low, 5),
        "ratio_high": round(ratio.high, 5),
        "rounds": len(rounds),
        "seconds": round(seconds, 2),
        "saves": saves,
        "save_every_s": round(seconds / saves, 3) if saves else None,
        "seconds_blocked": (round(sum(b["blocked_s"] for b in mine) / saves, 5) if saves else None),
        "cost_s": round(cost.median, 5) if cost else None,
        "cost_mean_s": round(statistics.mean(costs_s), 5) if costs_s else None,
        "cost_error_s": _error(costs_s),
        "cost_low_s": round(cost.low, 5) if cost else None,
        "cost_high_s": round(cost.high, 5) if cost else None,
    }
    if system == OURS:
        last = mine[-1]
        row |= {"snapshots": last["snapshots"], "checkpoints": last["checkpoints"]}
        row |= {
            name: round(last[name], 2) for name in ("snapshot_interval_s", "checkpoint_interval_s")
        }
    return row


def _error(values: Sequence[float]) -> float | None:
    """Standard error of the mean; None: too few."""
    if len(values) < 2:
        return None
    return round(statistics.stdev(values) / len(values) ** 0.5, 5)


def _expect(rows: Sequence[dict[str, Any]], size_mb: float) -> None:
    """Add the ratio that ours should have by what each kind of save costs at its interval."""
    here = {row["system"]: row for row in rows if row["size_mb"] == round(size_mb, 1)}
    ours, snapshot, checkpoint = (
        here.get(name) for name in (OURS, "spotray-snapshot", "spotray-checkpoint")
    )
    if ours and snapshot and checkpoint and snapshot["cost_s"] and checkpoint["cost_s"]:
        parts = snapshot["cost_mean_s"] / ours["snapshot_interval_s"]
        parts += checkpoint["cost_mean_s"] / ours["checkpoint_interval_s"]
        errors = (
            (snapshot["cost_error_s"] or 0.0) / ours["snapshot_interval_s"],
            (checkpoint["cost_error_s"] or 0.0) / ours["checkpoint_interval_s"],
        )
        ours["expected_ratio"] = round(1 + parts, 5)
        ours["expected_error"] = round(math.hypot(*errors), 5)


def summary(rows: Sequence[bench.Row]) -> str:
    """One line for each size and system."""
    lines = []
    for row in rows:
        ratio = f"{row['step_time_ratio']:.4f} ({row['ratio_low']:.4f}-{row['ratio_high']:.4f})"
        cells = [f"{row['step_ms']:.1f}", ratio]
        if row["cost_s"] is not None:
            low, high = row["cost_low_s"], row["cost_high_s"]
            cells += [f"{row['save_every_s']:.1f}", f"{row['seconds_blocked']:.3f}"]
            mean = f"{row['cost_mean_s']:.3f} +- {row['cost_error_s'] or math.nan:.3f}"
            cells += [f"{row['cost_s']:.3f} ({low:.3f}-{high:.3f})", mean]
        else:
            cells += ["-", "-", "-", "-"]
        more = ""
        if row["system"] == OURS:
            more = (
                f"{row['snapshots']} snapshots, now every {row['snapshot_interval_s']:.0f} s; "
                f"{row['checkpoints']} checkpoints, every {row['checkpoint_interval_s']:.0f} s"
            )
            if "expected_ratio" in row:
                more += f"; by parts {row['expected_ratio']:.4f} +- {row['expected_error']:.4f}"
        lines.append([f"{row['size_mb']:7.1f} MB {row['system']}", *cells, more])
    head = ["size       system", "step ms", "ratio (IQR)", "save every s", "blocked s"]
    return bench.table([*head, "cost of a save, s (IQR)", "mean", ""], lines)


def picture(path: Path, rows: Sequence[bench.Row]) -> bool:
    """What one save costs training, by size and system."""
    bars = [
        bench.Bar(
            group=f"{row['size_mb']:.0f} MB",
            label=row["system"],
            parts=(("", max(row["cost_s"], 1e-3)),),
            note=f"{row['cost_s']:.3f} s",
        )
        for row in rows
        if row["cost_s"] is not None and row["system"] != OURS
    ]
    if not bars:
        return False
    return bench.bars(
        path,
        bars,
        title="Training time that one save costs",
        unit="seconds, log scale",
        log_scale=True,
    )


def _follow(lines: Path, done: threading.Event) -> None:
    """Show the worker's progress; its output would come with all of Ray's."""
    with open(lines) as file:
        while True:
            last = done.wait(0.5)
            for line in file:
                if text := json.loads(line).get("say"):
                    bench.say(text)
            if last:
                return


def main(argv: Sequence[str] | None = None) -> int:
    parser = bench.parser(__file__, __doc__)
    parser.add_argument(
        "--systems",
        type=bench.names(SYSTEMS),
        default=SYSTEMS,
        metavar="A,B",
        help=f"of {', '.join(SYSTEMS)}; {NONE} is always measured",
    )
    parser.add_argument(
        "--sizes",
        type=bench.names(str(size) for size in SHAPES),
        metavar="MB,MB",
        help=f"of {', '.join(map(str, SHAPES))}; default: all, with --quick 20",
    )
    parser.add_argument("--rounds", type=bench.at_least(1), metavar="N", help="default: 6; quick 2")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir()),
        help="where states are saved to; default: %(default)s",
    )
    arguments = parser.parse_args(argv)
    bench.end_like_ctrl_c()
    quick = arguments.quick
    sizes = [int(size) for size in arguments.sizes or (("20",) if quick else map(str, SHAPES))]
    systems = [NONE, *(name for name in arguments.systems if name != NONE)]
    threads = os.cpu_count() or 1
    folder = Path(tempfile.mkdtemp(prefix="spotray-bench-", dir=arguments.folder))
    shm = Path(tempfile.mkdtemp(prefix="spotray-bench-", dir=SHM))
    lines = folder / "lines.jsonl"
    lines.touch()
    config = {
        "sizes": sizes,
        "systems": systems,
        "rounds": arguments.rounds or (QUICK_ROUNDS if quick else ROUNDS),
        "block_frac": 0.5 if quick else 1.0,
        "threads": threads,
        "lines": str(lines),
        "folder": str(folder / "states"),
        "shm": str(shm),
    }
    finished = False
    done = threading.Event()
    follower = threading.Thread(target=_follow, args=(lines, done), daemon=True)
    follower.start()
    try:
        bench.say("start Ray with one worker")
        logging.getLogger("ray.train").setLevel(logging.WARNING)
        ray.init(
            address="local",
            num_cpus=threads,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=200 * 2**20,
            runtime_env={"env_vars": {"PYTHONPATH": str(bench.ROOT)}},
        )
        bench.end_like_ctrl_c()  # Ray has put a handler of its own there
        TorchTrainer(
            measure,
            train_loop_config=config,
            scaling_config=ray.train.ScalingConfig(
                num_workers=1, resources_per_worker={"CPU": threads}
            ),
            run_config=ray.train.RunConfig(
                name="bench",
                storage_path=str(folder / "ray"),
                checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
            ),
        ).fit()
        finished = True
    except (KeyboardInterrupt, SystemExit):  # the latter is what Ray makes of Ctrl-C
        bench.say("interrupted: the rows of complete rounds are kept")
    finally:
        ray.shutdown()
        done.set()
        follower.join()
        told = [json.loads(line) for line in lines.read_text().splitlines()]
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(shm, ignore_errors=True)
    rows = rows_of([line for line in told if "say" not in line], systems)
    if rows:  # a run that was interrupted early leaves those of the last one
        bench.write_rows(arguments.json, rows)
    print(summary(rows))
    print(bench.machine())
    drawn = arguments.json.with_suffix(".svg")
    if rows:
        print(f"rows: {arguments.json}" + (f", picture: {drawn}" if picture(drawn, rows) else ""))
    return 0 if finished else 130


if __name__ == "__main__":
    sys.exit(main())
