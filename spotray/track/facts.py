"""What a tracker is told of a run: numbers by step, and events. Folds over the run's facts."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from spotray.events import (
    BudgetReached,
    CheckpointRejected,
    Event,
    FellBack,
    JobEnded,
    JobStarted,
    NodeDown,
    NoticeCancelled,
    NoticeReceived,
    Reported,
    Restored,
    StepsDone,
    Warned,
    WorkerGroupLost,
    WorkerGroupStarted,
    encode,
)
from spotray.ledger.describe import describe
from spotray.ledger.summary import RunSummary

PREEMPTION = "preemption"
# Every report has these beside the user's own; they are told under other names.
_BESIDE = ("epoch", "step", "loss")
# Kinds of events that are told, each under the word for it.
_WORDS: Mapping[type[Event], str] = {
    JobStarted: "job",
    JobEnded: "job",
    BudgetReached: "job",
    NoticeReceived: "notice",
    NoticeCancelled: "notice",
    WorkerGroupLost: "loss",
    FellBack: "loss",
    WorkerGroupStarted: "workers",
    Restored: "workers",
    Warned: "warning",
    CheckpointRejected: "warning",
}


@dataclass(frozen=True, kw_only=True)
class Point:
    """One number of one series, after a step."""

    series: str
    step: int
    at_s: float  # Unix seconds
    value: float  # may be NaN or infinite: a loss that diverged is worth seeing


@dataclass(frozen=True, kw_only=True)
class Note:
    """Something that happened, on one line. ``key`` is the same whoever tells it, and when."""

    kind: str  # preemption, failure, notice, loss, workers, job, warning
    step: int  # the furthest that was done then
    at_s: float  # Unix seconds
    text: str
    key: str


@dataclass(kw_only=True)
class Told:
    """What a tracker was told before; so a step that is done again is told once."""

    steps: dict[str, int] = field(default_factory=dict)  # the furthest step of each series
    notes: list[str] = field(default_factory=list)  # keys
    rows: int = 0  # points and notes, in all

    def add(self, points: Sequence[Point], notes: Sequence[Note]) -> None:
        """Count these as told."""
        for point in points:
            self.steps[point.series] = point.step
        self.notes += [note.key for note in notes]
        self.rows += len(points) + len(notes)


def untold(points: Iterable[Point], told: Told) -> list[Point]:
    """Those of which nothing was told: of each series, steps that go up only.

    >>> one = Point(series="loss", step=3, at_s=0.0, value=1.0)
    >>> len(untold([one, one], Told())), untold([one], Told(steps={"loss": 3}))
    (1, [])
    """
    furthest = dict(told.steps)
    fresh = []
    for point in points:
        if point.step > furthest.get(point.series, -1):
            furthest[point.series] = point.step
            fresh.append(point)
    return fresh


def points(events: Iterable[Event]) -> Iterator[Point]:
    """The numbers that a run's facts hold, in the order of ``events``."""
    for event in events:
        if isinstance(event, StepsDone):
            values = {"spotray/workers": float(event.world_size)}
            if event.loss is not None:
                values["train/loss"] = event.loss
            if event.seconds > 0:
                values["train/samples_per_s"] = event.samples / event.seconds
            step = event.last_step
        elif isinstance(event, Reported):
            values = {"train/epoch": float(event.epoch)}
            values |= {
                name: number
                for name, value in event.metrics.items()
                if name not in _BESIDE and (number := _number(value)) is not None
            }
            step = event.step
        else:
            continue
        for series, value in values.items():
            yield Point(series=series, step=step, at_s=event.at_s, value=value)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        return None  # JSON's integers have no largest one
    return float(value)


def standing(summary: RunSummary) -> Iterator[Point]:
    """What a run has come to by now, as points at its present step; none before the first."""
    if not summary.step:
        return
    money, losses = summary.cost.total, summary.recovery
    values: dict[str, float | None] = {
        "spotray/preemptions": losses.preemptions_noticed + losses.preemptions_silent,
        "spotray/goodput": summary.goodput.goodput_frac,
        "spotray/cost_usd": money.cost_usd,
        "spotray/on_demand_cost_usd": money.on_demand_cost_usd,
    }
    for series, value in values.items():
        if value is not None:
            yield Point(series=series, step=summary.step, at_s=summary.until_s, value=float(value))


class Notes:
    """The events that are worth a mark, as they come; what several tell, once."""

    def __init__(self) -> None:
        self._step = 0
        self._under_notice: set[str] = set()
        self._seen: set[str] = set()

    def of(self, events: Iterable[Event]) -> Iterator[Note]:
        """Those among some more events, by time."""
        for event in events:
            kind, told = _WORDS.get(type(event)), encode(event)
            if isinstance(event, StepsDone):
                self._step = max(self._step, event.last_step)
            elif isinstance(event, NodeDown):
                kind = None if event.cause == "shutdown" else event.cause
                told = f"down {event.node_id}"
            elif isinstance(event, NoticeReceived):
                if event.node_id in self._under_notice:
                    continue
                self._under_notice.add(event.node_id)
            elif isinstance(event, NoticeCancelled):
                self._under_notice.discard(event.node_id)
            if kind is None:
                continue
            key = hashlib.sha256(told.encode()).hexdigest()[:12]
            if key not in self._seen:
                self._seen.add(key)
                yield Note(
                    kind=kind, step=self._step, at_s=event.at_s, text=describe(event), key=key
                )


class Kept:
    """As many of a run's facts as its glance needs, however long it goes on.

    Of a worker group's steps the older ones are thinned out. The folds give their time to the
    step that comes next, so no second is lost: only where repeated steps begin is less exact.
    """

    def __init__(self, most: int = 1000) -> None:
        """``most``: groups of steps that are kept of one worker group, >= 4."""
        self._most = most
        self._lives = 0
        self._steps: dict[tuple[int, int], list[StepsDone]] = {}
        self._report: Reported | None = None
        self._others: list[Event] = []

    def add(self, events: Iterable[Event]) -> None:
        """Take some more events, by time."""
        for event in events:
            if isinstance(event, StepsDone):
                group = self._steps.setdefault((self._lives, event.generation), [])
                group.append(event)
                if len(group) > self._most:
                    # The first tells when the group began, the newer half is what may be undone.
                    del group[1 : len(group) // 2 : 2]
            elif isinstance(event, Reported):
                self._report = event
            else:
                self._lives += isinstance(event, JobStarted)
                self._others.append(event)

    def events(self) -> tuple[Event, ...]:
        """All that is kept, by time."""
        found: list[Event] = list(self._others)
        for group in self._steps.values():
            found += group
        if self._report is not None:
            found.append(self._report)
        return tuple(sorted(found, key=lambda event: event.at_s))
