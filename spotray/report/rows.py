"""What a run's page shows, as rows of plain values: folds over facts, no picture yet."""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from numbers import Real

from spotray.events import (
    Drained,
    Event,
    FellBack,
    JobEnded,
    NodeReady,
    NoticeCancelled,
    NoticeReceived,
    Reported,
    StepsDone,
    TrainingDone,
)
from spotray.ledger.account import Account
from spotray.ledger.cost import NodeCost, job_windows, node_facts
from spotray.ledger.describe import short
from spotray.ledger.history import Group, groups
from spotray.ledger.pricing import Money, Prices, Span, clip, lives
from spotray.ledger.recovery import NodeNews

# What a node does; a time line has one colour and one pattern for each.
STARTING, SPOT, ON_DEMAND, NOTICED, DRAINING = (
    "starting",
    "spot",
    "on-demand",
    "under notice",
    "draining",
)
_METRICS = 12  # more are left to TensorBoard
_COUNTS = ("step", "epoch")  # are told beside every report


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One state of one machine, Unix seconds."""

    machine: str
    market: str
    state: str
    start_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A machine that went. ``kind``: noticed, silent (no notice) or failure."""

    node_id: str
    machine: str
    kind: str
    at_s: float


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Values over time, of which at most as many are kept as a picture can show."""

    name: str
    at_s: tuple[float, ...] = ()
    values: tuple[float, ...] = ()
    steps: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class MoneyRow:
    """The price of the node time up to a time, as it is and on demand."""

    at_s: float
    cost_usd: float
    on_demand_usd: float


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Everything that pictures are made of."""

    bars: tuple[Bar, ...] = ()
    losses: tuple[Loss, ...] = ()
    world: tuple[tuple[float, int], ...] = ()  # from when, how many workers; 0: all were gone
    throughput: Curve = field(default_factory=lambda: Curve(name="samples per second"))
    curves: tuple[Curve, ...] = ()  # the loss, then the user's own metrics
    more_metrics: tuple[str, ...] = ()  # that have no curve
    money: tuple[MoneyRow, ...] = ()


def rows_of(
    events: Sequence[Event], bill: Account, *, points: int = 1000, until_s: float | None = None
) -> Rows:
    """The rows of one job.

    Args:
        events: by time.
        bill: the same facts' `account`.
        points: in one curve, at most about.
        until_s: of the bill, Unix seconds; default: the last event's time.
    """
    losses = tuple(losses_of(events, {node.node_id: node for node in bill.nodes}))
    curves, more = _curves(events, points)
    world = tuple(world_of(events))
    return Rows(
        bars=tuple(bars_of(events, bill.nodes)),
        losses=losses,
        world=world,
        throughput=_throughput(events, world, points),
        curves=curves,
        more_metrics=more,
        money=tuple(money_over_time(events, bill, until_s=until_s)),
    )


def bars_of(events: Iterable[Event], nodes: Sequence[NodeCost]) -> Iterator[Bar]:
    """What each machine did while it was paid for, in the order of the nodes."""
    news: dict[str, list[tuple[float, str]]] = defaultdict(list)
    joins: set[str] = set()
    for event in events:
        if isinstance(event, NodeReady):
            joins.add(event.node_id)
        if isinstance(event, NodeReady | NoticeCancelled):
            news[event.node_id].append((event.at_s, "ready"))
        elif isinstance(event, NoticeReceived):
            news[event.node_id].append((event.at_s, NOTICED))
        elif isinstance(event, Drained):
            news[event.node_id].append((event.at_s, DRAINING))
    for node in nodes:
        told = news[node.node_id]
        runs = SPOT if node.spot else ON_DEMAND
        state = STARTING if node.node_id in joins else runs
        since_s = node.start_s
        for at_s, what in [*sorted(told), (node.end_s, "end")]:
            if state == DRAINING and what == NOTICED:
                continue  # a notice is said again and again
            then = runs if what == "ready" else what
            cut_s = min(max(at_s, node.start_s), node.end_s)
            if cut_s > since_s and then != state:
                yield Bar(
                    machine=machine_of(node),
                    market=node.market,
                    state=state,
                    start_s=since_s,
                    end_s=cut_s,
                )
                since_s = cut_s
            state = then


def machine_of(node: NodeCost) -> str:
    """A node's name, or enough of its id."""
    return node.name or short(node.node_id)


def losses_of(events: Sequence[Event], nodes: Mapping[str, NodeCost]) -> Iterator[Loss]:
    """The machines that were lost while the job ran; those that were let go are none."""
    news = NodeNews(events)
    for node_id, down in sorted(news.downs.items(), key=lambda item: item[1].at_s):
        node = nodes.get(node_id)
        if node is None or down.cause == "shutdown" or down.at_s > node.end_s:
            continue
        kind = "failure"
        if down.cause != "failure":
            kind = "noticed" if news.was_noticed(node_id) else "silent"
        yield Loss(node_id=node_id, machine=machine_of(node), kind=kind, at_s=down.at_s)


def money_over_time(
    events: Sequence[Event], bill: Account, *, parts: int = 200, until_s: float | None = None
) -> Iterator[MoneyRow]:
    """Node time's price up to some moments; the last row has the bill's totals."""
    if until_s is None:
        until_s = events[-1].at_s if events else 0.0
    facts = node_facts(events)
    windows = job_windows(facts, until_s=until_s)
    if not bill.nodes or not windows:
        return
    low, high = windows[0][0], windows[-1][1]
    prices, ran = Prices(facts), lives(facts, until_s=until_s)
    paid = Money()
    yield MoneyRow(at_s=low, cost_usd=0.0, on_demand_usd=0.0)
    for part in range(parts):
        span = (low + (high - low) * part / parts, low + (high - low) * (part + 1) / parts)
        for life in ran:
            cut = (max(span[0], life.start_s), min(span[1], life.end_s))
            if cut[0] < cut[1]:
                paid = sum((prices.money(life, one) for one in clip(cut, windows)), paid)
        yield MoneyRow(
            at_s=span[1],
            cost_usd=paid.cost_usd or 0.0,
            on_demand_usd=paid.on_demand_cost_usd or 0.0,
        )


def world_of(events: Sequence[Event]) -> Iterator[tuple[float, int]]:
    """How many workers trained together, from each change on.

    From a group's loss to a next one whose members kept their processes it is the old
    number; none is left when all nodes are gone, when live recovery cannot go on at once,
    when the group's processes were ended for another start, and when training is over.
    """
    history = [group for group in groups(events) if group.world_size]
    downs = {node_id: down.at_s for node_id, down in NodeNews(events).downs.items()}
    ends = sorted(e.at_s for e in events if isinstance(e, FellBack | TrainingDone | JobEnded))
    since_s = float("-inf")  # the clocks of two drivers may not agree
    for group, later in zip_longest(history, history[1:]):
        start_s = since_s = max(since_s, group.started_s)
        yield start_s, group.world_size
        known = ends[bisect.bisect_left(ends, start_s) :][:1]
        known += [max(downs[n] for n in group.node_ids)] if _all_in(group.node_ids, downs) else []
        known += _given_up_s(group, later)
        gone_s = max(start_s, min(known, default=math.inf))
        if gone_s < (math.inf if later is None else later.started_s):
            yield gone_s, 0
            since_s = gone_s


def _given_up_s(group: Group, later: Group | None) -> list[float]:
    """When the processes of a group ended, if all did and the group's own facts tell."""
    told = [fact.at_s for fact in (group.lost, group.agreed) if fact is not None]
    if later is not None and later.life == group.life:
        goes_on = later.live
    elif later is not None:
        goes_on = False  # another driver began with new ones
    elif group.lost is None:
        goes_on = True
    else:  # a live group lost members; any other is given up as a whole
        goes_on = group.lost.cause == "loss" and not _all_in(
            group.node_ids, group.lost.lost_node_ids
        )
    if goes_on:
        return []
    return [min(told)] if told else [group.last_step_s or group.started_s]


def _all_in(node_ids: Sequence[str], known: Iterable[str]) -> bool:
    return bool(node_ids) and set(node_ids) <= set(known)


def _throughput(events: Iterable[Event], world: Sequence[tuple[float, int]], points: int) -> Curve:
    """Samples per second, over batches of steps; many batches become one point.

    It is zero from the last step before a time without workers to the first one after it.
    """
    done = [event for event in events if isinstance(event, StepsDone) and event.seconds > 0]
    gaps = [(low[0], high[0]) for low, high in pairwise(world) if not low[1]]
    size = max(1, math.ceil(len(done) / points))
    told: list[tuple[float, float, int]] = []  # when, value, step
    for run in _runs(done, gaps):
        if told:
            last_s, _, step = told[-1]
            told += [(last_s, 0.0, step), (run[0].at_s - run[0].seconds, 0.0, step)]
        for first in range(0, len(run), size):
            batch = run[first : first + size]
            value = sum(e.samples for e in batch) / sum(e.seconds for e in batch)
            told.append((batch[-1].at_s, value, batch[-1].last_step))
    return Curve(
        name="samples per second",
        at_s=tuple(one[0] for one in told),
        values=tuple(one[1] for one in told),
        steps=tuple(one[2] for one in told),
    )


def _runs(done: Iterable[StepsDone], gaps: Sequence[Span]) -> Iterator[list[StepsDone]]:
    """Batches of steps, cut where a gap lies between two of them."""
    ends = [high for _, high in gaps]
    run: list[StepsDone] = []
    for event in done:
        if run:
            last_s, next_s = run[-1].at_s, event.at_s - event.seconds
            at = bisect.bisect_right(ends, last_s)
            if last_s < next_s and at < len(gaps) and gaps[at][0] < next_s:
                yield run
                run = []
        run.append(event)
    if run:
        yield run


def _curves(events: Iterable[Event], points: int) -> tuple[tuple[Curve, ...], tuple[str, ...]]:
    told: dict[str, list[tuple[float, float, int]]] = {"loss": []}
    for event in events:
        if isinstance(event, StepsDone) and event.loss is not None and math.isfinite(event.loss):
            told["loss"].append((event.at_s, event.loss, event.last_step))
        elif isinstance(event, Reported):
            for name, value in event.metrics.items():
                if is_number(value) and name not in _COUNTS:
                    of_user = f"{name} (reported)" if name == "loss" else str(name)
                    told.setdefault(of_user, []).append((event.at_s, float(value), event.step))
    names = [name for name, seen in told.items() if seen]
    curves = tuple(thinned(name, told[name], points) for name in names[: _METRICS + 1])
    return curves, tuple(names[_METRICS + 1 :])


def is_number(value: object) -> bool:
    """Whether a metric can be drawn."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def thinned(name: str, seen: Sequence[tuple[float, float, int]], points: int) -> Curve:
    """A curve of (time, value, step).

    Of many values the least and the most of each part stay, and the last of all.
    """
    size = max(1, math.ceil(2 * len(seen) / points))
    kept: list[tuple[float, float, int]] = []
    for first in range(0, len(seen), size):
        part = seen[first : first + size]
        ends = {min(part, key=lambda one: one[1]), max(part, key=lambda one: one[1])}
        kept += sorted(ends)
    if kept and kept[-1] != seen[-1]:
        kept.append(seen[-1])
    return Curve(
        name=name,
        at_s=tuple(one[0] for one in kept),
        values=tuple(one[1] for one in kept),
        steps=tuple(one[2] for one in kept),
    )
