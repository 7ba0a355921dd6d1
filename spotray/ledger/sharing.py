"""Who pays for which node time in a sweep.

A node's price is shared by the workers that are on it, whichever trial they serve. Time
of a node without any worker is no trial's: it is told apart, so that the parts add up to
what the sweep cost.
"""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise

from spotray.events import Event, NodeUp
from spotray.ledger.activity import AFTER_TRAINING, Activity, activities
from spotray.ledger.cost import CostSummary, cost_within
from spotray.ledger.occupancy import RunLife, Stay
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


def share_causes(
    facts: Sequence[Event],
    stays: Sequence[Stay],
    windows: Sequence[Span],
    *,
    does: Mapping[str, Sequence[Activity]],
    until_s: float,
) -> dict[str, Money]:
    """The trials' shares by what each trial did meanwhile; most seconds first.

    With a sweep's ``idle`` and ``head`` they add up to its total.

    Args:
        facts, stays, windows, until_s: as for `share_cost`.
        does: what each trial did, by time and without overlap; the rest of its stays is
            counted as after its training.
    """
    by_node: dict[str, list[Stay]] = defaultdict(list)
    for stay in stays:
        by_node[stay.node_id].append(stay)
    ends = {trial: [one.end_s for one in its] for trial, its in does.items()}
    prices = Prices(facts)
    tallies: dict[str, _Tally] = defaultdict(_Tally)
    for life in lives(facts, until_s=until_s):
        for span, workers in _shared(life, windows, by_node[life.up.node_id]):
            for trial, count in workers.items():
                its = does.get(trial, ())
                first = bisect.bisect_right(ends.get(trial, []), span[0])
                for name, part in _named(span, islice(its, first, None)):
                    tallies[name].add(prices.money(life, part), count / workers.total())
    found = {name: tally.money() for name, tally in tallies.items()}
    return dict(sorted(found.items(), key=lambda item: -item[1].seconds))


def trial_activities(its_lives: Sequence[RunLife]) -> list[Activity]:
    """What a trial did in the lives of its runs, by time; steps survive over all of a run."""
    runs: dict[str, list[RunLife]] = defaultdict(list)
    for life in its_lives:
        runs[life.run].append(life)
    found = []
    for own in runs.values():
        spans = [(life.start_s, life.end_s) for life in own]
        events = [event for life in own for event in life.events]
        for one in activities(events, until_s=spans[-1][1]):
            for low, high in clip((one.start_s, one.end_s), spans):
                found.append(Activity(one.name, low, high))
    return sorted(found, key=lambda one: one.start_s)


def _named(span: Span, does: Iterable[Activity]) -> Iterator[tuple[str, Span]]:
    """A span in pieces, each with the name of what was done in it."""
    since_s, end_s = span
    for one in does:
        if one.start_s >= end_s:
            break
        if one.start_s > since_s:
            yield AFTER_TRAINING, (since_s, one.start_s)
        low, since_s = max(since_s, one.start_s), min(one.end_s, end_s)
        yield one.name, (low, since_s)
    if since_s < end_s:
        yield AFTER_TRAINING, (since_s, end_s)


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
