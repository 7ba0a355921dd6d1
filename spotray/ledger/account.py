"""A run's whole bill: node time by every cut, the clouds' terms, disks, and what else it says.

Each cut (kind, market, zone, cause, week, node) adds up to the price of the node time;
that, the charges and the disks add up to the bill.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from spotray.events import (
    DiskDeleted,
    DiskMounted,
    Event,
    JobEnded,
    JobStarted,
    NodeDown,
    NodeUp,
    PriceChanged,
    StepsDone,
)
from spotray.ledger.activity import AFTER_TRAINING, Activity, activities
from spotray.ledger.charges import Charge, DiskCost, charges, disk_costs
from spotray.ledger.cost import CostSummary, cost_within, job_windows, node_facts
from spotray.ledger.describe import short
from spotray.ledger.history import Group, groups
from spotray.ledger.pricing import Life, Money, Prices, Span, clip, lives

_JUMP_S = 1.0  # clocks of machines that agree may differ by that much
# A step is doubted that takes so long, and so many times as long as others.
_LONG_STEP_S, _LONG_STEP = 600.0, 50.0
_TOLD = 3  # of many alike


@dataclass(frozen=True, kw_only=True)
class SameSteps:
    """The job's surviving steps on the same nodes, on demand and never disturbed.

    Each step takes as long as it did, and the first start is paid once; what losses,
    saving and waiting took is left out, so this is the least that on-demand would cost.
    """

    seconds: float = 0.0  # wall time
    node_s: float = 0.0
    cost_usd: float | None = None  # None: no on-demand price is known
    unpriced_s: float = 0.0  # node time without an on-demand price


@dataclass(frozen=True, kw_only=True)
class Account(CostSummary):
    """What a run cost, in every cut, with what the sums leave out."""

    by_zone: dict[str, Money] = field(default_factory=dict)
    by_cause: dict[str, Money] = field(default_factory=dict)  # what the job did meanwhile
    by_week: dict[str, Money] = field(default_factory=dict)  # ISO weeks, UTC
    charges: tuple[Charge, ...] = ()
    disks: tuple[DiskCost, ...] = ()
    same_steps: SameSteps = field(default_factory=SameSteps)
    labels: dict[str, str] = field(default_factory=dict)  # the user's own
    left_out: tuple[str, ...] = ()  # what the sums do not cover, or took on trust

    @property
    def billed_usd(self) -> float | None:
        """Node time with charges and disks; None where not one price is known."""
        parts = [self.total.cost_usd, *(one.usd for one in self.charges)]
        known = [
            one for one in (*parts, *(disk.cost_usd for disk in self.disks)) if one is not None
        ]
        return math.fsum(known) if known else None


def account(
    events: Iterable[Event],
    *,
    until_s: float | None = None,
    damaged_lines: int = 0,
    unfinished_lines: int = 0,
    windows: Sequence[Span] | None = None,
) -> Account:
    """Everything that a run's journals say of its money.

    Args:
        until_s: leave out what came after; nodes still up and jobs still running count
            until then. Default: the last event's time.
        damaged_lines, unfinished_lines: of the journals, to be told.
        windows: when several jobs ran that shared the nodes; then no cut by cause is made, nor
            are steps priced. Default: one job's, as its facts tell.
    """
    everything = sorted(events, key=lambda event: event.at_s)
    if until_s is None:
        until_s = everything[-1].at_s if everything else 0.0
    facts = node_facts(everything)
    one_job = windows is None
    if windows is None:
        windows = job_windows(facts, until_s=until_s)
    summary = cost_within(facts, windows, until_s=until_s)
    ran = lives(facts, until_s=until_s)
    prices = Prices(facts)
    does = activities(everything, until_s=until_s) if one_job else []
    return Account(
        **{f.name: getattr(summary, f.name) for f in dataclasses.fields(CostSummary)},
        by_zone=grouped((zone_of(node.market), node.money) for node in summary.nodes),
        by_cause=by_cause(ran, prices, does, windows) if one_job else {},
        by_week=grouped(_by_week(ran, prices, windows)),
        charges=tuple(charges(facts, windows, until_s=until_s)),
        disks=tuple(disk_costs(everything, windows, until_s=until_s)),
        same_steps=same_steps(everything, does) if one_job else SameSteps(),
        labels={
            str(key): str(value)
            for event in everything
            if isinstance(event, JobStarted)
            for key, value in event.labels.items()
        },
        left_out=tuple(
            [
                *_lines(damaged_lines, unfinished_lines),
                *doubts(everything, ran, summary, until_s=until_s),
            ]
        ),
    )


def zone_of(market: str) -> str:
    """Cloud and zone of a market's name.

    >>> zone_of("aws/us-east-1a/g5.xlarge/spot"), zone_of("")
    ('aws/us-east-1a', 'unknown')
    """
    parts = market.split("/")
    return "/".join(parts[:2]) if len(parts) == 4 else "unknown"


def by_cause(
    ran: Sequence[Life], prices: Prices, does: Sequence[Activity], windows: Sequence[Span]
) -> dict[str, Money]:
    """Node time and its price by what the job did meanwhile; most seconds first."""
    spans: dict[str, list[Span]] = defaultdict(list)
    for one in does:
        spans[one.name] += clip((one.start_s, one.end_s), windows)
    if does:
        for low, high in windows:
            spans[AFTER_TRAINING] += clip((max(low, does[-1].end_s), high), windows)
            spans["before the job"] += clip((low, min(high, does[0].start_s)), windows)
    else:
        spans["no job"] = list(windows)
    found = {}
    for name, its_spans in spans.items():
        moneys = [
            prices.money(life, (max(low, life.start_s), min(high, life.end_s)))
            for life in ran
            for low, high in its_spans
            if max(low, life.start_s) < min(high, life.end_s)
        ]
        if moneys:
            found[name] = sum(moneys, Money())
    return dict(sorted(found.items(), key=lambda item: -item[1].seconds))


def weeks(span: Span) -> Iterator[tuple[str, Span]]:
    """A span cut at the starts of ISO weeks (Monday, 00:00 UTC), each with its name.

    >>> [name for name, _ in weeks((0.0, 8 * 86400.0))]
    ['1970-W01', '1970-W02']
    """
    low, high = span
    while low < high:
        day = datetime.fromtimestamp(low, UTC)
        monday = datetime(day.year, day.month, day.day, tzinfo=UTC) - timedelta(days=day.weekday())
        end_s = min(high, (monday + timedelta(days=7)).timestamp())
        year, week, _ = day.isocalendar()
        yield f"{year}-W{week:02d}", (low, end_s)
        low = end_s


def same_steps(events: Sequence[Event], does: Sequence[Activity]) -> SameSteps:
    """What the steps that survive would have cost on demand, without any loss.

    Args:
        events: of the job and its nodes, by time.
        does: the job's `activities`.
    """
    usd: dict[str, float | None] = {}
    heads = []
    for event in events:
        if not isinstance(event, NodeUp) or usd.get(event.node_id) is not None:
            continue
        alone = None if event.spot else event.usd_per_hour  # is its own comparison
        price = event.on_demand_usd_per_hour
        usd[event.node_id] = alone if price is None else price
        if event.role == "head":
            heads.append(event.node_id)
    history = groups(events)
    startup_s = math.fsum(one.end_s - one.start_s for one in does if one.name == "startup")
    turns = [(startup_s, history[0].node_ids)] if history else []
    useful = [(one.start_s, one.end_s) for one in does if one.name == "useful"]
    ends = [end_s for _, end_s in useful]
    for group in history:
        turns.append((_useful_s(group, useful, ends), group.node_ids))
    node_s = unpriced_s = 0.0
    parts = []
    for seconds, members in turns:
        for node_id in {*members, *heads}:
            price = usd.get(node_id)
            node_s += seconds
            if price is None:
                unpriced_s += seconds
            else:
                parts.append(seconds / 3600 * price)
    return SameSteps(
        seconds=math.fsum(seconds for seconds, _ in turns),
        node_s=node_s,
        cost_usd=math.fsum(parts) if parts else None,
        unpriced_s=unpriced_s,
    )


def _useful_s(group: Group, useful: Sequence[Span], ends: Sequence[float]) -> float:
    """Seconds of a group's surviving steps, without the pauses in them."""
    seconds = []
    for run in group.steps:
        if not run.survives:
            continue
        at = bisect.bisect_right(ends, run.start_s)
        while at < len(useful) and useful[at][0] < run.end_s:
            seconds.append(min(useful[at][1], run.end_s) - max(useful[at][0], run.start_s))
            at += 1
    return math.fsum(seconds)


def doubts(
    events: Sequence[Event],
    ran: Sequence[Life],
    summary: CostSummary,
    *,
    until_s: float,
) -> Iterator[str]:
    """What the sums do not cover, and what they took on trust; one line each."""
    if summary.unseen_nodes:
        yield f"{summary.unseen_nodes} nodes that trained are in no journal: their cost is missing"
    for node in summary.nodes:
        if node.money.unpriced_s:
            yield (
                f"node {node.name or short(node.node_id)}: no price for "
                f"{node.money.unpriced_s:.0f} s of its time, which is in no sum of money"
            )
    yield from _ends(events, ran, until_s=until_s)
    yield from _jumps(events)
    for event in events:
        if isinstance(event, PriceChanged) and event.usd_per_hour < 0:
            yield f"{event.market}: a price of ${event.usd_per_hour} an hour is below zero"
    mounted = {e.disk: e for e in events if isinstance(e, DiskMounted)}
    deleted = {e.disk for e in events if isinstance(e, DiskDeleted)}
    unpriced = sorted(disk for disk, one in mounted.items() if one.usd_per_month is None)
    if unpriced:
        yield f"no price is known of the disks {', '.join(unpriced)}"
    if mounted.keys() - deleted:
        yield f"{len(mounted.keys() - deleted)} disks were not deleted yet, and cost on"


def _lines(damaged: int, unfinished: int) -> Iterator[str]:
    if damaged:
        yield f"{damaged} damaged journal lines were left out"
    if unfinished:
        yield (
            f"{unfinished} journal lines without an end were left out: a writer died in them, "
            "or is still at them"
        )


def _jumps(events: Iterable[Event]) -> Iterator[str]:
    """Steps that ended before they began, or that took so long that a clock must have jumped."""
    spans = [
        (step, later - sooner)
        for event in events
        if isinstance(event, StepsDone)
        for step, (sooner, later) in enumerate(pairwise(event.ended_at_s), event.first_step + 1)
    ]
    if not spans:
        return
    usual_s = statistics.median(seconds for _, seconds in spans)
    longest_s = max(_LONG_STEP_S, _LONG_STEP * usual_s)
    odd = [(step, s) for step, s in spans if s < -_JUMP_S or s > longest_s]
    for step, seconds in odd[:_TOLD]:
        yield (
            f"step {step} took {seconds:.0f} s by the clock of its worker, where {usual_s:.3g} s "
            "are usual: a clock jumped, or the loop stood still; node time is as the clocks say"
        )
    if len(odd) > _TOLD:
        yield f"so did {len(odd) - _TOLD} more steps"


def _ends(events: Sequence[Event], ran: Sequence[Life], *, until_s: float) -> Iterator[str]:
    """Nodes and jobs whose end is missing, or stands before their start."""
    ups: dict[str, float] = {}
    downs: dict[str, float] = {}
    started_s = ended_s = None
    for event in events:
        if isinstance(event, NodeUp):
            ups.setdefault(event.node_id, event.at_s)
        elif isinstance(event, NodeDown):
            downs.setdefault(event.node_id, event.at_s)
        elif isinstance(event, JobStarted):
            started_s = event.at_s
        elif isinstance(event, JobEnded):
            ended_s = event.at_s
    for life in ran:
        down_s = downs.get(life.up.node_id)
        name = life.up.name or short(life.up.node_id)
        if down_s is not None and down_s < ups[life.up.node_id] - _JUMP_S:
            yield (
                f"node {name} ended {ups[life.up.node_id] - down_s:.0f} s before it began, by its "
                "clock: none of its time is counted"
            )
        elif down_s is None and ended_s is not None and life.end_s > ended_s:
            yield f"nobody told of the end of node {name}: it counts to the end of the job"
    if started_s is not None and ended_s is not None and ended_s < started_s:
        yield (
            "the last start of the job is later than its last end: it runs again, or a clock "
            f"jumped; its time counts up to {datetime.fromtimestamp(until_s, UTC):%F %T} UTC"
        )


def _by_week(
    ran: Iterable[Life], prices: Prices, windows: Sequence[Span]
) -> Iterator[tuple[str, Money]]:
    for life in ran:
        for span in clip((life.start_s, life.end_s), windows):
            for name, part in weeks(span):
                yield name, prices.money(life, part)


def grouped(parts: Iterable[tuple[str, Money]]) -> dict[str, Money]:
    """Sums by name, by name."""
    sums: dict[str, Money] = {}
    for name, money in parts:
        sums[name] = sums.get(name, Money()) + money
    return dict(sorted(sums.items()))
