"""Which trial of a sweep had workers on which node, and when.

A trial is on a node from the meeting that let its worker in to the meeting without it,
or to the trial's end. The time before, while a process starts and imports, is nobody's.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Literal

from spotray.events import (
    Event,
    JobEnded,
    JobStarted,
    WorkerGroupLost,
    WorkerGroupStarted,
)
from spotray.ledger.recovery import NodeNews

_CLONE = re.compile(r"(?P<trial>.+)-[0-9a-f]{8}")


def trial_of(run: str) -> str:
    """The trial that a run belongs to: a clone's run bears a hash behind its trial's name.

    >>> trial_of("a1b2c_00003"), trial_of("a1b2c_00003-0f1e2d3c")
    ('a1b2c_00003', 'a1b2c_00003')
    """
    found = _CLONE.fullmatch(run)
    return found["trial"] if found else run


@dataclass(frozen=True, kw_only=True)
class RunLife:
    """One run from a start of its job to the end, or to the next start of its trial."""

    run: str
    start_s: float  # Unix seconds
    end_s: float
    is_open: bool  # nobody told of an end, and the trial was not started again
    events: tuple[Event, ...]  # by time


@dataclass(frozen=True, kw_only=True)
class Stay:
    """A trial's workers on one node, as long as their number there did not change."""

    trial: str
    node_id: str
    workers: int
    start_s: float  # Unix seconds
    end_s: float
    ended_by: Literal["meeting", "loss", "end", ""]  # "": it is there still


def run_lives(runs: Mapping[str, Sequence[Event]], *, until_s: float) -> list[RunLife]:
    """The lives of one trial's runs, by start.

    A trial has one run at a time. A life whose end nobody told, before another one began,
    ended with the last fact that it told: its driver was killed, and its workers with it.

    Args:
        runs: each run's own events.
        until_s: a life that goes on counts until then, Unix seconds.
    """
    told = [
        (_start_s(events), run, events)
        for run, all_of_them in runs.items()
        for events in _by_start(all_of_them)
    ]
    told.sort(key=lambda life: life[:2])
    starts = [start_s for start_s, _, _ in told]
    found = []
    for (start_s, run, events), next_s in zip_longest(told, starts[1:]):
        ended_s = next((e.at_s for e in events if isinstance(e, JobEnded)), None)
        end_s = ended_s
        if end_s is None:
            end_s = until_s if next_s is None else events[-1].at_s
        if next_s is not None:
            end_s = min(end_s, next_s)
        found.append(
            RunLife(
                run=run,
                start_s=start_s,
                end_s=max(start_s, min(end_s, until_s)),
                is_open=ended_s is None and next_s is None,
                events=tuple(events),
            )
        )
    return found


def stays(trial: str, its_lives: Iterable[RunLife]) -> Iterator[Stay]:
    """Where a trial's workers were."""
    for life in its_lives:
        yield from _stays_of(trial, life)


@dataclass(frozen=True, kw_only=True)
class Hits:
    """Preemptions of nodes while a trial had a worker there."""

    noticed: int = 0
    silent: int = 0


def preemptions(all_stays: Iterable[Stay], facts: Sequence[Event]) -> dict[str, Hits]:
    """By trial, how many nodes were taken from under it; trials without any are left out.

    A trial that had left a node before its notice was not hit. Where nobody wrote the
    notice down, whoever left the node last for another meeting was.
    """
    news = NodeNews(facts)
    by_node: dict[str, list[Stay]] = defaultdict(list)
    for stay in all_stays:
        by_node[stay.node_id].append(stay)
    noticed: Counter[str] = Counter()
    silent: Counter[str] = Counter()
    for node_id, here in by_node.items():
        down = news.downs.get(node_id)
        if down is None or down.cause != "preemption":
            continue
        was_noticed = news.was_noticed(node_id)
        notice_s = news.notice_s(node_id, before_s=down.at_s) if was_noticed else None
        moment_s = down.at_s if notice_s is None else notice_s
        hit = {stay.trial for stay in here if stay.start_s <= moment_s <= stay.end_s}
        if not hit and notice_s is None:
            left = ("loss", "meeting") if was_noticed else ("loss",)
            last_s = max(stay.start_s for stay in here)
            hit = {s.trial for s in here if s.ended_by in left and s.end_s > last_s}
        (noticed if was_noticed else silent).update(hit)
    return {
        trial: Hits(noticed=noticed[trial], silent=silent[trial])
        for trial in sorted({*noticed, *silent})
    }


def _by_start(events: Iterable[Event]) -> Iterator[list[Event]]:
    """A run's events, cut before each `JobStarted`."""
    ordered = sorted(events, key=lambda event: event.at_s)
    cuts = [i for i, event in enumerate(ordered) if isinstance(event, JobStarted)]
    if cuts and not any(isinstance(event, JobEnded) for event in ordered[: cuts[0]]):
        cuts = cuts[1:]  # what stands before the first start was told by another clock
    for low, high in pairwise([0, *cuts, len(ordered)]):
        if low < high:
            yield ordered[low:high]


def _start_s(events: Sequence[Event]) -> float:
    return next((e.at_s for e in events if isinstance(e, JobStarted)), events[0].at_s)


def _stays_of(trial: str, life: RunLife) -> Iterator[Stay]:
    here: dict[str, tuple[int, float]] = {}  # node -> workers, since
    lost: set[str] = set()
    for event in life.events:
        if isinstance(event, WorkerGroupLost):
            lost.update(event.lost_node_ids)
        if not isinstance(event, WorkerGroupStarted) or event.at_s > life.end_s:
            continue
        members = Counter(event.node_ids)
        for node_id in sorted({*here, *members}):
            workers, since_s = here.get(node_id, (0, event.at_s))
            if members[node_id] == workers:
                continue
            if here.pop(node_id, None) is not None:
                why: Literal["meeting", "loss"] = "loss" if node_id in lost else "meeting"
                yield _stay(trial, node_id, workers, since_s, event.at_s, why)
            if members[node_id]:
                here[node_id] = (members[node_id], event.at_s)
        lost.clear()
    for node_id, (workers, since_s) in here.items():
        yield _stay(trial, node_id, workers, since_s, life.end_s, "" if life.is_open else "end")


def _stay(
    trial: str,
    node_id: str,
    workers: int,
    start_s: float,
    end_s: float,
    ended_by: Literal["meeting", "loss", "end", ""],
) -> Stay:
    return Stay(
        trial=trial,
        node_id=node_id,
        workers=workers,
        start_s=start_s,
        end_s=max(start_s, end_s),
        ended_by=ended_by,
    )
