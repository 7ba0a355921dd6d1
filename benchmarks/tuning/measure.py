"""From the lines that workers write to the steps that a sweep lost: the same for all systems."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.recovery.measure import Line, Lines
from spotray.events import CheckpointCommitted, Event, NodeDown
from spotray.ledger.cost import cost

_NUMBER = re.compile(r"^[^_]+_(\d+)")


class SweepLines:
    """All lines of all runs of a sweep so far; `read` takes what is new."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs: dict[str, Lines] = {}

    def read(self) -> Mapping[str, Sequence[Line]]:
        """By run."""
        for place in self._folder.glob("*/lines"):
            self._runs.setdefault(place.parent.name, Lines(place))
        return {run: lines.read() for run, lines in self._runs.items()}


@dataclass(frozen=True, kw_only=True)
class Work:
    """Steps of one trial, over all of its runs."""

    steps_done: int = 0  # each counted once
    steps_redone: int = 0
    began_anew: int = 0  # times that it did its first step again, though a checkpoint was there

    def __add__(self, other: Work) -> Work:
        return Work(
            steps_done=self.steps_done + other.steps_done,
            steps_redone=self.steps_redone + other.steps_redone,
            began_anew=self.began_anew + other.began_anew,
        )


def work(runs: Mapping[str, Sequence[Line]], *, saved_s: Mapping[str, float]) -> dict[int, Work]:
    """What each trial did, by its number.

    Rank 0 speaks for all workers of a run. A clone is a run of its own: what it does from
    its donor's step on is new.

    Args:
        runs: Lines by run.
        saved_s: When each run had its first checkpoint, Unix seconds; others had none.
    """
    done: dict[int, Work] = {}
    for run, lines in runs.items():
        trial = number_of(run)
        mine = _work_of_run(lines, saved_s.get(run, math.inf))
        done[trial] = done.get(trial, Work()) + mine
    return done


def first_saved(events: Mapping[str, Iterable[Event]]) -> dict[str, float]:
    """When each run of ours had its first checkpoint in storage, by its journal."""
    committed = {
        run: [event.at_s for event in own if isinstance(event, CheckpointCommitted)]
        for run, own in events.items()
    }
    return {run: min(times) for run, times in committed.items() if times}


def went_past(runs: Mapping[str, Sequence[Line]], step: int) -> dict[str, float]:
    """When each run first ended a later step: a checkpoint of ``step`` was reported by then."""
    later = {run: [line.at_s for line in lines if line.step > step] for run, lines in runs.items()}
    return {run: min(times) for run, times in later.items() if times}


def number_of(run: str) -> int:
    """A trial's place among those of its sweep, from the name of it or of a run.

    >>> number_of("f3a1b_00007"), number_of("f3a1b_00007-0a1b2c3d")
    (7, 7)
    """
    found = _NUMBER.match(run)
    if found is None:
        raise ValueError(f"{run!r} is no trial's name")
    return int(found[1])


def _work_of_run(lines: Sequence[Line], saved_s: float) -> Work:
    told = [line for line in lines if line.rank == 0]
    times = Counter(line.step for line in told)
    return Work(
        steps_done=len(times),
        steps_redone=sum(times.values()) - len(times),
        began_anew=sum(line.step == 1 and line.at_s > saved_s for line in told),
    )


def all_began_s(runs: Mapping[str, Sequence[Line]], trials: int, *, since_s: float) -> float | None:
    """Seconds until the last trial's first step; None if one did not come to it."""
    first: dict[int, float] = {}
    for run, lines in runs.items():
        for line in lines:
            number = number_of(run)
            first[number] = min(first.get(number, math.inf), line.at_s)
    return round(max(first.values()) - since_s, 1) if first and len(first) >= trials else None


def trained_since(runs: Mapping[str, Sequence[Line]], since_s: float) -> set[int]:
    """Trials, by number, of which a worker ended a step after a moment in Unix seconds."""
    return {
        number_of(run) for run, lines in runs.items() if any(line.at_s > since_s for line in lines)
    }


@dataclass(frozen=True, kw_only=True)
class Market:
    """What the cluster's journal says of a sweep's time."""

    noticed: int  # spot nodes that were taken after a notice
    silent: int  # and without
    cost_usd: float | None
    unpriced_s: float  # node time without a known price


def market(facts: Iterable[Event], *, from_s: float, until_s: float) -> Market:
    """Nodes taken, and the price of all nodes, from ``from_s`` to ``until_s``, Unix seconds."""
    told = list(facts)
    taken = [
        event.noticed
        for event in told
        if isinstance(event, NodeDown)
        and event.cause == "preemption"
        and from_s <= event.at_s <= until_s
    ]
    total = cost(told, from_s=from_s, until_s=until_s).total
    return Market(
        noticed=sum(taken),
        silent=len(taken) - sum(taken),
        cost_usd=total.cost_usd,
        unpriced_s=total.unpriced_s,
    )
