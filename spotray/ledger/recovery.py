"""Recoveries: what each change of the worker group cost in time and in steps."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from spotray.events import (
    Event,
    FellBack,
    MemberFencedOut,
    NodeDown,
    NoticeCancelled,
    NoticeReceived,
    WorkerGroupStarted,
)
from spotray.ledger.history import Group, groups

_SHORTEST_NOTICE_S = 1.0  # a notice that comes later than this before the loss is none


# The parts of a recovery, in order, each up to its mark; where nobody set a mark, the next
# part that has one takes the time.
LIVE_PHASES = ("detect", "agree", "connect", "heal", "first_step")
RESTART_PHASES = ("detect", "place", "start", "import", "restore", "first_step")


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """One worker group gave way to the next.

    ``kind`` is ``noticed`` (the cloud announced the loss), ``silent`` (a node or its
    worker went without a word), ``failure`` (the group broke, its nodes live) or
    ``resize`` (nobody was lost). ``mode`` is ``live`` (the members that were left kept
    their processes) or ``restart``.

    ``parts`` are seconds by phase, in order; they add up to ``seconds``. Of a restart:
    ``detect`` (to the old group's end), ``place`` (all workers have a node), ``start``
    (their processes run), ``import`` (they are in the training function), ``restore``
    (they met and have their state), ``first_step`` (the first new step ended, with
    those before it that had to be done again). Of a live one: ``detect``, ``agree`` (on
    the new members), ``connect`` (the process group is up), ``heal`` (all have the
    state), ``first_step``.
    """

    kind: str
    mode: str
    generation: int  # of the new group
    lost_at_s: float  # Unix seconds; the loss, or the last moment of training before it
    resumed_at_s: float | None  # the first new step ended; None: not yet
    parts: Mapping[str, float] = field(default_factory=dict)  # empty: not over yet
    pause_s: float | None = None  # from the last step's end before to the next one's end
    steps_lost: int | None  # steps that had to be done again; None if nothing tells
    source: str = ""  # where the state came from: snapshot, checkpoint, peers, ...
    world_before: int
    world_after: int
    node_ids: tuple[str, ...]  # nodes that left, or whose workers did; of growth, that came
    all_lost: bool = False  # no node of the old group was left

    @property
    def seconds(self) -> float | None:
        """From the loss to the end of the first step that was never done before."""
        return None if self.resumed_at_s is None else sum(self.parts.values())


@dataclass(frozen=True, kw_only=True)
class RecoverySpread:
    """All recoveries of one kind and mode together; None where none is over."""

    kind: str
    mode: str
    count: int
    seconds_median: float | None
    seconds_max: float | None
    pause_s_median: float | None
    pause_s_max: float | None
    steps_lost_max: int


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
    spreads: tuple[RecoverySpread, ...] = ()  # by kind and mode
    fallbacks: tuple[FellBack, ...] = ()  # live recoveries that gave way
    fenced_out: tuple[MemberFencedOut, ...] = ()


def recoveries(events: Iterable[Event]) -> list[Recovery]:
    """One record for each change of the worker group, in order.

    A driver that is started again by its user is no recovery.
    """
    facts = sorted(events, key=lambda event: event.at_s)
    history = groups(facts)
    nodes = NodeNews(facts)
    return [
        _recovery(history, index, nodes)
        for index, (old, new) in enumerate(pairwise(history), start=1)
        if old.life == new.life
    ]


def summarize_recoveries(events: Iterable[Event]) -> RecoverySummary:
    """Recoveries with their sums, and the preemptions of nodes that had a worker."""
    facts = sorted(events, key=lambda event: event.at_s)
    all_of_them = recoveries(facts)
    nodes = NodeNews(facts)
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
        spreads=tuple(_spreads(all_of_them)),
        fallbacks=tuple(e for e in facts if isinstance(e, FellBack)),
        fenced_out=tuple(e for e in facts if isinstance(e, MemberFencedOut)),
    )


class NodeNews:
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


def _recovery(history: Sequence[Group], index: int, nodes: NodeNews) -> Recovery:
    old, new = history[index - 1], history[index]
    gone = tuple(dict.fromkeys(n for n in old.node_ids if n not in new.node_ids))
    came = tuple(dict.fromkeys(n for n in new.node_ids if n not in old.node_ids))
    kind, lost_at_s = _kind(old, new, gone, nodes)
    reached = old.reached_step
    if new.restored is not None and new.restored.reached_step is not None:
        reached = max(reached, new.restored.reached_step)  # survivors know of the last steps
    resumed_at_s = _first_new_step_s(history[index:], reached)
    restored_step = new.restored_step
    return Recovery(
        kind=kind,
        mode="live" if new.live else "restart",
        generation=new.generation,
        lost_at_s=lost_at_s,
        resumed_at_s=resumed_at_s,
        parts=_parts(old, new, lost_at_s, resumed_at_s),
        pause_s=_pause_s(history, index, lost_at_s, reached),
        steps_lost=None if restored_step is None else max(0, reached - restored_step),
        source=new.restored.source if new.restored is not None else "",
        world_before=old.world_size,
        world_after=new.world_size,
        node_ids=gone or (old.lost.lost_node_ids if old.lost is not None else ()) or came,
        all_lost=bool(gone) and set(gone) == set(old.node_ids),
    )


def _kind(old: Group, new: Group, gone: Sequence[str], nodes: NodeNews) -> tuple[str, float]:
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
        down_s = min(silent)
        if old.lost is not None and old.lost.at_s < down_s:  # who wrote it down saw it late
            down_s = min(trained_s, old.lost.at_s)
        return "silent", down_s
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


def _parts(
    old: Group, new: Group, lost_at_s: float, resumed_at_s: float | None
) -> dict[str, float]:
    """Seconds of each phase whose end is known."""
    if resumed_at_s is None:
        return {}
    ended = [e.at_s for e in (old.lost, old.agreed) if e is not None]
    met, restored = new.started, new.restored
    marks: dict[str, float | None] = {"detect": max(ended, default=None)}
    if new.live:
        marks["agree"] = new.started_s
        marks["connect"] = restored.connected_at_s if restored is not None else None
        marks["heal"] = restored.at_s if restored is not None else None
    else:
        marks["place"] = met.placed_at_s if met is not None else None
        marks["start"] = met.process_at_s if met is not None else None
        marks["import"] = met.imported_at_s if met is not None else None
        if marks["import"] is None:
            marks["import"] = new.started_s  # it meets a moment after its last import
        marks["restore"] = restored.at_s if restored is not None else None
    marks["first_step"] = resumed_at_s
    # Marks come from several machines' clocks; none of these can be later than the meeting.
    for phase in ("detect", "place", "start", "import"):
        if (at_s := marks.get(phase)) is not None:
            marks[phase] = min(at_s, new.started_s)
    parts, before_s = {}, lost_at_s
    for phase, at_s in marks.items():
        if at_s is not None:
            at_s = max(before_s, min(at_s, resumed_at_s))
            parts[phase] = at_s - before_s
            before_s = at_s
    return parts


def _pause_s(history: Sequence[Group], index: int, lost_at_s: float, reached: int) -> float | None:
    """Time without the end of any step, new or done again, around one change of the group."""
    life = history[index].life
    before = [g for g in history[:index] if g.life == life and g.steps]
    after = [g for g in history[index:] if g.life == life and g.steps]
    if not before or not after:
        return None
    last_s = before[-1].steps[-1].end_s
    if reached > before[-1].steps[-1].step:  # who did the last steps died before it told of them
        last_s = max(last_s, lost_at_s)
    return max(0.0, after[0].steps[0].end_s - last_s)


def _spreads(all_of_them: Iterable[Recovery]) -> Iterator[RecoverySpread]:
    alike: dict[tuple[str, str], list[Recovery]] = defaultdict(list)
    for one in all_of_them:
        alike[one.kind, one.mode].append(one)
    for (kind, mode), ones in sorted(alike.items()):
        seconds = [one.seconds for one in ones if one.seconds is not None]
        pauses = [one.pause_s for one in ones if one.pause_s is not None]
        yield RecoverySpread(
            kind=kind,
            mode=mode,
            count=len(ones),
            seconds_median=statistics.median(seconds) if seconds else None,
            seconds_max=max(seconds, default=None),
            pause_s_median=statistics.median(pauses) if pauses else None,
            pause_s_max=max(pauses, default=None),
            steps_lost_max=_most(one.steps_lost for one in ones),
        )


def _most(counts: Iterable[int | None]) -> int:
    return max((count for count in counts if count is not None), default=0)
