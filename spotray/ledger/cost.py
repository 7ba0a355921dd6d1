"""What a job's nodes cost: a fold over facts, with nothing guessed.

A node is paid from its `NodeUp` to its `NodeDown`, at the price in force, as far as
the job ran meanwhile. Time without a known price is counted as such, never as free.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from spotray.events import (
    Event,
    JobEnded,
    JobStarted,
    NodeDown,
    NodeUp,
    PriceChanged,
    WorkerGroupStarted,
    encode,
)

_Fact = JobStarted | JobEnded | NodeUp | NodeDown | PriceChanged | WorkerGroupStarted
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


@dataclass(frozen=True, kw_only=True)
class NodeCost:
    """One node's part, inside the job's time."""

    node_id: str
    name: str
    market: str
    role: str
    spot: bool
    start_s: float  # Unix seconds; first and last moment that count
    end_s: float
    money: Money


@dataclass(frozen=True, kw_only=True)
class CostSummary:
    """What a job cost, and what it would have cost on demand."""

    total: Money
    saved_frac: float | None  # of the on-demand cost, where both prices are known
    by_kind: dict[str, Money]  # "spot", "on-demand"
    by_market: dict[str, Money]
    nodes: tuple[NodeCost, ...]  # by start
    unseen_nodes: int = 0  # took part in training, but nobody saw them come up


def cost(
    events: Iterable[Event], *, from_s: float | None = None, until_s: float | None = None
) -> CostSummary:
    """Price of all node time of a job.

    The job's time is from each `JobStarted` to its `JobEnded`; a job that started
    again without an end never stopped. Without any `JobStarted` all time counts, so a
    cluster's journal can be priced alone. Events may come in any order.

    Args:
        from_s: leave out what was before, Unix seconds.
        until_s: leave out what came after; nodes still up and jobs still running count
            until then. Default: the last event's time.
    """
    everything = list(events)
    end_s = until_s
    if end_s is None:
        end_s = max((event.at_s for event in everything), default=0.0)
    # One order for events of one time, whoever wrote them first.
    facts: list[Event] = sorted(
        (event for event in everything if isinstance(event, _Fact)),
        key=lambda event: (event.at_s, encode(event)),
    )
    windows = _windows(facts, from_s=from_s, until_s=end_s)
    prices = _Prices(facts)
    nodes = [
        _node_cost(life, clipped, prices)
        for life in _lives(facts, until_s=end_s)
        if (clipped := _clip((life.start_s, life.end_s), windows))
    ]
    members = {n for e in facts if isinstance(e, WorkerGroupStarted) for n in e.node_ids}
    seen = {e.node_id for e in facts if isinstance(e, NodeUp)}
    return CostSummary(
        total=sum((node.money for node in nodes), Money()),
        saved_frac=_saved(nodes),
        by_kind=_grouped(nodes, lambda node: "spot" if node.spot else "on-demand"),
        by_market=_grouped(nodes, lambda node: node.market or "unknown"),
        nodes=tuple(nodes),
        unseen_nodes=len(members - seen),
    )


@dataclass(frozen=True)
class _Life:
    """One node's up-time; ``up`` describes it, with a price if anybody knew one."""

    up: NodeUp
    start_s: float
    end_s: float


def _lives(facts: Sequence[Event], *, until_s: float) -> list[_Life]:
    ups: dict[str, list[NodeUp]] = defaultdict(list)
    downs: dict[str, float] = {}
    for event in facts:
        if isinstance(event, NodeUp):
            ups[event.node_id].append(event)
        elif isinstance(event, NodeDown):
            downs.setdefault(event.node_id, event.at_s)
    lives = []
    for node_id, seen in ups.items():
        start_s = seen[0].at_s
        told = next((up for up in seen if up.usd_per_hour is not None), seen[0])
        end_s = max(start_s, min(downs.get(node_id, until_s), until_s))
        lives.append(_Life(told, start_s, end_s))
    lives.sort(key=lambda life: (life.start_s, life.up.node_id))
    return _without_rejoins(lives)


def _without_rejoins(lives: list[_Life]) -> list[_Life]:
    """A machine that came back under a new node id is one machine: paid once."""
    result = []
    successor_s: dict[str, float] = {}  # by name: when the next life begins
    for life in reversed(lives):
        end_s = life.end_s
        if name := life.up.name:
            end_s = min(end_s, successor_s.get(name, end_s))
            successor_s[name] = life.start_s
        result.append(_Life(life.up, life.start_s, end_s))
    return result[::-1]


class _Prices:
    """The price in force in each market, as far as its changes were seen."""

    def __init__(self, facts: Sequence[Event]) -> None:
        self._changes: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for event in facts:
            if isinstance(event, PriceChanged):
                self._changes[event.market].append((event.at_s, event.usd_per_hour))
        for changes in self._changes.values():
            changes.sort()  # of two prices at one time the higher one holds

    def cost(self, life: _Life, span: Span) -> tuple[float | None, float]:
        """(USD or None, seconds without a price) of a node's life inside ``span``."""
        changes = self._changes.get(life.up.market, []) if life.up.market else []
        at_birth = bisect.bisect_right(changes, (life.start_s, float("inf")))
        price = life.up.usd_per_hour
        if at_birth and (price is None or changes[at_birth - 1][0] == life.start_s):
            price = changes[at_birth - 1][1]
        total, unpriced_s, since_s = None, 0.0, life.start_s
        for change_s, next_price in [*changes[at_birth:], (float("inf"), 0.0)]:
            seconds = min(change_s, span[1]) - max(since_s, span[0])
            if seconds > 0 and price is None:
                unpriced_s += seconds
            elif seconds > 0 and price is not None:
                total = (total or 0.0) + seconds / 3600 * price
            price, since_s = next_price, change_s
        return total, unpriced_s


def _node_cost(life: _Life, spans: Sequence[Span], prices: _Prices) -> NodeCost:
    up, money = life.up, Money()
    on_demand = up.on_demand_usd_per_hour
    for span in spans:
        seconds = span[1] - span[0]
        usd, unpriced_s = prices.cost(life, span)
        if on_demand is not None:
            on_demand_usd: float | None = seconds / 3600 * on_demand
        else:  # an on-demand node is its own comparison
            on_demand_usd = None if up.spot else usd
        money += Money(
            seconds=seconds,
            cost_usd=usd,
            on_demand_cost_usd=on_demand_usd,
            unpriced_s=unpriced_s,
        )
    return NodeCost(
        node_id=up.node_id,
        name=up.name,
        market=up.market,
        role=up.role,
        spot=up.spot,
        start_s=spans[0][0],
        end_s=spans[-1][1],
        money=money,
    )


def _windows(facts: Sequence[Event], *, from_s: float | None, until_s: float) -> list[Span]:
    spans: list[Span] = []
    open_s: float | None = None
    for event in facts:
        if isinstance(event, JobStarted) and open_s is None:
            open_s = event.at_s
        elif isinstance(event, JobEnded) and open_s is not None:
            spans.append((open_s, event.at_s))
            open_s = None
    if open_s is not None:
        spans.append((open_s, until_s))
    elif not spans:
        spans.append((facts[0].at_s if facts else 0.0, until_s))
    limits = (from_s if from_s is not None else float("-inf"), until_s)
    return _clip(limits, spans)


def _clip(span: Span, windows: Iterable[Span]) -> list[Span]:
    cut = ((max(span[0], low), min(span[1], high)) for low, high in windows)
    return [(low, high) for low, high in cut if low < high]


def _saved(nodes: Iterable[NodeCost]) -> float | None:
    paid = on_demand = 0.0
    for node in nodes:
        money = node.money
        if money.cost_usd is None or money.on_demand_cost_usd is None or money.unpriced_s:
            continue  # the two sums must be about the same node time
        paid += money.cost_usd
        on_demand += money.on_demand_cost_usd
    return 1.0 - paid / on_demand if on_demand > 0 else None


def _grouped(nodes: Iterable[NodeCost], key: Callable[[NodeCost], str]) -> dict[str, Money]:
    groups: dict[str, Money] = {}
    for node in nodes:
        groups[key(node)] = groups.get(key(node), Money()) + node.money
    return dict(sorted(groups.items()))


def _sum(a: float | None, b: float | None) -> float | None:
    if a is None or b is None:
        return b if a is None else a
    return a + b
