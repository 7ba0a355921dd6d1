"""``spotray status``: where a run stands, a sweep with all its trials, or a launched job."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spotray.clock import Clock
    from spotray.launch.records import Launch
    from spotray.ledger.summary import RunSummary

_FOLLOW_S = 2.0  # between two looks at the journal


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "status",
        help="where a run, a sweep or a launch stands: step, nodes, goodput, losses, cost",
        description="Show where a run or a sweep stands, from its journals alone; or where a job "
        "of `spotray launch` does, from its cluster.",
    )
    parser.add_argument(
        "run_dir",
        metavar="WHAT",
        help="storage_path/name of a run or sweep, path or URL; or the name of a launch",
    )
    parser.add_argument(
        "--recoveries", action="store_true", help="each loss and resize, and where its seconds went"
    )
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print the result object")
    shown.add_argument("--follow", action="store_true", help="go on until the job ends")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print a run's status."""
    from spotray.cli.tables import print_json
    from spotray.clock import SystemClock
    from spotray.ledger.rundir import RunReader
    from spotray.ledger.summary import summarize
    from spotray.ledger.sweepdir import is_sweep

    if (one := _launch(args.run_dir)) is not None:
        from spotray.cli.jobs import run_status as run_launch_status
        from spotray.errors import ConfigError

        if args.follow or args.recoveries:
            raise ConfigError(
                f"{one.name} is a launch: `spotray logs {one.name}` follows it; --follow and "
                "--recoveries are for the folder of a run"
            )
        return run_launch_status(one, json=args.json)
    if is_sweep(args.run_dir):
        from spotray.cli.sweep import run_status

        return run_status(args)
    reader = RunReader(args.run_dir)
    if args.follow:
        follow(lambda: _glance(summarize(reader.poll())), clock=SystemClock())
    summary = summarize(reader.poll())
    if args.json:
        print_json(summary)
    else:
        show(summary, now_s=time.time(), recoveries=args.recoveries)
    return 0


def _launch(what: str) -> Launch | None:
    """The launch of that name; a folder that is there has the older right to it."""
    from pathlib import Path

    from spotray.launch.records import Records

    return None if "/" in what or Path(what).exists() else Records().get(what)


def follow(look: Callable[[], tuple[str, bool]], *, clock: Clock) -> None:
    """Print a line whenever something moves on, until it ends.

    Args:
        look: the line now, and whether what it is about goes on.
    """
    in_place = sys.stdout.isatty()
    before = ""
    try:
        while True:
            line, goes_on = look()
            if line != before:
                # On a terminal the line is written over; a log gets each of them.
                print(f"\r\x1b[K{line}" if in_place else line, end="" if in_place else "\n")
                sys.stdout.flush()
                before = line
            if not goes_on:
                return
            clock.sleep(_FOLLOW_S)
    finally:
        if in_place:
            print()


def _glance(summary: RunSummary) -> tuple[str, bool]:
    return headline(summary), summary.state == "running"


def headline(summary: RunSummary) -> str:
    """The run in one line."""
    loss = "" if summary.loss is None else f", loss {summary.loss:.4g}"
    epoch = "" if summary.epoch is None else f", epoch {summary.epoch}"
    job = f"{summary.job or summary.run_dir}: {summary.state}"
    workers = f"{summary.world_size} workers ({summary.min_workers} to {summary.max_workers})"
    return f"{job}, step {summary.step}{epoch}{loss}, {workers}; {summary.last_event}"


def show(summary: RunSummary, *, now_s: float, recoveries: bool) -> None:
    """Print a status for people."""
    from spotray.cli.tables import duration, fine_duration, percent, usd

    time_spent, losses, money = summary.goodput, summary.recovery, summary.cost
    print(headline(summary))
    if summary.why:
        print(f"why         {summary.why}")
    if summary.state == "running":
        print(f"last event  {duration(max(0.0, now_s - summary.until_s))} ago")
    lost = [f"{cause} {duration(s)}" for cause, s in time_spent.lost_s.items() if s >= 0.05]
    print(
        f"time        {duration(time_spent.wall_s)}, goodput {percent(time_spent.goodput_frac)}"
        f" ({time_spent.steps} steps){'; ' if lost else ''}{', '.join(lost)}"
    )
    print(
        f"losses      {losses.preemptions_noticed} preemptions with notice "
        f"({losses.steps_lost_noticed} steps lost), {losses.preemptions_silent} without "
        f"(at most {losses.steps_lost_silent_max} steps lost at once, "
        f"{losses.steps_lost_all_max} when all nodes went)"
    )
    print(
        f"recovery    median {fine_duration(losses.recovery_s_median)}, "
        f"longest {fine_duration(losses.recovery_s_max)}"
    )
    print(
        f"saved       checkpoint of step {_or_none(summary.checkpoint_step)}, "
        f"snapshot of step {_or_none(summary.snapshot_step)}"
    )
    print(
        f"cost        {usd(money.total.cost_usd)}, "
        f"on demand {usd(money.total.on_demand_cost_usd)}, "
        f"saved {percent(money.saved_frac)}{_unknown_time(summary)}"
    )
    for warning in summary.warnings:
        print(f"warning     {warning}")
    if summary.damaged_lines:
        print(f"warning     {summary.damaged_lines} damaged journal lines were left out")
    if summary.nodes:
        print()
        _show_nodes(summary)
    if recoveries and (losses.recoveries or losses.fallbacks or losses.fenced_out):
        from spotray.cli.recoveries import print_recoveries

        print()
        print_recoveries(losses, began_s=summary.started_at_s or 0.0)


def _show_nodes(summary: RunSummary) -> None:
    from spotray.cli.tables import duration, print_table, usd
    from spotray.ledger.describe import short

    print_table(
        "Nodes",
        ["node", "id", "market", "state", ">for", "worker", ">per hour"],
        [
            [
                node.name or "-",
                short(node.node_id),
                node.market or "unknown",
                node.state,
                duration(summary.until_s - node.since_s),
                "yes" if node.has_worker else "",
                usd(node.usd_per_hour),
            ]
            for node in summary.nodes
        ],
    )


def _unknown_time(summary: RunSummary) -> str:
    from spotray.cli.cost import unknown_time

    return unknown_time(summary.cost)


def _or_none(step: int | None) -> str:
    return "none" if step is None else str(step)
