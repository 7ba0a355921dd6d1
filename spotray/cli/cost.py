"""``spotray cost RUN_DIR ...``: what runs and sweeps cost, and what they would have on demand."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spotray.events import Event
    from spotray.ledger.account import Account
    from spotray.ledger.cost import CostSummary
    from spotray.ledger.many import ManyRuns
    from spotray.ledger.pricing import Money


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "cost",
        help="what runs and sweeps cost, by trial, node, market, cause and week",
        description="Price the node time of a run or a sweep from its journals alone, in every "
        "cut, against on-demand. Several runs add up, by run, by week and by the labels of their "
        "jobs; a node that several of them used is paid once.",
    )
    parser.add_argument(
        "run_dirs",
        metavar="RUN_DIR",
        nargs="+",
        help="storage_path/name of a run or sweep; path or URL",
    )
    parser.add_argument("--json", action="store_true", help="print the result object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print a run's cost, or that of several."""
    from spotray.cli.tables import print_json
    from spotray.ledger.account import account
    from spotray.ledger.rundir import load_run
    from spotray.ledger.sweepdir import is_sweep

    if len(args.run_dirs) > 1:
        return _run_many(args)
    (run_dir,) = args.run_dirs
    if is_sweep(run_dir):
        from spotray.cli.sweep import run_cost

        return run_cost(run_dir, json=args.json)
    loaded = load_run(run_dir)
    result = account(
        loaded.events,
        damaged_lines=loaded.damaged_lines,
        unfinished_lines=loaded.unfinished_lines,
    )
    if args.json:
        print_json(result)
        return 0
    show(result)
    for missing in (*loaded.missing, *result.left_out):
        print(f"warning: {missing}")
    return 0


def show(result: Account) -> None:
    """Print a cost for people."""
    from spotray.cli.tables import percent, usd

    total = result.total
    print(
        f"cost {usd(total.cost_usd)}, on demand {usd(total.on_demand_cost_usd)}, "
        f"saved {percent(result.saved_frac)}{unknown_time(result)}"
    )
    for line in bill_lines(result):
        print(line)
    show_groups(result)
    show_cuts(result)


def show_cuts(result: Account) -> None:
    """Print a bill by cause, and by zone and week where there are several."""
    from spotray.cli.tables import print_table

    several = (("zone", result.by_zone), ("week", result.by_week))
    for name, groups in (("cause", result.by_cause), *(one for one in several if len(one[1]) > 1)):
        if groups:
            print()
            print_table(f"By {name}", [name, *MONEY], _rows(groups))


def bill_lines(result: Account) -> list[str]:
    """What is above the price of node time, and what an undisturbed run on demand would cost."""
    from spotray.cli.tables import usd

    lines = []
    charges: dict[str, list[float]] = {}
    for one in result.charges:
        charges.setdefault(one.why, []).append(one.usd)
    parts = [f"{_signed(sum(sums))} ({len(sums)} nodes: {why})" for why, sums in charges.items()]
    if result.disks:
        known = [disk.cost_usd for disk in result.disks if disk.cost_usd is not None]
        unknown = len(result.disks) - len(known)
        words = f", {unknown} without a price" if unknown else ""
        parts.append(f"{_signed(sum(known))} ({len(result.disks)} disks{words})")
    if parts:
        node_time = usd(result.total.cost_usd)
        lines.append(f"bill {usd(result.billed_usd)}: node time {node_time}, {', '.join(parts)}")
    steps = result.same_steps
    if steps.cost_usd is not None:
        doubt = "over " if steps.unpriced_s else ""
        lines.append(f"the same steps on demand, undisturbed: {doubt}{usd(steps.cost_usd)}")
    return lines


def _signed(value: float) -> str:
    from spotray.cli.tables import usd

    return f"{'-' if value < 0 else '+'}{usd(abs(value))}"


def _run_many(args: argparse.Namespace) -> int:
    from spotray.cli.tables import print_json
    from spotray.ledger.many import sum_runs
    from spotray.ledger.rundir import load_run
    from spotray.ledger.sweep import plain_events
    from spotray.ledger.sweepdir import is_sweep, load_sweep

    runs: dict[str, Sequence[Event]] = {}
    damaged: dict[str, int] = {}
    missing: list[str] = []
    for run_dir in args.run_dirs:
        if is_sweep(run_dir):
            sweep = load_sweep(run_dir)
            runs[run_dir], damaged[run_dir] = plain_events(sweep), sweep.damaged_lines
            missing += sweep.missing
        else:
            loaded = load_run(run_dir)
            runs[run_dir], damaged[run_dir] = loaded.events, loaded.damaged_lines
            missing += loaded.missing
    result = sum_runs(runs, damaged=damaged)
    if args.json:
        print_json(result)
        return 0
    _show_many(result)
    lines = [f"{run}: {line}" for run, left_out in result.left_out.items() for line in left_out]
    for line in (*dict.fromkeys(missing), *lines):
        print(f"warning: {line}")
    return 0


def _show_many(result: ManyRuns) -> None:
    from spotray.cli.tables import print_table, usd

    print(
        f"cost {usd(result.total.cost_usd)} for {len(result.by_run)} runs, billed "
        f"{usd(result.billed_usd)}, on demand {usd(result.total.on_demand_cost_usd)}"
    )
    cuts = [("run", result.by_run), ("week", result.by_week), *result.by_label.items()]
    for name, groups in cuts:
        if groups:
            print()
            print_table(f"By {name}", [name, *MONEY], _rows(groups))


def show_groups(result: CostSummary) -> None:
    """Print a cost by kind, by market and by node."""
    from spotray.cli.tables import print_table
    from spotray.ledger.describe import short

    for title, groups in (("By kind", result.by_kind), ("By market", result.by_market)):
        if groups:
            print()
            print_table(title, [title.removeprefix("By "), *MONEY], _rows(groups))
    if result.nodes:
        print()
        print_table(
            "By node",
            ["node", "id", "market", *MONEY],
            [
                [
                    node.name or "-",
                    short(node.node_id),
                    node.market or "unknown",
                    *cells(node.money),
                ]
                for node in result.nodes
            ],
        )


def unknown_time(result: CostSummary) -> str:
    """What the sums do not cover; empty if nothing."""
    from spotray.cli.tables import duration

    words = ""
    if result.total.unpriced_s:
        words += f"; no price known for {duration(result.total.unpriced_s)} of node time"
    if result.unseen_nodes:
        words += f"; {result.unseen_nodes} nodes that trained are in no journal"
    if result.price_lists:
        words += f"; by {', '.join(result.price_lists)}"
    return words


MONEY = [">node time", ">cost", ">on demand", ">no price for"]


def _rows(groups: Mapping[str, Money]) -> list[list[str]]:
    return [[name, *cells(money)] for name, money in groups.items()]


def cells(money: Money) -> list[str]:
    """A row's cells under `MONEY`."""
    from spotray.cli.tables import duration, usd

    return [
        duration(money.seconds),
        usd(money.cost_usd),
        usd(money.on_demand_cost_usd),
        duration(money.unpriced_s) if money.unpriced_s else "",
    ]
