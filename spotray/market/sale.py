"""What can be rented where: instance types of the catalog with their prices, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from spotray.errors import ConfigError
from spotray.market import catalog
from spotray.market.catalog import InstanceType
from spotray.market.prices import PriceRange, PriceTable


@dataclass(frozen=True, kw_only=True)
class ForSale:
    """An instance type in one region; at least one of its prices is known."""

    cloud: str
    region: str
    type: InstanceType
    on_demand: PriceRange | None
    spot: PriceRange | None

    @property
    def spot_usd_per_hour(self) -> float | None:
        """The middle of the spot prices of the region's zones; None if it is not known."""
        return None if self.spot is None else self.spot.middle_usd_per_hour

    @property
    def saved_frac(self) -> float | None:
        """How much cheaper spot is; None if one of the prices is not known."""
        if self.spot is None or self.on_demand is None:
            return None
        return 1 - self.spot.middle_usd_per_hour / self.on_demand.middle_usd_per_hour


def for_sale(
    prices: PriceTable,
    *,
    cloud: str = "",
    gpu: str = "",
    gpus: int | None = None,
    region: str = "",
    spot: bool | None = None,
) -> list[ForSale]:
    """The types with GPUs whose price somewhere is known, the cheapest by GPU first.

    Args:
        prices: of whatever table.
        cloud, gpu, region: only of these; empty: of all.
        gpus: only with so many.
        spot: only where this price is known; None: where any is.

    Raises:
        ConfigError: no such cloud or GPU; or nothing that fits has a price. The message says
            what there is.
    """
    if cloud and cloud not in catalog.CLOUDS:
        raise ConfigError(f"cloud {cloud!r}: give one of {', '.join(catalog.CLOUDS)}")
    if gpu and gpu not in catalog.gpus():
        raise ConfigError(f"GPU {gpu!r}: give one of {', '.join(catalog.gpus())}")
    priced = sorted({(c, r, n) for c, r, n, _ in prices.rows})
    known = list(_types(priced, prices))
    found = [
        one
        for one in known
        if (not cloud or one.cloud == cloud)
        and (not gpu or one.type.gpu == gpu)
        and (gpus is None or one.type.gpus == gpus)
        and (not region or one.region == region)
        and (spot is None or (one.spot if spot else one.on_demand) is not None)
    ]
    if not found:
        raise ConfigError(_nothing(known, cloud=cloud, gpu=gpu, gpus=gpus, region=region))
    return sorted(found, key=_least_usd_per_gpu)


def _types(priced: list[tuple[str, str, str]], prices: PriceTable) -> Iterator[ForSale]:
    for cloud, region, name in priced:
        kind = catalog.find(cloud, name)
        if kind is not None and kind.gpus:
            yield ForSale(
                cloud=cloud,
                region=region,
                type=kind,
                on_demand=prices.find(cloud, region, name, spot=False),
                spot=prices.find(cloud, region, name, spot=True),
            )


def _least_usd_per_gpu(one: ForSale) -> tuple[float, str, str, str]:
    known = [price.low_usd_per_hour for price in (one.spot, one.on_demand) if price is not None]
    return min(known) / one.type.gpus, one.cloud, one.type.name, one.region


def _nothing(known: list[ForSale], *, cloud: str, gpu: str, gpus: int | None, region: str) -> str:
    """What was asked for, and what there is instead."""
    count = "" if gpus is None else f"with {gpus} {gpu or 'GPUs'}"
    words = [cloud, count or (f"with {gpu}" if gpu else ""), f"in {region}" if region else ""]
    asked = " ".join(filter(None, words))
    fitting = [one for one in known if not cloud or one.cloud == cloud]
    if region and not any(one.region == region for one in fitting):
        there = ", ".join(sorted({one.region for one in fitting})) or "none"
        cure = f"prices are known in {there}"
    elif gpu:
        counts = sorted({one.type.gpus for one in fitting if one.type.gpu == gpu})
        cure = f"{gpu} is known with {', '.join(map(str, counts)) or 'no price'}"
        cure += " GPUs a machine" if counts else ""
    else:
        counts = sorted({one.type.gpus for one in fitting})
        cure = f"machines with {', '.join(map(str, counts)) or 'no'} GPUs are known"
    return (
        f"no price is known of a machine {asked}: {cure}; ask the cloud with `spotray prices "
        "--refresh`, or give rows with --prices FILE"
    )
