"""One sweep undisturbed on demand, on spot under preemptions, and with plain Ray Tune.

Each sweep has a Ray cluster of real raylets of its own. The same seeds, the same losses.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks import bench
from benchmarks.tuning import jobs, measure
from benchmarks.tuning.jobs import WORKERS, Size
from benchmarks.tuning.schedule import Change, Loss, Taker, replay, script
from benchmarks.tuning.systems import BASELINE, SYSTEMS, SpotNodes, Sweep, System
from spotray.errors import ConfigError, LabError, TraceError
from spotray.lab import processes
from spotray.lab.lab import Lab
from spotray.lab.scenario import Scenario
from spotray.ledger.journal import read_journal
from spotray.ledger.sweep import summarize_sweep
from spotray.ledger.sweepdir import load_sweep
from spotray.market.trace import Trace
from spotray.storage import Store

PROVISIONING_S = 1.0
FULL, QUICK = Size(trials=8, epochs=16), Size(trials=6, epochs=8)
LOSSES, QUICK_LOSSES = 6, 3
TOTAL = "all"  # in the column `trial`: the sweep as a whole
_DRIVER_DIES_AT = 0.6  # of the work: half of the trials have ended then
# Part of all trials' steps that a sweep does at least: ASHA ends trials, and a clone in PBT
# takes up its donor's steps. All losses come before that.
SCHEDULERS = {"random": 1.0, "asha": 0.35, "pbt": 0.7}
PLAN = (
    (BASELINE, "random"),
    ("spot", "random"),
    ("ray-tune", "random"),
    ("ray-tune-tuned", "random"),
    ("spot-driver", "random"),
    ("spot", "asha"),
    ("spot", "pbt"),
)
QUICK_PLAN = PLAN[:3]
CROWD_PLAN = PLAN[:2]  # of trials that have one worker each


def measure_one(
    system: System,
    scheduler: str,
    size: Size,
    schedule: Sequence[Loss | Change],
    *,
    first_nodes: int,
    logs: Path,
) -> list[dict[str, Any]]:
    """Run one sweep; its rows, the one of the whole last. ``logs`` takes those of one that failed.

    Args:
        system: How it is run.
        scheduler: Of SCHEDULERS.
        size: Of the sweep.
        schedule: Which nodes are taken when; not for one that is on demand.
        first_nodes: Spot nodes that the market holds at the start.
        logs: A folder.
    """
    with tempfile.TemporaryDirectory(prefix="spotray-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        try:
            sweep, told = _go_through(system, scheduler, size, schedule, folder, first_nodes)
            rows = _rows(system, scheduler, size, sweep, told, folder)
        except (LabError, ConfigError) as exc:  # or it ended before there was a sweep
            whole = {"system": system.name, "scheduler": scheduler, "trial": TOTAL}
            rows = [whole | {"outcome": f"did not start: {exc}"}]
        if rows[-1]["outcome"] != "ok" or not _held(rows[-1]):
            logs.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                shutil.copy(folder / "driver.log", logs)
                shutil.copytree(folder / "storage" / jobs.NAME, logs / "sweep", dirs_exist_ok=True)
        return rows


def _go_through(
    system: System,
    scheduler: str,
    size: Size,
    schedule: Sequence[Loss | Change],
    folder: Path,
    first_nodes: int,
) -> tuple[Sweep, dict[str, Any]]:
    """The sweep when it has ended, and how: outcome and losses that did not happen."""
    scenario = Scenario(workers=WORKERS if system.spot else 0, provisioning_s=PROVISIONING_S)
    with Lab(
        scenario=scenario,
        cpus_per_worker=size.cpus_per_node,
        journal=folder / "cluster",
        quick_health_check=system.quick_health_check,
    ) as lab:
        if not system.spot:
            for _ in range(WORKERS):
                lab.add_node(spot=False)
        lab.wait_for_workers(WORKERS)
        if system.spot and first_nodes < WORKERS:
            lab.set_capacity(first_nodes, notice_s=0.0)
        taker = Taker(
            SpotNodes(lab), schedule if system.spot else (), lambda text: bench.say(f"    {text}")
        )
        sweep = Sweep(system, scheduler, size, folder, lab)
        work = size.trials * size.steps * SCHEDULERS[scheduler]
        try:
            outcome = sweep.watch(
                taker, kill_at=round(work * _DRIVER_DIES_AT) if system.driver_dies else None
            )
        finally:
            sweep.end()
            taker.close()
        return sweep, {"outcome": outcome, "losses_left": taker.losses_left}


def _rows(
    system: System,
    scheduler: str,
    size: Size,
    sweep: Sweep,
    told: Mapping[str, Any],
    folder: Path,
) -> list[dict[str, Any]]:
    """A row for each trial, and one for all."""
    result = _read_result(folder)
    until_s = result.get("ended_s", time.time())
    began_s = result.get("began_s", sweep.began_s) if not sweep.killed_s else sweep.began_s
    costs: dict[int, float | None] = {}
    if system.tuner == "spotray":
        told_by_runs = load_sweep(folder / "storage" / jobs.NAME)
        saved_s = measure.first_saved(told_by_runs.runs)
        trials = summarize_sweep(told_by_runs).trials
        costs = {measure.number_of(t.trial): t.bill.money.cost_usd for t in trials}
    else:
        saved_s = measure.went_past(sweep.runs, jobs.STEPS_PER_EPOCH)
    done = measure.work(sweep.runs, saved_s=saved_s)
    names = {"system": system.name, "scheduler": scheduler}
    rows: list[dict[str, Any]] = []
    for trial in sorted(result.get("trials", ()), key=lambda one: str(one["trial_id"])):
        number = measure.number_of(trial["trial_id"])
        mine = done.get(number, measure.Work())
        rows.append(
            names
            | {"trial": str(number), "lr": trial["lr"], "val": trial[jobs.METRIC]}
            | {"weights_sha256": trial["weights_sha256"], "steps": trial["steps"]}
            | {"steps_redone": mine.steps_redone, "cost_usd": costs.get(number)}
            | {"error": trial["error"]}
        )
    total = sum(done.values(), measure.Work())
    facts = read_journal(Store.at(folder / "cluster"))
    market = measure.market(facts, from_s=began_s, until_s=until_s)
    best = min((r for r in rows if r["val"] is not None), key=lambda r: r["val"], default={})
    crowd = sweep.crowd
    again = measure.trained_since(sweep.runs, sweep.killed_s) & sweep.ended_before
    whole = names | {
        "trial": TOTAL,
        **told,
        "trials": len(rows),
        "trials_lost": size.trials - sum(not row["error"] for row in rows),
        "best_trial": best.get("trial"),
        "best_lr": best.get("lr"),
        "best_val": best.get("val"),
        "wall_s": round(until_s - began_s, 1),
        "all_began_s": measure.all_began_s(sweep.runs, size.trials, since_s=began_s),
        "trials_at_once": crowd.trials if crowd else 0,
        "processes_per_trial": round(crowd.processes_per_trial, 2) if crowd else None,
        "pss_mib_per_trial": round(crowd.pss_mib_per_trial) if crowd else None,
        "pss_mib_sweep": round(crowd.sweep_pss_bytes / 2**20) if crowd else None,
        "cost_usd": market.cost_usd,
        "noticed": market.noticed,
        "silent": market.silent,
        "steps_done": total.steps_done,
        "steps_redone": total.steps_redone,
        "most_redone": max((mine.steps_redone for mine in done.values()), default=0),
        "began_anew": total.began_anew,
        "ended_before_kill": len(sweep.ended_before) if sweep.killed_s else None,
        "trained_again": len(again) if sweep.killed_s else None,
    }
    return [*rows, whole]


def _read_result(folder: Path) -> dict[str, Any]:
    try:
        told: dict[str, Any] = json.loads((folder / "result.json").read_text())
    except FileNotFoundError:
        return {}
    return told


def compare(rows: Sequence[bench.Row]) -> list[dict[str, Any]]:
    """The rows with `equal`: the same bits as the undisturbed sweep's, where they must be.

    For a trial of random search on spot whether its last metric and weights are; for the
    whole of such a sweep how many are. None elsewhere.
    """
    there = {
        row["trial"]: (row["val"], row["weights_sha256"])
        for row in rows
        if (row["system"], row["scheduler"]) == (BASELINE, "random") and row["trial"] != TOTAL
    }
    told: list[dict[str, Any]] = []
    for key, group in bench.by_key(rows, "system", "scheduler").items():
        system, scheduler = key
        is_ours = SYSTEMS[system].tuner == "spotray" and system != BASELINE
        equal = 0
        for row in group:
            same: bool | int | None = None
            if there and is_ours and scheduler == "random":
                if row["trial"] == TOTAL:
                    same = equal
                else:
                    same = there.get(row["trial"]) == (row["val"], row["weights_sha256"])
                    equal += same
            told.append({**row, "equal": same})
    return told


def is_good(row: bench.Row) -> bool:
    """Whether all that is promised held for one of our sweeps, by the row of the whole."""
    is_equal = row.get("equal") in (None, row.get("trials"))
    return row["outcome"] == "ok" and _held(row) and is_equal


def _held(row: bench.Row) -> bool:
    return not (
        row["trials_lost"] or row["began_anew"] or row["losses_left"] or row["trained_again"]
    )


_SHOWN = {
    "wall_s": "wall s",
    "cost_usd": "cost $",
    "noticed": "noticed",
    "silent": "silent",
    "trials_lost": "lost",
    "began_anew": "anew",
    "steps_redone": "redone",
    "most_redone": "most",
    "best_trial": "best",
    "best_val": "its val",
    "equal": "equal",
    "all_began_s": "all began s",
    "trials_at_once": "at once",
    "processes_per_trial": "processes",
    "pss_mib_per_trial": "MiB",
}


def summary(rows: Sequence[bench.Row]) -> str:
    """A line for each sweep, the last metrics of random search side by side, and what was bad."""
    wholes = [row for row in rows if row["trial"] == TOTAL]
    lines = [
        [f"{row['scheduler']:7} {row['system']}", *(_text(row.get(name)) for name in _SHOWN)]
        for row in wholes
    ]
    parts = [bench.table(["sweep", *_SHOWN.values()], lines)]
    systems = [r["system"] for r in wholes if r["scheduler"] == "random"]
    trials = [r for r in rows if r["scheduler"] == "random" and r["trial"] != TOTAL]
    body = []
    for (trial,), group in bench.by_key(trials, "trial").items():
        by_system = {row["system"]: row for row in group}
        cells = [_exact(by_system.get(system, {}).get("val")) for system in systems]
        body.append([f"trial {trial}", f"{group[0]['lr']:.4g}", *cells])
    if body:
        parts.append(bench.table(["last val", "lr", *systems], body))
    parts += [f"{r['scheduler']}, {r['system']}: {r['outcome']}" for r in wholes if not _is_ok(r)]
    return "\n\n".join(parts)


def _is_ok(row: bench.Row) -> bool:
    return bool(row["outcome"] == "ok")


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _exact(value: float | None) -> str:
    """All digits: two that read the same are the same."""
    return "-" if value is None else repr(value)


def picture(path: Path, rows: Sequence[bench.Row]) -> bool:
    """Wall time of each sweep, with the steps that it did again."""
    bars = [
        bench.Bar(
            group=str(row["scheduler"]),
            label=str(row["system"]),
            parts=(("", float(row.get("wall_s", 0.0))),),
            note=f"{row['wall_s']} s, {row['steps_redone']} steps again"
            if _is_ok(row)
            else str(row["outcome"]).split(":")[0],
        )
        for row in rows
        if row["trial"] == TOTAL
    ]
    title = "One sweep, from its driver's start to the last result"
    return bench.bars(path, bars, title=title, unit="seconds", log_scale=False)


def plan(arguments: Any) -> list[tuple[str, str]]:
    """Which systems run which sweeps, in order."""
    chosen = list(QUICK_PLAN if arguments.quick else PLAN)
    if arguments.workers == 1:
        chosen = list(CROWD_PLAN)
    if arguments.systems and arguments.schedulers:
        return [(system, s) for s in arguments.schedulers for system in arguments.systems]
    chosen = PLAN if arguments.systems or arguments.schedulers else chosen
    return [
        (system, scheduler)
        for system, scheduler in chosen
        if not (arguments.systems and system not in arguments.systems)
        and not (arguments.schedulers and scheduler not in arguments.schedulers)
    ]


def size_of(arguments: Any) -> Size:
    """How large the sweeps are."""
    usual = QUICK if arguments.quick else FULL
    return Size(
        trials=arguments.trials or usual.trials,
        epochs=arguments.epochs or usual.epochs,
        workers=min(arguments.workers, WORKERS),
    )


def schedule_of(arguments: Any, scheduler: str, size: Size) -> tuple[int, Sequence[Loss | Change]]:
    """Nodes that the market holds at the start, and what it takes when.

    Raises:
        TraceError: the file is no trace of nodes, or has none where a sweep needs one.
    """
    if arguments.trace is None:
        losses = QUICK_LOSSES if arguments.quick else LOSSES
        losses = losses if arguments.losses is None else arguments.losses
        steps = size.trials * size.steps * SCHEDULERS[scheduler]
        return WORKERS, script(losses, steps=round(steps))
    trace = Trace.load(arguments.trace)
    from_s = arguments.trace_from * 3600.0
    changes = replay(
        trace,
        most=WORKERS,
        from_s=from_s,
        until_s=from_s + arguments.trace_hours * 3600.0,
        time_scale=arguments.trace_scale,
    )
    return min(WORKERS, trace.capacity_at(from_s)), changes


def main(argv: Sequence[str] | None = None) -> int:
    parser = bench.parser(__file__, __doc__)
    parser.add_argument(
        "--systems", type=bench.names(SYSTEMS), metavar="A,B", help=f"of {', '.join(SYSTEMS)}"
    )
    parser.add_argument(
        "--schedulers",
        type=bench.names(SCHEDULERS),
        metavar="X,Y",
        help=f"of {', '.join(SCHEDULERS)}",
    )
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="replay a market's trace instead of the script"
    )
    parser.add_argument(
        "--trace-from", type=float, default=0.0, metavar="H", help="hours; default: %(default)s"
    )
    parser.add_argument(
        "--trace-hours", type=float, default=3.0, metavar="H", help="default: %(default)s"
    )
    parser.add_argument(
        "--trace-scale",
        type=float,
        default=120.0,
        metavar="X",
        help="seconds of the market's time in one second; default: %(default)s",
    )
    parser.add_argument(
        "--trials", type=bench.at_least(1), metavar="N", help="default: 8, with --quick 6"
    )
    parser.add_argument(
        "--epochs", type=bench.at_least(1), metavar="N", help="of 10 steps; default: 16, or 8"
    )
    parser.add_argument(
        "--workers",
        type=bench.at_least(1),
        default=WORKERS,
        metavar="N",
        help="of a trial at most; 1: all trials run at once; default: %(default)s",
    )
    parser.add_argument(
        "--losses", type=bench.at_least(0), metavar="N", help="of nodes; default: 6, or 3"
    )
    arguments = parser.parse_args(argv)
    size = size_of(arguments)
    try:
        sweeps = [
            (system, scheduler, schedule_of(arguments, scheduler, size))
            for system, scheduler in plan(arguments)
        ]
    except TraceError as exc:
        parser.error(str(exc))
    bench.end_like_ctrl_c()
    processes.adopt_orphans()
    rows: list[dict[str, Any]] = []
    try:
        for system, scheduler, (first_nodes, schedule) in sweeps:
            bench.say(f"{system}, {scheduler}: {size.trials} trials of {size.steps} steps")
            rows += measure_one(
                SYSTEMS[system],
                scheduler,
                size,
                schedule,
                first_nodes=first_nodes,
                logs=arguments.json.parent / "logs" / f"{system}-{scheduler}",
            )
            rows = compare(rows)
            bench.write_rows(arguments.json, rows)
            whole = {k: v for k, v in rows[-1].items() if k not in ("system", "scheduler")}
            bench.say("    " + ", ".join(f"{k} {_text(v)}" for k, v in whole.items()))
    except KeyboardInterrupt:
        bench.say("interrupted: all nodes are ended; the rows so far are kept")
        return 130
    print(summary(rows))
    print(bench.machine())
    drawn = arguments.json.with_suffix(".svg")
    print(f"rows: {arguments.json}" + (f", picture: {drawn}" if picture(drawn, rows) else ""))
    ours = [r for r in rows if r["trial"] == TOTAL and SYSTEMS[r["system"]].tuner == "spotray"]
    return 0 if all(map(is_good, ours)) else 1


if __name__ == "__main__":
    sys.exit(main())
