"""What a running node costs by a table of prices, where nobody tells its real price. Pure.

A table's price is no bill: `NodeUp.price_from` says so wherever it is counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from spotray.errors import ConfigError
from spotray.events import NodeUp
from spotray.market import catalog
from spotray.market.offer import Market
from spotray.market.prices import PriceRange, PriceTable, sources

_MARKET_TYPE = "ray.io/market-type"
_ZONE = "ray.io/availability-zone"
_INSTANCE_TYPE = "spotray/instance-type"  # our node providers tell it
_ACCELERATOR = "accelerator_type:"  # of Ray's resources
_ADDED_TO = "n1-"  # the machines of Google's that get their GPUs by request


def priced(up: NodeUp, table: PriceTable, *, region: str = "", added: str = "") -> NodeUp:
    """The fact with its prices: the highest of the region's zones, so that a budget holds.

    Args:
        up: as it is told; one that has a price already stays as it is.
        region: where its zone does not tell it.
        added: what is added to its machine, as the table names it: ``+nvidia-tesla-t4``.
    """
    if up.usd_per_hour is not None or not up.market:
        return up
    market = Market.parse(up.market)

    def find(spot: bool) -> PriceRange | None:
        name = market.instance_type + added
        return table.find(market.cloud, region or market.region, name, spot=spot)

    own, on_demand = find(up.spot), find(False)
    if own is None:
        return up
    return replace(
        up,
        usd_per_hour=own.high_usd_per_hour,
        on_demand_usd_per_hour=on_demand.high_usd_per_hour if on_demand else None,
        price_from=f"a list of prices: {', '.join(sources([own])) or 'a row without a source'}",
    )


def market_by_labels(
    labels: Mapping[str, str], resources: Mapping[str, float]
) -> tuple[Market | None, str]:
    """Where a node is by its labels in Ray, and what is added to its machine.

    None where the labels do not tell: only our node providers say the instance type.
    """
    name, zone = labels.get(_INSTANCE_TYPE, ""), labels.get(_ZONE, "")
    cloud = next((one for one in catalog.CLOUDS if catalog.find(one, name)), "")
    try:
        market = Market(
            cloud=cloud, zone=zone, instance_type=name, spot=labels.get(_MARKET_TYPE) == "spot"
        )
    except ConfigError:  # one of them is empty
        return None, ""
    return market, _added(resources) if cloud == "gcp" and name.startswith(_ADDED_TO) else ""


def _added(resources: Mapping[str, float]) -> str:
    """As `spotray.cluster.node_types.accelerators` names it, from what Ray counts."""
    kinds = {ours: theirs for theirs, ours in catalog.GCP_ACCELERATORS.items()}
    count = int(resources.get("GPU", 0))
    for name in resources:
        theirs = kinds.get(name.removeprefix(_ACCELERATOR))
        if name.startswith(_ACCELERATOR) and theirs and count:
            return f"+{theirs}" if count == 1 else f"+{count}x{theirs}"
    return ""
