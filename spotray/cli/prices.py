"""``spotray prices``: which machines with GPUs are for sale, where, at what price."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    parser.add_argument("--json", action="store_true", help="print the result object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read, choose and print."""
    from spotray.cli.tables import print_json
    from spotray.market.sale import for_sale

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
        print_json({"for_sale": found, "doubtful": doubtful})
        return 0
    _show(found)
    for line in doubtful:
        print(f"doubtful  {line}")
    return 0


def own_table(file: Path | None) -> PriceTable:
    """The user's rows, over what clouds were heard to say, over those of the package.

    Raises:
        ConfigError: the file cannot be read, or a row of it is wrong.
    """
    from spotray.cloud.price_cache import PriceCache
    from spotray.errors import ConfigError
    from spotray.market.prices import PriceTable

    table = PriceCache().table().over(PriceTable.bundled())
    if file is None:
        return table
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"cannot read {file}: {getattr(exc, 'strerror', None) or exc}") from exc
    return PriceTable.parse(text, name=str(file)).over(table)


def _show(found: list[ForSale]) -> None:
    from spotray.cli.tables import print_table
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
    print("\n".join(f"from  {source}" for source in sources(prices)))


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
