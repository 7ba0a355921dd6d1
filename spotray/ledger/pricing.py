"""Node time and its price: when each node ran, and what any part of that time cost."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spotray.events import Event, NodeDown, NodeUp, PriceChanged

Span = tuple[float, float]  # from, to; Unix seconds


@dataclass(frozen=True, kw_only=True)
class Money:
    """Node time and its price. Sums cover the time whose price is known."""

    seconds: float = 0.0  # node time
    cost_usd: float | None = None  # None: not one second has a price
    on_demand_cost_usd: float | None = None  # the same time, on demand
    unpriced_s: float = 0.0  # node time without a known price

    def __add__(self, other: Money) -> Money:
        return Money(
            seconds=self.seconds + other.seconds,
            cost_usd=_sum(self.cost_usd, other.cost_usd),
            on_demand_cost_usd=_sum(self.on_demand_cost_usd, other.on_demand_cost_usd),
            unpriced_s=self.unpriced_s + other.unpriced_s,
        )


def part_of(money: Money, frac: float) -> Money:
    """A part of some node time, and of its price."""
    return Money(
        seconds=frac * money.seconds,
        cost_usd=_scaled(money.cost_usd, frac),
        on_demand_cost_usd=_scaled(money.on_demand_cost_usd, frac),
        unpriced_s=frac * money.unpriced_s,
    )


def saved_frac(parts: Iterable[Money]) -> float | None:
    """Of the on-demand cost; None where no part has both prices for all of its time."""
    paid = on_demand = 0.0
    for money in parts:
        if money.cost_usd is None or money.on_demand_cost_usd is None or money.unpriced_s:
            continue  # the two sums must be about the same node time
        paid += money.cost_usd
        on_demand += money.on_demand_cost_usd
    return 1.0 - paid / on_demand if on_demand > 0 else None


@dataclass(frozen=True)
class Life:
    """One node's up-time; ``up`` describes it, with a price if anybody knew one."""

    up: NodeUp
    start_s: float
    end_s: float


def lives(facts: Sequence[Event], *, until_s: float) -> list[Life]:
    """When each node ran, by start. Facts by time; who is still up counts until ``until_s``."""
    ups: dict[str, list[NodeUp]] = defaultdict(list)
    downs: dict[str, float] = {}
    for event in facts:
        if isinstance(event, NodeUp):
            ups[event.node_id].append(event)
        elif isinstance(event, NodeDown):
            downs.setdefault(event.node_id, event.at_s)
    found = []
    for node_id, seen in ups.items():
        start_s = seen[0].at_s
        told = next((up for up in seen if up.usd_per_hour is not None), seen[0])
        end_s = max(start_s, min(downs.get(node_id, until_s), until_s))
        found.append(Life(told, start_s, end_s))
    found.sort(key=lambda life: (life.start_s, life.up.node_id))
    return _without_rejoins(found)


def _without_rejoins(found: list[Life]) -> list[Life]:
    """A machine that came back under a new node id is one machine: paid once."""
    result = []
    successor_s: dict[str, float] = {}  # by name: when the next life begins
    for life in reversed(found):
        end_s = life.end_s
        if name := life.up.name:
            end_s = min(end_s, successor_s.get(name, end_s))
            successor_s[name] = life.start_s
        result.append(Life(life.up, life.start_s, end_s))
    return result[::-1]


class Prices:
    """The price in force in each market, as far as its changes were seen."""

    def __init__(self, facts: Iterable[Event]) -> None:
        self._changes: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for event in facts:
            if isinstance(event, PriceChanged):
                self._changes[event.market].append((event.at_s, event.usd_per_hour))
        for changes in self._changes.values():
            changes.sort()  # of two prices at one time the higher one holds

    def money(self, life: Life, span: Span) -> Money:
        """Price of one node's time in ``span``, which lies inside its life."""
        seconds = span[1] - span[0]
        usd, unpriced_s = self._cost(life, span)
        on_demand = life.up.on_demand_usd_per_hour
        if on_demand is not None:
            on_demand_usd: float | None = seconds / 3600 * on_demand
        else:  # an on-demand node is its own comparison
            on_demand_usd = None if life.up.spot else usd
        return Money(
            seconds=seconds,
            cost_usd=usd,
            on_demand_cost_usd=on_demand_usd,
            unpriced_s=unpriced_s,
        )

    def _cost(self, life: Life, span: Span) -> tuple[float | None, float]:
        """Dollars over ``span``, and the seconds in it without a price.

        The price of a node's own `NodeUp` holds from its start to the next change of
        its market's.
        """
        changes = self._changes.get(life.up.market, []) if life.up.market else []
        at_birth = bisect.bisect_right(changes, (life.start_s, float("inf")))
        price = life.up.usd_per_hour
        if at_birth and (price is None or changes[at_birth - 1][0] == life.start_s):
            price = changes[at_birth - 1][1]
        first = bisect.bisect_right(changes, (span[0], float("inf")))
        if first > at_birth:
            price = changes[first - 1][1]
        first = max(first, at_birth)
        total, unpriced_s, since_s = None, 0.0, span[0]
        for change_s, next_price in [*_before(changes, first, span[1]), (span[1], 0.0)]:
            seconds = change_s - since_s
            if seconds > 0 and price is None:
                unpriced_s += seconds
            elif seconds > 0 and price is not None:
                total = (total or 0.0) + seconds / 3600 * price
            price, since_s = next_price, change_s
        return total, unpriced_s


def clip(span: Span, windows: Iterable[Span]) -> list[Span]:
    """The parts of ``span`` that lie in a window."""
    cut = ((max(span[0], low), min(span[1], high)) for low, high in windows)
    return [(low, high) for low, high in cut if low < high]


def _before(
    changes: Sequence[tuple[float, float]], first: int, end_s: float
) -> Sequence[tuple[float, float]]:
    return changes[first : bisect.bisect_left(changes, (end_s, float("-inf")))]


def _scaled(usd: float | None, frac: float) -> float | None:
    return None if usd is None else frac * usd


def _sum(a: float | None, b: float | None) -> float | None:
    if a is None or b is None:
        return b if a is None else a
    return a + b
