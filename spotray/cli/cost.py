"""``spotray cost RUN_DIR``: what a run or a sweep cost, and what it would have on demand."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spotray.ledger.cost import CostSummary
    from spotray.ledger.pricing import Money


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "cost",
        help="what a run or a sweep cost, per trial, node and market, against on-demand",
        description="Price the node time of a run or a sweep from its journals alone.",
    )
    parser.add_argument(
        "run_dir", metavar="RUN_DIR", help="storage_path/name of the run or sweep; path or URL"
    )
    parser.add_argument("--json", action="store_true", help="print the result object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print a run's cost."""
    from spotray.cli.tables import print_json
    from spotray.ledger.cost import cost
    from spotray.ledger.rundir import load_run
    from spotray.ledger.sweepdir import is_sweep

    if is_sweep(args.run_dir):
        from spotray.cli.sweep import run_cost

        return run_cost(args)
    loaded = load_run(args.run_dir)
    result = cost(loaded.events)
    if args.json:
        print_json(result)
        return 0
    show(result)
    for missing in loaded.missing:
        print(f"warning: {missing}")
    return 0


def show(result: CostSummary) -> None:
    """Print a cost for people."""
    from spotray.cli.tables import percent, usd

    total = result.total
    print(
        f"cost {usd(total.cost_usd)}, on demand {usd(total.on_demand_cost_usd)}, "
        f"saved {percent(result.saved_frac)}{unknown_time(result)}"
    )
    show_groups(result)


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


def _rows(groups: dict[str, Money]) -> list[list[str]]:
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
