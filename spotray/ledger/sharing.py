"""Who pays for which node time in a sweep.

A node's price is shared by the workers that are on it, whichever trial they serve. Time
of a node without any worker is no trial's: it is told apart, so that the parts add up to
what the sweep cost.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from spotray.events import Event, NodeUp
from spotray.ledger.cost import CostSummary, cost_within
from spotray.ledger.occupancy import Stay
from spotray.ledger.pricing import Life, Money, Prices, Span, clip, lives, saved_frac

UNKNOWN_MARKET = "unknown"


@dataclass(frozen=True, kw_only=True)
class Bill:
    """One trial's part of the node time and its price."""

    money: Money = field(default_factory=Money)
    saved_frac: float | None = None  # of the on-demand cost, where both prices are known
    by_market: Mapping[str, Money] = field(default_factory=dict)
    unseen_nodes: int = 0  # had a worker of it, but nobody saw them come up


@dataclass(frozen=True, kw_only=True)
class SweepCost:
    """What a sweep cost: ``trials``, ``idle`` and ``head`` add up to ``total``."""

    total: CostSummary
    trials: Mapping[str, Bill]
    idle: Money  # of nodes without a worker of any trial
    head: Money  # the same, of the head

    @property
    def overhead_frac(self) -> float | None:
        """What no trial used, as a part of what the trials cost; None if that is unknown."""
        used = sum((bill.money for bill in self.trials.values()), Money()).cost_usd
        rest = (self.idle + self.head).cost_usd
        return None if not used else (rest or 0.0) / used


def share_cost(
    facts: Sequence[Event],
    stays: Sequence[Stay],
    windows: Sequence[Span],
    *,
    trials: Iterable[str],
    until_s: float,
) -> SweepCost:
    """What each trial's share of the node time cost.

    Args:
        facts: about nodes and prices, as `node_facts` gives them.
        stays: where the trials' workers were.
        windows: when the sweep ran; they do not overlap.
        trials: all that began, also those that never had a worker.
        until_s: nodes that are still up count until then, Unix seconds.
    """
    by_node: dict[str, list[Stay]] = defaultdict(list)
    for stay in stays:
        by_node[stay.node_id].append(stay)
    prices = Prices(facts)
    accounts: dict[str, _Account] = defaultdict(_Account)
    idle = head = Money()
    seen = set()
    for life in lives(facts, until_s=until_s):
        seen.add(life.up.node_id)
        for span, workers in _shared(life, windows, by_node[life.up.node_id]):
            money = prices.money(life, span)
            if not workers and life.up.role == "head":
                head += money
            elif not workers:
                idle += money
            together = workers.total()
            for trial, count in workers.items():
                accounts[trial].add(market_of(life.up), money, count / together)
    unseen: dict[str, set[str]] = defaultdict(set)
    for stay in stays:
        if stay.node_id not in seen:
            unseen[stay.trial].add(stay.node_id)
    return SweepCost(
        total=cost_within(facts, windows, until_s=until_s),
        trials={trial: accounts[trial].bill(unseen_nodes=len(unseen[trial])) for trial in trials},
        idle=idle,
        head=head,
    )


def market_of(up: NodeUp) -> str:
    """A node's market, or what else is known of it."""
    return up.market or ("spot" if up.spot else UNKNOWN_MARKET)


def _shared(
    life: Life, windows: Sequence[Span], here: Iterable[Stay]
) -> Iterator[tuple[Span, Counter[str]]]:
    """A node's time inside the windows, cut where its workers change; by trial, their number."""
    changes: dict[float, Counter[str]] = defaultdict(Counter)
    for stay in here:
        if stay.start_s < stay.end_s:
            changes[stay.start_s][stay.trial] += stay.workers
            changes[stay.end_s][stay.trial] -= stay.workers
    spans = clip((life.start_s, life.end_s), windows)
    edges = sorted({*changes, *(edge for span in spans for edge in span)})
    inside = [any(low <= edge < high for low, high in spans) for edge in edges]
    workers: Counter[str] = Counter()
    for (start_s, end_s), is_inside in zip(pairwise(edges), inside, strict=False):
        for trial, change in changes.get(start_s, {}).items():
            workers[trial] += change
            if not workers[trial]:
                del workers[trial]
        if is_inside:
            yield (start_s, end_s), workers


class _Account:
    """Shares of node time, many and small, on their way to a `Bill`."""

    def __init__(self) -> None:
        self._by_market: dict[str, _Tally] = defaultdict(_Tally)
        self._comparable = _Tally()  # shares with both prices for all of their time

    def add(self, market: str, money: Money, frac: float) -> None:
        self._by_market[market].add(money, frac)
        if not (money.unpriced_s or money.on_demand_cost_usd is None):
            self._comparable.add(money, frac)

    def bill(self, *, unseen_nodes: int) -> Bill:
        by_market = {market: tally.money() for market, tally in sorted(self._by_market.items())}
        return Bill(
            money=sum(by_market.values(), Money()),
            saved_frac=saved_frac([self._comparable.money()]),
            by_market=by_market,
            unseen_nodes=unseen_nodes,
        )


@dataclass
class _Tally:
    """A sum of parts of `Money`."""

    seconds: float = 0.0
    cost_usd: float | None = None
    on_demand_cost_usd: float | None = None
    unpriced_s: float = 0.0

    def add(self, money: Money, frac: float) -> None:
        self.seconds += frac * money.seconds
        self.unpriced_s += frac * money.unpriced_s
        if money.cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + frac * money.cost_usd
        if money.on_demand_cost_usd is not None:
            paid = self.on_demand_cost_usd or 0.0
            self.on_demand_cost_usd = paid + frac * money.on_demand_cost_usd

    def money(self) -> Money:
        return Money(
            seconds=self.seconds,
            cost_usd=self.cost_usd,
            on_demand_cost_usd=self.on_demand_cost_usd,
            unpriced_s=self.unpriced_s,
        )
