"""What a job's nodes cost: a fold over facts, with nothing guessed.

A node is paid from its `NodeUp` to its `NodeDown`, at the price in force, as far as
the job ran meanwhile. Time without a known price is counted as such, never as free.
"""

from __future__ import annotations

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
from spotray.ledger.pricing import Life, Money, Prices, Span, clip, lives, saved_frac

_Fact = JobStarted | JobEnded | NodeUp | NodeDown | PriceChanged | WorkerGroupStarted


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
    price_from: str = ""  # as the node's `NodeUp` has it


@dataclass(frozen=True, kw_only=True)
class CostSummary:
    """What a job cost, and what it would have cost on demand."""

    total: Money
    saved_frac: float | None  # of the on-demand cost, where both prices are known
    by_kind: dict[str, Money]  # "spot", "on-demand"
    by_market: dict[str, Money]
    nodes: tuple[NodeCost, ...]  # by start
    unseen_nodes: int = 0  # took part in training, but nobody saw them come up
    price_lists: tuple[str, ...] = ()  # that prices are from which nobody was billed


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
    facts = node_facts(everything)
    return cost_within(facts, job_windows(facts, from_s=from_s, until_s=end_s), until_s=end_s)


def node_facts(events: Iterable[Event]) -> list[Event]:
    """The events that tell of money, in one order, whoever wrote those of one time first."""
    return sorted(
        (event for event in events if isinstance(event, _Fact)),
        key=lambda event: (event.at_s, encode(event)),
    )


def cost_within(facts: Sequence[Event], windows: Sequence[Span], *, until_s: float) -> CostSummary:
    """Price of all node time inside some windows, whatever jobs ran in them.

    Args:
        facts: as `node_facts` gives them.
        windows: that do not overlap.
        until_s: nodes that are still up count until then, Unix seconds.
    """
    prices = Prices(facts)
    nodes = [
        _node_cost(life, clipped, prices)
        for life in lives(facts, until_s=until_s)
        if (clipped := clip((life.start_s, life.end_s), windows))
    ]
    members = {n for e in facts if isinstance(e, WorkerGroupStarted) for n in e.node_ids}
    seen = {e.node_id for e in facts if isinstance(e, NodeUp)}
    return CostSummary(
        total=sum((node.money for node in nodes), Money()),
        saved_frac=saved_frac(node.money for node in nodes),
        by_kind=_grouped(nodes, lambda node: "spot" if node.spot else "on-demand"),
        by_market=_grouped(nodes, lambda node: node.market or "unknown"),
        nodes=tuple(nodes),
        unseen_nodes=len(members - seen),
        price_lists=tuple(sorted({node.price_from for node in nodes} - {""})),
    )


def _node_cost(life: Life, spans: Sequence[Span], prices: Prices) -> NodeCost:
    up = life.up
    return NodeCost(
        node_id=up.node_id,
        name=up.name,
        market=up.market,
        role=up.role,
        spot=up.spot,
        start_s=spans[0][0],
        end_s=spans[-1][1],
        money=sum((prices.money(life, span) for span in spans), Money()),
        price_from=up.price_from,
    )


def job_windows(
    facts: Sequence[Event], *, from_s: float | None = None, until_s: float
) -> list[Span]:
    """When a job ran, from facts by time; all the time if no fact tells of a job."""
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
    return clip(limits, spans)


def _grouped(nodes: Iterable[NodeCost], key: Callable[[NodeCost], str]) -> dict[str, Money]:
    groups: dict[str, Money] = {}
    for node in nodes:
        groups[key(node)] = groups.get(key(node), Money()) + node.money
    return dict(sorted(groups.items()))
