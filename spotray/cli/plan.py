"""``spotray plan``: what a job will probably cost, and when it will be done."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spotray.plan.plan import Option, Plan, Ranked

_RANKED = 12  # rows of the second table


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "plan",
        help="what a job will probably cost, and when it will be done",
        description="Compare one machine with all GPUs and as many machines with one GPU, on "
        "demand and on spot. What spot does is simulated, so costs and ends are ranges.",
        allow_abbrev=False,
    )
    parser.add_argument("--gpus", type=int, required=True, metavar="N")
    parser.add_argument("--gpu", required=True, help="T4, L4, A10G, L40S, V100, A100, H100 ...")
    parser.add_argument(
        "--hours", type=float, required=True, help="of work, on that many GPUs, undisturbed"
    )
    parser.add_argument(
        "--deadline", type=float, metavar="HOURS", help="default: half as long again as the work"
    )
    parser.add_argument("--cloud", default="", choices=("aws", "gcp", "azure"))
    parser.add_argument("--region", default="", help="default: where spot is cheapest")
    parser.add_argument(
        "--samples-per-s",
        type=float,
        metavar="N",
        help="of one GPU; default: as `spotray bench-node` measured",
    )
    parser.add_argument("--model", default="", help="which measured model; default: the latest one")
    parser.add_argument(
        "--start",
        type=float,
        default=3.0,
        metavar="MINUTES",
        help="until a new machine can work; default: %(default)g, not measured on a cloud",
    )
    parser.add_argument(
        "--book",
        metavar="FOLDER",
        help="of your own nodes' lives; default: what `spotray hazards` kept on this machine",
    )
    parser.add_argument(
        "--preemptible",
        action="store_true",
        help="Google's older kind of spot, whose machines end after 24 h",
    )
    parser.add_argument(
        "--prices", type=Path, metavar="FILE", help="rows of your own, which win over all others"
    )
    parser.add_argument("--json", action="store_true", help="print the result object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Plan and print."""
    from spotray.cli.hazards import own_book, read_book
    from spotray.cli.prices import own_table
    from spotray.cli.tables import print_json
    from spotray.clock import SystemClock
    from spotray.market.hazards import learn
    from spotray.plan.plan import Wish, plan
    from spotray.plan.rates import load_rates, of_model, rates_file

    wish = Wish(
        gpus=args.gpus,
        gpu=args.gpu,
        hours=args.hours,
        deadline_h=args.deadline,
        cloud=args.cloud,
        region=args.region,
        samples_per_s=args.samples_per_s,
        start_s=60 * args.start,
        preemptible=args.preemptible,
    )
    rates = of_model(load_rates(rates_file()), args.model)
    lives = read_book(args.book) if args.book else own_book().lives()
    result = plan(
        wish,
        own_table(args.prices),
        rates,
        hazards=learn(lives) if lives else None,
        now_s=SystemClock().now_s(),
    )
    if args.json:
        print_json(result)
    else:
        _show(result)
    return 0


def _show(result: Plan) -> None:
    from spotray.cli.tables import print_table

    wish = result.wish
    rated = any(one.usd_per_million_samples is not None for one in result.options)
    print_table(
        f"{wish.hours:g} h of work on {wish.gpus} {wish.gpu}, to be done in "
        f"{wish.deadline_s / 3600:g} h",
        [
            *("way", "machines", "region", ">cost", ">done after", ">late"),
            *([">per M samples"] if rated else []),
        ],
        [_option_row(one, rated=rated) for one in result.options],
    )
    print("  in brackets: what 8 in 10 of the simulated jobs are within; ?: not seen to end")
    print()
    shown = result.ranking[:_RANKED]
    print_table(
        "By cost of the work, with what preemptions and restarts cost in the mean",
        [
            *("machines", "bought as", "region", ">per hour", ">losses/h", ">not working"),
            *(">per GPU hour", *([">per M samples"] if rated else [])),
        ],
        [_ranked_row(one, rated=rated) for one in shown],
    )
    if len(result.ranking) > len(shown):
        print(f"  and {len(result.ranking) - len(shown)} more: see --json")
    print()
    for note in result.notes:
        print(f"note  {note}")


def _option_row(one: Option, *, rated: bool) -> list[str]:
    cost, end, forecast = one.forecast.cost_usd, one.forecast.end_s, one.forecast
    return [
        one.name,
        f"{one.machines} x {one.offer.type.name}",
        one.offer.region,
        f"${cost.middle:.2f}" + _within(f"{cost.low:.2f}", f"{cost.high:.2f}"),
        _hours(end.middle) + _within(_hours(end.low), _hours(end.high)),
        f"{100 * forecast.late_frac:.0f} %",
        *([_money(one.usd_per_million_samples)] if rated else []),
    ]


def _within(low: str, high: str) -> str:
    return "" if low == high else f" ({low.removesuffix(' h')} - {high.removesuffix(' h')})"


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if math.isfinite(seconds) else "?"


def _money(usd: float | None) -> str:
    return "" if usd is None else f"${usd:.3f}"


def _ranked_row(one: Ranked, *, rated: bool) -> list[str]:
    restarts = one.restarts
    return [
        f"{one.machines} x {one.offer.type.name}",
        "spot" if one.spot else "on-demand",
        one.offer.region,
        f"${one.usd_per_hour:.3f}",
        f"{one.machines * restarts.losses_per_hour:.2f}" if restarts else "",
        f"{100 * (1 - restarts.works_frac):.1f} %" if restarts else "",
        f"${one.usd_per_gpu_hour:.3f}",
        *(
            [_money(one.usd_per_million_samples) + ("" if one.is_measured else " *")]
            if rated
            else []
        ),
    ]
