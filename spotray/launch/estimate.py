"""What a cluster may cost before it is there: per node type, per hour, in all. Pure.

Low is what is paid when every worker that may be spot is, in its cheapest zone; high when
none is. Disks, traffic and storage come on top and are not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spotray.cluster.markets import NodeMarkets
from spotray.cluster.node_types import NodeType, accelerators, mapping, node_types
from spotray.market.prices import PriceRange, PriceTable, sources


@dataclass(frozen=True, kw_only=True)
class TypeCost:
    """What one node of a type costs, USD per hour; None where it is not known."""

    name: str
    is_head: bool
    instance_types: tuple[str, ...]
    min_nodes: int
    max_nodes: int
    may_be_spot: bool
    may_be_on_demand: bool
    spot: PriceRange | None
    on_demand: PriceRange | None
    unknown: tuple[str, ...]  # the prices that are missing: "g5.xlarge spot in us-west-2"
    sources: tuple[str, ...] = ()  # where those that are known were read

    @property
    def low_usd_per_hour(self) -> float | None:
        """The least that a node is known to cost."""
        known = [one.low_usd_per_hour for one in (self.spot, self.on_demand) if one]
        return min(known, default=None)

    @property
    def high_usd_per_hour(self) -> float | None:
        """The most that a node costs; None unless all its prices are known."""
        if self.unknown:
            return None
        known = [one.high_usd_per_hour for one in (self.spot, self.on_demand) if one]
        return max(known, default=None)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a cluster may cost."""

    cluster_name: str
    types: tuple[TypeCost, ...]
    max_workers: int
    idle_usd_per_hour: float | None  # the head and the least workers, at their highest
    low_usd_per_hour: float | None  # with all workers; None if nothing at all is known
    high_usd_per_hour: float | None  # None: a price is missing
    hours: float | None
    sources: tuple[str, ...]

    @property
    def low_usd(self) -> float | None:
        """For the hours that were asked for."""
        return _times(self.low_usd_per_hour, self.hours)

    @property
    def high_usd(self) -> float | None:
        """For the hours that were asked for."""
        return _times(self.high_usd_per_hour, self.hours)

    @property
    def unknown(self) -> tuple[str, ...]:
        """The prices that are missing."""
        return tuple(dict.fromkeys(what for one in self.types for what in one.unknown))


def estimate(
    config: Mapping[str, Any],
    prices: PriceTable,
    *,
    hours: float | None = None,
    now_s: float | None = None,
) -> Estimate:
    """The costs of a cluster from its YAML.

    Args:
        config: that passed the lint; what it leaves out counts as none.
        hours: how long the cluster is meant to run; None: nobody said.
        now_s: Unix seconds, to say how old the prices are; None: leave that out.
    """
    types = tuple(_type_cost(one, config, prices, now_s) for one in node_types(config))
    workers = [one for one in types if not one.is_head]
    heads = [one for one in types if one.is_head]
    most = sum(one.max_nodes for one in workers)
    given = config.get("max_workers")
    max_workers = min(most, given) if isinstance(given, int) else most
    known = [one for one in (*heads, *workers) if one.low_usd_per_hour is not None]
    complete = all(one.high_usd_per_hour is not None for one in types) and bool(types)
    head_high = _highest(heads, sum(one.max_nodes for one in heads))
    return Estimate(
        cluster_name=str(config.get("cluster_name", "")),
        types=types,
        max_workers=max_workers,
        idle_usd_per_hour=head_high + _highest(workers, None) if complete else None,
        low_usd_per_hour=(
            _lowest(heads, len(heads)) + _lowest(workers, max_workers) if known else None
        ),
        high_usd_per_hour=head_high + _highest(workers, max_workers) if complete else None,
        hours=hours,
        sources=tuple(sorted({where for one in types for where in one.sources})),
    )


def _type_cost(
    one: NodeType, config: Mapping[str, Any], prices: PriceTable, now_s: float | None
) -> TypeCost:
    provider = mapping(config, "provider")
    region = str(provider.get("region") or provider.get("location") or "")
    markets = _markets(one, provider)
    instance_types = markets.instance_types or (one.instance_type,)
    added = accelerators(one)
    names = [name + added for name in instance_types]
    may_be_on_demand = not markets.spot or markets.fallback == "on-demand"
    found: dict[bool, list[PriceRange]] = {True: [], False: []}
    unknown = []
    for spot in (True, False):
        if not (markets.spot if spot else may_be_on_demand):
            continue
        for name in names:
            if price := prices.find(one.cloud, region, name, spot=spot):
                found[spot].append(price)
            else:
                kind = "spot" if spot else "on-demand"
                unknown.append(f"{name or 'an unnamed type'} {kind} in {region or 'no region'}")
    return TypeCost(
        name=one.name,
        is_head=one.is_head,
        instance_types=tuple(instance_types),
        min_nodes=1 if one.is_head else _count(one, "min_workers", 0),
        max_nodes=1 if one.is_head else _count(one, "max_workers", config.get("max_workers", 0)),
        may_be_spot=markets.spot,
        may_be_on_demand=may_be_on_demand,
        spot=_around(found[True]),
        on_demand=_around(found[False]),
        unknown=tuple(unknown),
        sources=tuple(sources([*found[True], *found[False]], now_s=now_s)),
    )


def _markets(one: NodeType, provider: Mapping[str, Any]) -> NodeMarkets:
    """Where its nodes may come from: as our providers choose, or as the type itself asks."""
    if one.is_head:
        return NodeMarkets(spot=False)
    if provider.get("type") != "external":
        return NodeMarkets(spot=bool(one.spot_path), fallback="wait")
    given = mapping(mapping(provider, "markets"), one.name)
    return NodeMarkets(
        instance_types=tuple(map(str, given.get("instance_types") or ())),
        spot=given.get("spot", True) is not False,
        fallback=str(given.get("fallback", "on-demand")),
    )


def _count(one: NodeType, key: str, default: Any) -> int:
    value = one.given.get(key, default)
    return value if isinstance(value, int) and value > 0 else 0


def _around(prices: Sequence[PriceRange]) -> PriceRange | None:
    """From the lowest of all to the highest of all."""
    if not prices:
        return None
    return PriceRange(
        low_usd_per_hour=min(one.low_usd_per_hour for one in prices),
        high_usd_per_hour=max(one.high_usd_per_hour for one in prices),
    )


def _lowest(types: Iterable[TypeCost], count: int) -> float:
    """The cheapest way to have so many nodes, of those whose price is known."""
    priced = [(one.low_usd_per_hour or 0.0, one) for one in types]
    return _filled(sorted(priced, key=lambda pair: pair[0]), count)


def _highest(types: Iterable[TypeCost], count: int | None) -> float:
    """The dearest way; None: only the least nodes of each type."""
    priced = [(one.high_usd_per_hour or 0.0, one) for one in types]
    if count is None:
        return sum(price * one.min_nodes for price, one in priced)
    return _filled(sorted(priced, key=lambda pair: -pair[0]), count)


def _filled(priced: Sequence[tuple[float, TypeCost]], count: int) -> float:
    """The least nodes of each type, then more of the first ones."""
    total = sum(price * one.min_nodes for price, one in priced)
    left = count - sum(one.min_nodes for _, one in priced)
    for price, one in priced:
        more = max(0, min(left, one.max_nodes - one.min_nodes))
        total += price * more
        left -= more
    return total


def _times(usd_per_hour: float | None, hours: float | None) -> float | None:
    return None if usd_per_hour is None or hours is None else usd_per_hour * hours
