"""From the lines that workers write to what an event cost: the same for all systems.

Every worker of every system appends one line to a file of its own when an optimizer step
has ended. Nothing else is measured, so no system's own log or clock can flatter it.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Line:
    """One worker ended one optimizer step."""

    at_s: float  # Unix seconds
    step: int  # steps of the job that are done by now
    world_size: int
    rank: int
    pid: int
    node: str


class Lines:
    """All workers' lines so far, by time; `read` takes what is new."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}
        self.all: list[Line] = []

    def read(self) -> list[Line]:
        """All lines by now; a line that is half written waits."""
        for file in self._folder.glob("*.jsonl"):
            with open(file, "rb") as stream:
                stream.seek(self._offsets.get(file, 0))
                data = stream.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._offsets[file] = self._offsets.get(file, 0) + len(whole)
            self.all += [Line(**json.loads(raw)) for raw in whole.splitlines()]
        self.all.sort(key=lambda line: line.at_s)
        return self.all


def members(lines: Sequence[Line]) -> dict[int, Line]:
    """The last line of each rank of the group that made the newest step."""
    newest = lines[-1]
    group = [one for one in lines if one.world_size == newest.world_size]
    by_rank = {one.rank: one for one in group if one.step >= newest.step - 1}
    return dict(sorted(by_rank.items()))


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What an event cost; None: it did not come to that before the watch ended."""

    seconds_to_next_step: float | None
    seconds_to_size: float | None  # until a step of the number of workers that there can be
    longest_pause_s: float | None
    steps_redone: int
    world_before: int
    world_after: int
    step_s: float  # median time of an undisturbed step before it


def cost(lines: Sequence[Line], *, event_s: float, is_loss: bool, world_expected: int) -> Cost:
    """Take the lines of one job and one event apart.

    The first step afterwards is the first one that was never done before and that the new
    group made: one of another size, or with a process that was not there before. A step
    that was under way at the event and still ended is the old group's.

    Args:
        lines: By time; some must be older than the event.
        event_s: When it happened, Unix seconds.
        is_loss: Something broke then, and the seconds count from then; otherwise (a
            notice, a node more) they count from the last step before the change.
        world_expected: How many workers there can be in the end.
    """
    before = [line for line in lines if line.at_s <= event_s]
    after = [line for line in lines if line.at_s > event_s]
    world_before = before[-1].world_size
    known = {line.pid for line in before}
    first_end = _first_ends(lines)

    def is_of_new_group(line: Line) -> bool:
        return line.world_size != world_before or line.pid not in known

    new = [line for line in after if first_end[line.step] == line.at_s and is_of_new_group(line)]
    seconds = None
    if new:
        since_s = event_s
        if not is_loss:
            since_s = max(end for end in first_end.values() if end < new[0].at_s)
        seconds = new[0].at_s - since_s
    since_new = [line for line in after if new and line.at_s >= new[0].at_s]
    full = [line for line in since_new if line.world_size == world_expected]
    return Cost(
        seconds_to_next_step=seconds,
        seconds_to_size=full[0].at_s - event_s if full else None,
        longest_pause_s=_longest_pause([before[-1], *after]) if new else None,
        steps_redone=len(_redone(lines, event_s, first_end)),
        world_before=world_before,
        world_after=after[-1].world_size if after else 0,
        step_s=_step_s(before),
    )


def _first_ends(lines: Iterable[Line]) -> dict[int, float]:
    """When each step was first done by anybody, Unix seconds."""
    ends: dict[int, float] = {}
    for line in lines:
        ends.setdefault(line.step, line.at_s)
    return ends


def _longest_pause(lines: Sequence[Line]) -> float:
    """Longest time between two ends of a step, seconds."""
    return max(later.at_s - earlier.at_s for earlier, later in itertools.pairwise(lines))


def _redone(lines: Sequence[Line], event_s: float, first_end: dict[int, float]) -> set[int]:
    """Steps that were done once more after the event.

    Workers of one group end a step one after the other, which is no repetition. They
    cannot be a whole step apart, for each step needs all of them.
    """
    first_line: dict[int, float] = {}
    done: set[tuple[int, int]] = set()
    redone: set[int] = set()
    for line in lines:
        born_s = first_line.setdefault(line.pid, line.at_s)
        again = (line.pid, line.step) in done
        done.add((line.pid, line.step))
        if line.at_s <= event_s:
            continue
        behind = line.at_s > first_end.get(line.step + 1, line.at_s)
        newcomer = born_s > event_s and first_end[line.step] <= event_s
        if again or behind or newcomer:
            redone.add(line.step)
    return redone


def _step_s(before: Sequence[Line]) -> float:
    ends = sorted(_first_ends(before).values())[-30:]
    gaps = [later - earlier for earlier, later in itertools.pairwise(ends)]
    return statistics.median(gaps) if gaps else 0.0


def new_steps_since(lines: Sequence[Line], since_s: float) -> int:
    """How many steps that were never done before have ended since then."""
    return sum(end > since_s for end in _first_ends(lines).values())
