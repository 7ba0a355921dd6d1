"""Goodput: which part of a job's time went into steps that survive, and where the rest went."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

from spotray.events import (
    CheckpointCommitted,
    Event,
    JobEnded,
    JobStarted,
    SnapshotTaken,
    TrainingDone,
)
from spotray.ledger.history import Group, groups


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """A job's time, seconds, split without rest: the parts add up to ``wall_s``."""

    wall_s: float = 0.0
    useful_s: float = 0.0  # steps that survive
    startup_s: float = 0.0  # to the first step of all
    repeated_s: float = 0.0  # steps that were, or have to be, done again
    restart_s: float = 0.0  # from a group's last step to the next group's first
    snapshot_s: float = 0.0  # training stood still for a snapshot
    checkpoint_s: float = 0.0  # training stood still for a checkpoint
    stopped_s: float = 0.0  # nobody ran the job
    other_s: float = 0.0
    steps: int = 0  # that survive

    @property
    def goodput_frac(self) -> float | None:
        """Useful part of the wall time, 0..1; None before the job began."""
        return self.useful_s / self.wall_s if self.wall_s > 0 else None

    @property
    def lost_s(self) -> dict[str, float]:
        """Time that made no progress, by cause."""
        parts = asdict(self)
        for key in ("wall_s", "useful_s", "steps"):
            del parts[key]
        return {name.removesuffix("_s"): seconds for name, seconds in parts.items()}


def goodput(events: Iterable[Event], *, until_s: float | None = None) -> Goodput:
    """Split a job's time by what it was good for.

    The time runs from the first `JobStarted` to `TrainingDone`, else to the last
    `JobEnded`; while the job runs, to ``until_s`` (default: the last event's time). A
    step lasts from the end of the step before it in the same worker group. Where two
    causes overlap, the first of this order has the time: snapshot, checkpoint, steps,
    stopped, restart, startup.
    """
    facts = sorted(events, key=lambda event: event.at_s)
    span = _wall(facts, until_s)
    if span is None:
        return Goodput()
    history = groups(facts)
    ranked = [
        ("snapshot", _snapshots(facts)),
        ("checkpoint", _checkpoints(facts)),
        ("useful", _steps(history, survive=True)),
        ("repeated", _steps(history, survive=False)),
        ("stopped", _stops(facts)),
        ("restart", _restarts(history, span[1])),
        ("startup", _startup(history, span)),
    ]
    parts = _partition(span, [(name, list(spans)) for name, spans in ranked])
    wall_s = span[1] - span[0]
    surviving = {run.step for group in history for run in group.steps if run.survives}
    return Goodput(
        wall_s=wall_s,
        useful_s=parts["useful"],
        startup_s=parts["startup"],
        repeated_s=parts["repeated"],
        restart_s=parts["restart"],
        snapshot_s=parts["snapshot"],
        checkpoint_s=parts["checkpoint"],
        stopped_s=parts["stopped"],
        other_s=max(0.0, wall_s - sum(parts.values())),
        steps=len(surviving),
    )


_Span = tuple[float, float]


def _wall(facts: Sequence[Event], until_s: float | None) -> _Span | None:
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


def _steps(history: Sequence[Group], *, survive: bool) -> Iterator[_Span]:
    for group in history:
        for run in group.steps:
            if run.survives is survive:
                yield (run.start_s, run.end_s)


def _snapshots(facts: Sequence[Event]) -> Iterator[_Span]:
    for event in facts:
        if isinstance(event, SnapshotTaken):
            yield (event.at_s - event.seconds, event.at_s)


def _checkpoints(facts: Sequence[Event]) -> Iterator[_Span]:
    for event in facts:
        if isinstance(event, CheckpointCommitted):  # training stands still at its start
            start_s = event.at_s - event.seconds
            yield (start_s, start_s + event.blocked_s)


def _stops(facts: Sequence[Event]) -> Iterator[_Span]:
    ended_s: float | None = None
    for event in facts:
        if isinstance(event, JobEnded):
            ended_s = event.at_s
        elif isinstance(event, JobStarted) and ended_s is not None:
            yield (ended_s, event.at_s)
            ended_s = None


def _restarts(history: Sequence[Group], end_s: float) -> Iterator[_Span]:
    last_step_s: float | None = None
    for index, group in enumerate(history):
        if group.steps:
            if last_step_s is not None:
                yield (last_step_s, group.steps[0].start_s)
            last_step_s = group.steps[-1].end_s
        elif index == len(history) - 1 and last_step_s is not None:
            yield (last_step_s, end_s)  # still at it


def _startup(history: Sequence[Group], span: _Span) -> Iterator[_Span]:
    first = min((group.steps[0].start_s for group in history if group.steps), default=span[1])
    yield (span[0], first)


def _partition(span: _Span, ranked: Sequence[tuple[str, list[_Span]]]) -> dict[str, float]:
    """Seconds of each name inside ``span``; where spans overlap the earlier name has them."""
    edges = []  # (time, +1 or -1, rank)
    for rank, (_, spans) in enumerate(ranked):
        for start_s, end_s in spans:
            low, high = max(start_s, span[0]), min(end_s, span[1])
            if low < high:
                edges += [(low, 1, rank), (high, -1, rank)]
    edges.sort()
    parts = dict.fromkeys((name for name, _ in ranked), 0.0)
    depth = [0] * len(ranked)
    since_s = span[0]
    for at_s, change, rank in edges:
        top = next((i for i, count in enumerate(depth) if count), None)
        if top is not None:
            parts[ranked[top][0]] += at_s - since_s
        depth[rank] += change
        since_s = at_s
    return parts
