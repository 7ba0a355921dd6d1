"""``spotray prices``: which machines with GPUs are for sale, where, at what price."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spotray.cloud.prices import Score
    from spotray.cloud.refresh import Answer
    from spotray.market.prices import PriceRange, PriceTable
    from spotray.market.sale import ForSale


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "prices",
        help="which machines with GPUs are for sale, where, at what price",
        description="Machines with GPUs and their prices: of the table that comes with spotray, "
        "and of the cloud itself where --refresh has asked it.",
        allow_abbrev=False,
    )
    parser.add_argument("--cloud", choices=("aws", "gcp", "azure"))
    parser.add_argument("--gpu", default="", help="T4, L4, A10G, L40S, V100, A100, H100 ...")
    parser.add_argument("--gpus", type=int, metavar="N", help="GPUs of one machine")
    parser.add_argument("--region", default="", help="us-east-1, us-central1, eastus ...")
    parser.add_argument(
        "--market", choices=("spot", "on-demand"), help="only where this price is known"
    )
    parser.add_argument(
        "--prices", type=Path, metavar="FILE", help="rows of your own, which win over all others"
    )
    parser.add_argument(
        "--refresh",
        action="store_true",
        help="ask the clouds first (of --cloud, or all), in --region or those of the table; what "
        "they say is kept, and used by `spotray plan` and `spotray launch` too",
    )
    parser.add_argument(
        "--max-age",
        type=float,
        default=60.0,
        metavar="MINUTES",
        help="with --refresh: do not ask again for what is younger; default: %(default)g",
    )
    parser.add_argument(
        "--score",
        type=int,
        metavar="NODES",
        help="ask AWS or GCP how likely so many spot machines are to be had in --region; AWS "
        "limits how many such questions it answers in a day",
    )
    parser.add_argument("--json", action="store_true", help="print the result object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read, choose and print."""
    from spotray.cli.tables import print_json
    from spotray.market.sale import for_sale

    answers = _refresh(args) if args.refresh else []
    if answers and all(one.error for one in answers):
        return 1  # each was told; prices from before would look like an answer
    scores = _scores(args) if args.score is not None else []
    table = own_table(args.prices)
    found = for_sale(
        table,
        cloud=args.cloud or "",
        gpu=args.gpu,
        gpus=args.gpus,
        region=args.region,
        spot=None if args.market is None else args.market == "spot",
    )
    doubtful = table.doubtful()
    if args.json:
        told = {"for_sale": found, "doubtful": doubtful}
        print_json(told | {"refreshed": answers, "scores": scores})
        return 0
    _show(found)
    for line in doubtful:
        print(f"doubtful  {line}")
    if scores:
        _show_scores(scores)
    return 0


def _refresh(args: argparse.Namespace) -> list[Answer]:
    """Ask the clouds, and say on stderr how it went."""
    from spotray.clock import SystemClock
    from spotray.cloud.price_cache import PriceCache
    from spotray.cloud.refresh import Question, price_source, refresh
    from spotray.errors import ConfigError
    from spotray.market.catalog import CLOUDS
    from spotray.market.prices import PriceTable

    if args.max_age < 0:
        raise ConfigError(f"--max-age is {args.max_age:g}: give at least 0 minutes")
    regions = sorted({(cloud, region) for cloud, region, _, _ in PriceTable.bundled().rows})
    wanted = [(cloud, region) for cloud, region in regions if args.cloud in (None, cloud)]
    if args.region:
        clouds = [cloud for cloud, region in wanted if region == args.region]
        if not clouds and args.cloud is None:
            raise ConfigError(
                f"whose region is {args.region}? Say --cloud {', --cloud '.join(CLOUDS)}"
            )
        wanted = [(clouds[0] if clouds else args.cloud, args.region)]
    questions = [
        Question(cloud=cloud, region=region, types=types)
        for cloud, region in wanted
        if (types := gpu_types(cloud, args))
    ]
    if not questions:
        raise ConfigError(
            "no type that fits is known there: see `spotray prices` without --refresh"
        )
    cache = PriceCache()
    answers = refresh(
        questions,
        sources=price_source,
        cache=cache,
        clock=SystemClock(),
        fresh_s=60 * args.max_age,
    )
    for one in answers:
        where = f"{one.question.cloud} {one.question.region}"
        if one.error:
            words = one.error
        elif one.age_s:
            words = f"asked {one.age_s / 60:.0f} min ago, not again before {args.max_age:g} min"
        else:
            words = f"{one.prices} prices"
        print(f"spotray: {where}: {words}", file=sys.stderr)
    return answers


def gpu_types(cloud: str, args: argparse.Namespace) -> tuple[str, ...]:
    """The types of a cloud that ``--gpu`` and ``--gpus`` ask about."""
    from spotray.market import catalog

    kinds = [kind for name in catalog.names(cloud) if (kind := catalog.find(cloud, name))]
    return tuple(
        kind.name
        for kind in kinds
        if kind.gpus
        and (not args.gpu or kind.gpu == args.gpu)
        and (args.gpus is None or kind.gpus == args.gpus)
    )


def _scores(args: argparse.Namespace) -> list[Score]:
    """How likely spot is to be had, by zone."""
    from spotray.clock import SystemClock
    from spotray.cloud.refresh import placement_scorer
    from spotray.cloud.retry import patiently
    from spotray.errors import ConfigError

    if not args.cloud or not args.region or args.score < 1:
        raise ConfigError("--score wants --cloud aws or gcp, --region, and at least 1 node")
    scorer = placement_scorer(args.cloud)
    types = gpu_types(args.cloud, args)
    return patiently(
        lambda: scorer.scores(args.region, types, nodes=args.score), clock=SystemClock()
    )


def own_table(file: Path | None) -> PriceTable:
    """The user's rows, over what clouds said if it is newer, over those of the package.

    Raises:
        ConfigError: the file cannot be read, or a row of it is wrong.
    """
    from spotray.cloud.price_cache import PriceCache
    from spotray.errors import ConfigError
    from spotray.market.prices import PriceTable

    cache = PriceCache()
    table = cache.known()
    for kept in cache.unreadable:
        print(f"spotray: {kept} cannot be read, and counts for nothing: delete it", file=sys.stderr)
    if file is None:
        return table
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"cannot read {file}: {getattr(exc, 'strerror', None) or exc}") from exc
    return PriceTable.parse(text, name=str(file)).over(table)


def _show(found: list[ForSale]) -> None:
    from spotray.cli.tables import print_table
    from spotray.clock import SystemClock
    from spotray.market.prices import sources

    print_table(
        "For sale, USD per hour of a machine",
        [
            *("type", "GPUs", ">vCPUs", ">GiB", "network", "region", ">spot", ">on demand"),
            *(">saved", "read"),
        ],
        [_row(one) for one in found],
    )
    prices = [price for one in found for price in (one.spot, one.on_demand) if price is not None]
    told = sources(prices, now_s=SystemClock().now_s())
    print("\n".join(f"from  {source}" for source in told))


def _show_scores(scores: list[Score]) -> None:
    from spotray.cli.tables import print_table

    print()
    print_table(
        f"How likely {scores[0].nodes} spot machines are to be had now, as the cloud guesses",
        ["zone", ">likely", ">of those that stopped, preempted", "any of"],
        [
            [
                one.zone or one.region,
                f"{100 * one.obtainable_frac:.0f} %",
                "" if one.preempted_frac is None else f"{100 * one.preempted_frac:.0f} %",
                ", ".join(one.instance_types[:4]) + (" ..." if one.instance_types[4:] else ""),
            ]
            for one in scores
        ],
    )


def _row(one: ForSale) -> list[str]:
    kind = one.type
    memory = f" {kind.gpu_memory_gib:.0f} GiB" if kind.gpu_memory_gib else ""
    return [
        kind.name,
        f"{kind.gpus} {kind.gpu}{memory}",
        str(kind.cpus),
        f"{kind.memory_gib:g}",
        kind.network + (", EFA" if kind.efa else ""),
        one.region,
        price_text(one.spot),
        price_text(one.on_demand),
        "" if one.saved_frac is None else f"{100 * one.saved_frac:.0f} %",
        next(price.date for price in (one.spot, one.on_demand) if price is not None),
    ]


def price_text(price: PriceRange | None) -> str:
    """A price, or from the cheapest zone's to the dearest's."""
    if price is None:
        return "-"
    low, high = price.low_usd_per_hour, price.high_usd_per_hour
    return f"{low:.3f}" if f"{low:.3f}" == f"{high:.3f}" else f"{low:.3f}-{high:.3f}"
