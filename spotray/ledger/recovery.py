"""Recoveries: what each change of the worker group cost in time and in steps."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from spotray.events import (
    Event,
    NodeDown,
    NoticeCancelled,
    NoticeReceived,
    WorkerGroupStarted,
)
from spotray.ledger.history import Group, groups

_SHORTEST_NOTICE_S = 1.0  # a notice that comes later than this before the loss is none


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """One worker group gave way to the next.

    ``kind`` is ``noticed`` (the cloud announced the loss), ``silent`` (a node went
    without a word), ``failure`` (the group broke, its nodes live) or ``resize``
    (nobody was lost). The four parts of ``seconds`` add up to it.
    """

    kind: str
    generation: int  # of the new group
    lost_at_s: float  # Unix seconds; the loss, or the last moment of training before it
    resumed_at_s: float | None  # the first new step ended; None: not yet
    detect_s: float | None = None  # to the old group's end
    form_s: float | None = None  # from there until the new group met
    restore_s: float | None = None  # from there until it had its state
    replay_s: float | None = None  # from there to the end of the first new step
    steps_lost: int | None  # steps that had to be done again; None if nothing tells
    source: str = ""  # where the state came from: snapshot, checkpoint, fresh
    world_before: int
    world_after: int
    node_ids: tuple[str, ...]  # the nodes that left; of growth those that came
    all_lost: bool = False  # no node of the old group was left

    @property
    def seconds(self) -> float | None:
        """From the loss to the end of the first step that was never done before."""
        return None if self.resumed_at_s is None else self.resumed_at_s - self.lost_at_s


@dataclass(frozen=True, kw_only=True)
class RecoverySummary:
    """All recoveries of a job, and their sums.

    Counts of preemptions are of nodes that had a worker. ``recovery_s_*`` are over
    losses; resizes without a loss are not among them.
    """

    recoveries: tuple[Recovery, ...]
    preemptions_noticed: int
    preemptions_silent: int
    steps_lost_noticed: int  # sum
    steps_lost_silent_max: int  # of one silent loss that left a node alive
    steps_lost_all_max: int  # of one loss, without notice, of all nodes
    recovery_s_median: float | None
    recovery_s_max: float | None


def recoveries(events: Iterable[Event]) -> list[Recovery]:
    """One record for each change of the worker group, in order.

    A driver that is started again by its user is no recovery.
    """
    facts = sorted(events, key=lambda event: event.at_s)
    history = groups(facts)
    nodes = _Nodes(facts)
    return [
        _recovery(old, history[index:], nodes)
        for index, (old, new) in enumerate(pairwise(history), start=1)
        if old.life == new.life
    ]


def summarize_recoveries(events: Iterable[Event]) -> RecoverySummary:
    """Recoveries with their sums, and the preemptions of nodes that had a worker."""
    facts = sorted(events, key=lambda event: event.at_s)
    all_of_them = recoveries(facts)
    nodes = _Nodes(facts)
    members = {n for e in facts if isinstance(e, WorkerGroupStarted) for n in e.node_ids}
    preempted = [
        node_id
        for node_id, down in nodes.downs.items()
        if node_id in members and down.cause == "preemption"
    ]
    noticed = sum(nodes.was_noticed(node_id) for node_id in preempted)
    silent = [r for r in all_of_them if r.kind == "silent"]
    seconds = [r.seconds for r in all_of_them if r.kind != "resize" and r.seconds is not None]
    return RecoverySummary(
        recoveries=tuple(all_of_them),
        preemptions_noticed=noticed,
        preemptions_silent=len(preempted) - noticed,
        steps_lost_noticed=sum(r.steps_lost or 0 for r in all_of_them if r.kind == "noticed"),
        steps_lost_silent_max=_most(r.steps_lost for r in silent if not r.all_lost),
        steps_lost_all_max=_most(r.steps_lost for r in silent if r.all_lost),
        recovery_s_median=statistics.median(seconds) if seconds else None,
        recovery_s_max=max(seconds, default=None),
    )


class _Nodes:
    """What was heard about each node."""

    def __init__(self, facts: Sequence[Event]) -> None:
        self.downs: dict[str, NodeDown] = {}
        self._notices: dict[str, list[tuple[float, bool]]] = defaultdict(list)
        for event in facts:
            if isinstance(event, NodeDown):
                self.downs.setdefault(event.node_id, event)
            elif isinstance(event, NoticeReceived):
                self._notices[event.node_id].append((event.at_s, True))
            elif isinstance(event, NoticeCancelled):
                self._notices[event.node_id].append((event.at_s, False))

    def notice_s(self, node_id: str, *, before_s: float) -> float | None:
        """When the notice came that stood at ``before_s``; None if none did."""
        said = [(at_s, on) for at_s, on in self._notices[node_id] if at_s <= before_s]
        if not said or not said[-1][1]:
            return None
        first_s = said[-1][0]
        for at_s, on in reversed(said):  # a notice that is repeated counts from the first
            if not on:
                break
            first_s = at_s
        return first_s

    def was_noticed(self, node_id: str) -> bool:
        """Whether the loss of a node that is down was announced in time."""
        down = self.downs[node_id]
        if not self._notices[node_id]:
            return down.noticed  # the one who heard may have died with the node
        return self.notice_s(node_id, before_s=down.at_s - _SHORTEST_NOTICE_S) is not None and (
            self.notice_s(node_id, before_s=down.at_s) is not None
        )


def _recovery(old: Group, later: Sequence[Group], nodes: _Nodes) -> Recovery:
    new = later[0]
    gone = tuple(dict.fromkeys(n for n in old.node_ids if n not in new.node_ids))
    came = tuple(dict.fromkeys(n for n in new.node_ids if n not in old.node_ids))
    kind, lost_at_s = _kind(old, new, gone, nodes)
    reached = old.reached_step
    if new.restored is not None and new.restored.reached_step is not None:
        reached = max(reached, new.restored.reached_step)  # survivors know of the last steps
    resumed_at_s = _first_new_step_s(later, reached)
    restored_step = new.restored_step
    marks = _marks(old, new, lost_at_s, resumed_at_s)
    return Recovery(
        kind=kind,
        generation=new.generation,
        lost_at_s=lost_at_s,
        resumed_at_s=resumed_at_s,
        detect_s=marks[0],
        form_s=marks[1],
        restore_s=marks[2],
        replay_s=marks[3],
        steps_lost=None if restored_step is None else max(0, reached - restored_step),
        source=new.restored.source if new.restored is not None else "",
        world_before=old.world_size,
        world_after=new.world_size,
        node_ids=gone or came,
        all_lost=bool(gone) and set(gone) == set(old.node_ids),
    )


def _kind(old: Group, new: Group, gone: Sequence[str], nodes: _Nodes) -> tuple[str, float]:
    """What ended a group, and when training last was undisturbed."""
    trained_s = old.last_step_s or old.started_s
    if old.agreed is not None:
        trained_s = old.agreed.at_s
    silent = [
        down.at_s
        for node_id in set(old.node_ids)
        if (down := nodes.downs.get(node_id)) is not None
        and down.cause != "shutdown"
        and down.at_s <= new.started_s
        and not nodes.was_noticed(node_id)
    ]
    if silent:
        return "silent", min(silent)
    if any(nodes.notice_s(n, before_s=new.started_s) is not None for n in gone):
        return "noticed", trained_s
    if any(n in nodes.downs and nodes.was_noticed(n) for n in gone):
        return "noticed", trained_s  # only its provider told
    if old.agreed is not None or old.lost is None:
        return "resize", trained_s
    if old.lost.cause == "preemption":
        return "noticed", trained_s
    if gone and old.lost.cause == "loss":  # nobody wrote down when the node went
        return "silent", min(trained_s, old.lost.at_s)
    return "failure", min(trained_s, old.lost.at_s)


def _first_new_step_s(later: Sequence[Group], reached: int) -> float | None:
    """End of the first step beyond ``reached``, in the next group that gets there."""
    for group in later:
        for run in group.steps:
            if run.step > reached:
                return run.end_s
    return None


def _marks(
    old: Group, new: Group, lost_at_s: float, resumed_at_s: float | None
) -> tuple[float | None, float | None, float | None, float | None]:
    """The recovery's four parts; a mark that nobody set gives its part to the next one."""
    if resumed_at_s is None:
        return (None, None, None, None)
    ended = [e.at_s for e in (old.lost, old.agreed) if e is not None]
    marks = [
        max(ended, default=lost_at_s),
        new.started_s,
        new.restored.at_s if new.restored is not None else new.started_s,
        resumed_at_s,
    ]
    parts, before_s = [], lost_at_s
    for at_s in marks:
        at_s = min(max(at_s, before_s), resumed_at_s)
        parts.append(at_s - before_s)
        before_s = at_s
    return (parts[0], parts[1], parts[2], parts[3])


def _most(counts: Iterable[int | None]) -> int:
    return max((count for count in counts if count is not None), default=0)
