"""What a job did at each moment: its time as spans, each with one name, without gap or overlap."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from spotray.events import (
    CheckpointCommitted,
    Event,
    FellBack,
    JobEnded,
    JobStarted,
    NodeReady,
    NodeUp,
    SnapshotTaken,
    TrainingDone,
)
from spotray.ledger.history import Group, groups
from spotray.ledger.pricing import Span
from spotray.ledger.recovery import Recovery, recoveries

# Where two causes overlap, the first of this order has the time.
ACTIVITIES = (
    "snapshot",  # training stood still for one
    "checkpoint",
    "useful",  # steps that survive
    "repeated",  # steps that were, or have to be, done again
    "stopped",  # nobody ran the job
    "detection",  # from a loss until somebody knew
    "waiting",  # too few nodes, and none that boots
    "provisioning",  # a node that is needed boots
    "restart",  # the rest, from a group's last step to the next group's first
    "startup",  # to the first step of all
)
OTHER = "other"
AFTER_TRAINING = "after training"  # to the job's end: no part of its activities


@dataclass(frozen=True)
class Activity:
    """What a job did from ``start_s`` to ``end_s``, Unix seconds."""

    name: str
    start_s: float
    end_s: float


def activities(events: Iterable[Event], *, until_s: float | None = None) -> list[Activity]:
    """A job's time, cut where what it does changes; by time.

    The time runs from the first `JobStarted` to `TrainingDone`, else to the last
    `JobEnded`; while the job runs, to ``until_s`` (default: the last event's time). A
    step lasts from the end of the step before it in the same worker group.
    """
    facts = sorted(events, key=lambda event: event.at_s)
    span = _wall(facts, until_s)
    return [] if span is None else _activities(facts, groups(facts), span)


def _activities(facts: Sequence[Event], history: Sequence[Group], span: Span) -> list[Activity]:
    known = recoveries(facts)
    found = {
        "snapshot": _snapshots(facts),
        "checkpoint": _checkpoints(facts),
        "useful": _steps(history, survive=True),
        "repeated": _steps(history, survive=False),
        "stopped": _stops(facts),
        "detection": _detections(known),
        "waiting": _waits(facts, history, known, ready=False),
        "provisioning": _waits(facts, history, known, ready=True),
        "restart": _restarts(history, span[1]),
        "startup": _startup(history, span),
    }
    return list(_cut(span, [(name, found[name]) for name in ACTIVITIES]))


def _wall(facts: Sequence[Event], until_s: float | None) -> Span | None:
    start_s = next((e.at_s for e in facts if isinstance(e, JobStarted)), None)
    if start_s is None:
        return None
    end_s = until_s if until_s is not None else facts[-1].at_s
    closed_s: float | None = None
    for event in facts:
        if isinstance(event, JobStarted):
            closed_s = None
        elif isinstance(event, TrainingDone) or (
            isinstance(event, JobEnded) and closed_s is None  # what is left to do is no training
        ):
            closed_s = event.at_s
    if closed_s is not None:
        end_s = min(end_s, closed_s)
    return (start_s, max(start_s, end_s))


def _steps(history: Sequence[Group], *, survive: bool) -> Iterator[Span]:
    for group in history:
        for run in group.steps:
            if run.survives is survive:
                yield (run.start_s, run.end_s)


def _snapshots(facts: Sequence[Event]) -> Iterator[Span]:
    for event in facts:
        if isinstance(event, SnapshotTaken):
            yield (event.at_s - event.seconds, event.at_s)


def _checkpoints(facts: Sequence[Event]) -> Iterator[Span]:
    for event in facts:
        if isinstance(event, CheckpointCommitted):  # training stands still at its start
            start_s = event.at_s - event.seconds
            yield (start_s, start_s + event.blocked_s)


def _stops(facts: Sequence[Event]) -> Iterator[Span]:
    ended_s: float | None = None
    for event in facts:
        if isinstance(event, JobEnded):
            ended_s = event.at_s
        elif isinstance(event, JobStarted) and ended_s is not None:
            yield (ended_s, event.at_s)
            ended_s = None


def _detections(known: Iterable[Recovery]) -> Iterator[Span]:
    for one in known:
        if one.kind in ("silent", "failure"):
            yield (one.lost_at_s, one.lost_at_s + one.parts.get("detect", 0.0))


def _waits(
    facts: Sequence[Event], history: Sequence[Group], known: Sequence[Recovery], *, ready: bool
) -> Iterator[Span]:
    """Time between two groups until the last node of the new one was up, or joined Ray.

    A group that fell back since too few were left waits until the next one meets.
    """
    ups: dict[str, float] = {}
    joined: dict[str, float] = {}
    for event in facts:
        if isinstance(event, NodeUp):
            ups.setdefault(event.node_id, event.at_s)
        elif isinstance(event, NodeReady):
            joined.setdefault(event.node_id, event.at_s)
    lost_s = {one.generation: one.lost_at_s for one in known}
    for old, new in pairwise(history):
        if old.life != new.life:
            continue
        came = [ups[node_id] for node_id in new.node_ids if node_id in ups]
        since_s = lost_s.get(new.generation, old.last_step_s or old.started_s)
        up_s = min(max(came, default=since_s), new.started_s)
        yield (since_s, up_s)
        if ready:
            there = [joined.get(n, ups[n]) for n in new.node_ids if n in ups]
            yield (up_s, min(max(there, default=up_s), new.started_s))
    if not ready:
        starts = [group.started_s for group in history]
        for event in facts:
            if isinstance(event, FellBack) and event.to == "waiting":
                met = next((at_s for at_s in starts if at_s > event.at_s), event.at_s)
                yield (event.at_s, met)


def _restarts(history: Sequence[Group], end_s: float) -> Iterator[Span]:
    last_step_s: float | None = None
    for index, group in enumerate(history):
        if group.steps:
            if last_step_s is not None:
                yield (last_step_s, group.steps[0].start_s)
            last_step_s = group.steps[-1].end_s
        elif index == len(history) - 1 and last_step_s is not None:
            yield (last_step_s, end_s)  # still at it


def _startup(history: Sequence[Group], span: Span) -> Iterator[Span]:
    first = min((group.steps[0].start_s for group in history if group.steps), default=span[1])
    yield (span[0], first)


def _cut(span: Span, ranked: Sequence[tuple[str, Iterable[Span]]]) -> Iterator[Activity]:
    """``span`` in pieces; where spans overlap the earlier name has them, else nobody: `OTHER`."""
    edges = [(span[0], 0, 0), (span[1], 0, 0)]  # (time, +1 or -1, rank)
    for rank, (_, spans) in enumerate(ranked):
        for start_s, end_s in spans:
            low, high = max(start_s, span[0]), min(end_s, span[1])
            if low < high:
                edges += [(low, 1, rank), (high, -1, rank)]
    edges.sort()
    depth = [0] * len(ranked)
    open_name, open_s = OTHER, span[0]
    before_s = span[0]
    for at_s, change, rank in edges:
        if at_s > before_s:
            top = next((i for i, count in enumerate(depth) if count), None)
            name = OTHER if top is None else ranked[top][0]
            if name != open_name:
                if before_s > open_s:
                    yield Activity(open_name, open_s, before_s)
                open_name, open_s = name, before_s
            before_s = at_s
        depth[rank] += change
    if span[1] > open_s:
        yield Activity(open_name, open_s, span[1])
