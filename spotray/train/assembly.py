"""Where the members of a job meet: membership with its clock, its store and its facts.

Free of Ray: `spotray.train.coordinator` serves it to the workers as part of the job's actor, a test
as a plain object in another process. Every method may be called from any thread;
only `join` blocks.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spotray.checkpoint import manifest as manifests
from spotray.checkpoint.manifest import Manifest
from spotray.errors import FencedOut
from spotray.events import (
    Event,
    FellBack,
    MemberFencedOut,
    MemberReady,
    StepsDone,
    WorkerGroupLost,
    WorkerGroupStarted,
    decode,
)
from spotray.storage import Store
from spotray.train.leaving import time_to_leave
from spotray.train.membership import Directive, Loss, Membership, Roster
from spotray.train.moves import growth_pays, time_to_part, time_to_swap
from spotray.train.session import Progress

log = logging.getLogger(__name__)

_TICK_S = 0.05
_HOLD_S = 1.0  # members that wait for longer are told to lack others
_SETTLE_S = 1.0  # newcomers often come several at a time: wait this long for the next
_RECOVER_S = 1.0  # after a restart of this side: members tell who they are first


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What a worker learns as it enters."""

    warm_up: bool  # others step already: get ready beside them
    epoch: int  # where they are, about
    step: int


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What a worker that joined learns: its generation, or that there is none for it."""

    roster: Roster | None
    store_host: str = ""
    store_port: int = 0
    told_step: int = 0  # steps up to this one are in the journal
    reached_step: int = 0  # steps up to this one were done at least once
    broke_at_s: float | None = None  # the generation before, Unix seconds; None: as agreed
    out: str = ""  # why it is not wanted
    done: bool = False  # with out: the job has its result


@dataclass(frozen=True, kw_only=True)
class Beat:
    """What a worker tells with each sign of life."""

    node_id: str
    made_steps: bool
    roster: Roster | None  # its generation, so that this side can start anew
    progress: Progress | None  # rank 0's
    facts: tuple[str, ...] = ()  # encoded events
    first_fact: int = 0  # number of the first of them, counted by the sender


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a worker learns with each sign of life."""

    directive: Directive
    facts_kept: int  # facts below this number are safe
    losses: int  # nodes lost so far
    node_up_s: float


@dataclass(frozen=True, kw_only=True)
class View:
    """What the job's driver sees."""

    generation: int
    members: tuple[str, ...]
    known: tuple[str, ...]  # every worker that may take part
    leaving_nodes: tuple[str, ...]
    useful_workers: int  # more have nothing to do
    done: bool
    gave_up: str
    waiting_for: int  # workers that are missing before anybody steps


def _no_marks() -> tuple[int, int]:
    """Of a journal that loses nothing."""
    return 0, 0


class Assembly:
    """Membership of one job, served.

    Args:
        membership: Its rules and state.
        append: Takes facts to the journal.
        on_formed: Called with every new generation; must not call back.
        flush: Returns when the facts are in storage, or raises JournalError.
        host: Address of this node, for the store at which process groups meet.
        margin_s: Stop stepping this long before an announced loss, seconds.
        mtbp_s: How long a new node is expected to live, seconds.
        max_workers: More are not let in.
        progress: Of the job so far.
        told_step: Steps up to this one are in the journal.
        marks: How many facts the journal took so far, and how many of them are in storage.
        monotonic_s: The time by which silence is measured; a test has its own.
    """

    def __init__(
        self,
        membership: Membership,
        *,
        append: Callable[[Event], None],
        flush: Callable[[], None],
        on_formed: Callable[[Roster], None],
        host: str,
        margin_s: float,
        mtbp_s: float,
        max_workers: int,
        progress: Progress,
        told_step: int = 0,
        marks: Callable[[], tuple[int, int]] = _no_marks,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._membership = membership
        self._monotonic_s = monotonic_s
        self._append_fact = append
        self._flush = flush
        self._on_formed = on_formed
        self._host = host
        self._margin_s, self._mtbp_s, self._max = margin_s, mtbp_s, max_workers
        self.progress = progress
        self._changed = threading.Condition()
        # Members of an earlier generation may be about, of whom this side knows nothing.
        self._recovers = membership.roster.generation > 0
        self._recovers_until_s: float | None = None  # None: no worker was heard yet
        self._told: dict[str, int] = {}  # sender -> facts that are kept
        self._told_step = told_step
        self._marks = marks
        # Facts of a sender up to the first number are safe once storage holds as many of the
        # journal as the second one says: until then the sender keeps them, for this side may die.
        self._unsafe: dict[str, deque[tuple[int, int]]] = {}
        self._safe: dict[str, int] = {}
        self._ready_at: dict[str, float] = {}  # newcomer -> since when it waits, monotonic
        self._broke_at_s: float | None = None
        self._holds_since: float | None = None  # all members wait, monotonic
        self._notices: dict[str, float | None] = {}  # node id -> deadline, Unix seconds
        self._noticed_at: dict[str, float] = {}  # monotonic
        self._pause_s = 0.3  # of a planned meeting; a first guess, then measured
        self._met_at: float | None = None
        self.result: tuple[Mapping[str, Any], str | None] | None = None
        self.losses, self.node_up_s = 0, 0.0  # kept by the owner
        self._closing = threading.Event()
        self._store, self._port = _open_store(host)
        self._ticker = threading.Thread(target=self._run, name="membership", daemon=True)
        self._ticker.start()

    # -- for the workers -----------------------------------------------------------

    def enter(self, member: str, node_id: str) -> Entry:
        """A worker's process runs its training function."""
        with self._changed:
            now = self._monotonic_s()
            self._is_recovering(now, heard=True)
            warm_up = self._membership.enter(member, node_id, now)
            return Entry(warm_up=warm_up, epoch=self.progress.epoch, step=self.progress.step)

    def beat(self, member: str, beat: Beat) -> Answer:
        """A sign of life, with what there is to tell."""
        with self._changed:
            now = self._monotonic_s()
            is_recovering = self._is_recovering(now, heard=True)
            self._place(member, beat, is_recovering, now)
            if self._membership.is_member(member):
                if beat.progress is not None and (
                    beat.roster is not None
                    and beat.roster.generation == self._membership.roster.generation
                ):
                    self.progress = beat.progress
                    if self._met_at is not None:
                        self._pause_s = max(0.0, now - self._met_at - beat.progress.step_s)
                        self._met_at = None
                kept = self._keep(member, beat)
            else:
                kept = beat.first_fact + len(beat.facts)  # fenced out: they are dropped
            made_steps = (
                beat.made_steps
                and beat.roster is not None
                and (beat.roster.generation == self._membership.roster.generation)
            )
            directive = self._membership.beat(member, now, made_steps=made_steps)
            if is_recovering:
                directive = Directive(generation=directive.generation)
            return Answer(
                directive=directive,
                facts_kept=kept,
                losses=self.losses,
                node_up_s=self.node_up_s,
            )

    def join(
        self, member: str, generation: int, why: str, has_state: bool, timeout_s: float
    ) -> Assignment | None:
        """Wait for the next generation; None if there is none yet: ask again.

        Args:
            member: Who asks.
            generation: Where it comes from; 0: it is a newcomer.
            why: What broke there; empty if all agreed to meet.
            has_state: It holds the job's state.
            timeout_s: How long to wait.
        """
        until = time.monotonic() + timeout_s
        with self._changed:
            self._is_recovering(self._monotonic_s(), heard=True)
            while True:
                # Each time: after a restart, this side may only just have heard who it is.
                self._join(member, generation, why, has_state)
                if (assignment := self._assignment(member, generation)) is not None:
                    return assignment
                left_s = until - time.monotonic()
                if left_s <= 0:
                    return None
                self._changed.wait(left_s)

    def tell(self, member: str, facts: Sequence[str], first_fact: int) -> int:
        """Facts that must be in the journal before the sender goes on; how many are kept.

        Raises:
            FencedOut: the sender is not a member.
            JournalError: they are not in storage.
        """
        with self._changed:
            if not self._membership.is_member(member):
                raise FencedOut(f"{member} is not a member any more: its facts are not kept")
            self._keep(
                member,
                Beat(
                    node_id="",
                    made_steps=False,
                    roster=None,
                    progress=None,
                    facts=tuple(facts),
                    first_fact=first_fact,
                ),
            )
            told = self._told[member]
        self._flush()
        return told

    def commit(self, member: str, folder: Store, manifest: Manifest) -> None:
        """Write a checkpoint's manifest, which makes it valid: only for a member.

        Raises:
            FencedOut: the sender is not a member.
            OSError: storage did not take it.
        """
        with self._changed:
            if not self._membership.is_member(member):
                raise FencedOut(f"{member} is not a member any more: it may not write checkpoints")
        # Not under the lock, since storage may take its time and signs of life may not. Who is
        # thrown out just now was a member when all parts of this checkpoint were complete.
        manifests.write(folder, manifest)

    def finish(self, member: str, metrics: Mapping[str, Any], checkpoint: str | None) -> None:
        """Training is done, with this result."""
        with self._changed:
            if not self._membership.is_member(member):
                raise FencedOut(f"{member} is not a member any more: it cannot end the job")
            self.result = (dict(metrics), checkpoint)
            self._membership.done = True
            self._changed.notify_all()

    # -- for the driver --------------------------------------------------------------

    def sync(self, started: Mapping[str, str], gone: Mapping[str, str]) -> View:
        """The driver's workers, and what became of the others.

        Args:
            started: Workers that live as far as the driver knows, with their nodes.
            gone: Workers that ended, and why.
        """
        with self._changed:
            now = self._monotonic_s()
            membership = self._membership
            was_whole = not membership.broken
            for member, why in gone.items():
                membership.lose(member, why, now)
            losses = self._take_losses()
            if was_whole and any(loss.was_member for loss in losses):
                self._tell_broken(losses)
            for member, node_id in started.items():
                membership.expect(member, node_id, now)
            self._look(now)
            roster = membership.roster
            missing = 0
            if membership.holding():
                missing = max(1, membership.min_workers - len(membership.members_alive()))
            return View(
                generation=roster.generation,
                members=tuple(membership.members_alive()),
                known=tuple(m for m in started if membership.is_known(m)),
                leaving_nodes=tuple(self._notices),
                useful_workers=max(self._useful(), membership.min_workers),
                done=membership.done,
                gave_up=membership.gave_up,
                waiting_for=missing,
            )

    def set_notices(self, deadlines: Mapping[str, float | None]) -> None:
        """Nodes that Ray drains, with the deadline (Unix seconds) where one is known."""
        with self._changed:
            now = self._monotonic_s()
            for node_id in deadlines:
                self._noticed_at.setdefault(node_id, now)
            for node_id in self._noticed_at.keys() - deadlines.keys():
                del self._noticed_at[node_id]  # withdrawn, or the node is gone
            self._notices = dict(deadlines)

    def close(self) -> None:
        """End the thread, and whoever waits."""
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        self._ticker.join(timeout=5)
        self._store = None  # its port closes

    # -- inside -----------------------------------------------------------------------

    def _is_recovering(self, now: float, *, heard: bool = False) -> bool:
        """Whether members may still tell this side who they are.

        Args:
            now: The time.
            heard: A worker speaks; with the first one the time begins to run.
        """
        if not self._recovers:
            return False
        if heard and self._recovers_until_s is None:
            self._recovers_until_s = now + _RECOVER_S
        if self._recovers_until_s is not None and now >= self._recovers_until_s:
            self._recovers = False
        return self._recovers

    def _place(self, member: str, beat: Beat, is_recovering: bool, now: float) -> None:
        """Find out whether a worker that gives a sign of life has a part in the job."""
        membership, theirs = self._membership, beat.roster
        if is_recovering and theirs is not None:
            membership.adopt(member, theirs, now)
        is_behind = (
            theirs is not None
            and theirs.generation < membership.roster.generation
            and member not in membership.roster.members
        )
        if is_recovering:
            if not is_behind:
                membership.enter(member, beat.node_id, now)
            self._changed.notify_all()  # it may wait in `join` already
        elif is_behind:
            membership.leave(member, "the others went on without it")

    def _join(self, member: str, generation: int, why: str, has_state: bool) -> None:
        now = self._monotonic_s()
        membership = self._membership
        if not membership.is_known(member):
            return
        was_whole = not membership.broken
        membership.join(member, generation, now, why=why, has_state=has_state)
        if member in membership.newcomers():
            self._ready_at.setdefault(member, now)
        if was_whole and membership.broken:
            self._tell_broken()
        self._look(now)

    def _assignment(self, member: str, generation: int) -> Assignment | None:
        membership = self._membership
        if membership.done:
            return Assignment(roster=None, out="training is done", done=True)
        if membership.gave_up:
            return Assignment(roster=None, out=membership.gave_up)
        if self._closing.is_set():
            return Assignment(roster=None, out="the job ends")
        roster = membership.roster
        if member in roster.members and roster.generation > generation:
            return Assignment(
                roster=roster,
                store_host=self._host,
                store_port=self._port,
                told_step=self._told_step,
                reached_step=self.progress.step,
                broke_at_s=self._broke_at_s,
            )
        if self._is_recovering(self._monotonic_s()):
            return None
        if generation and roster.generation > generation:
            # As they had agreed where its node will be taken.
            membership.leave(member, "the others went on without it")
        if not membership.is_known(member):
            return Assignment(roster=None, out=membership.why_out(member) or "nobody knows it")
        return None

    def _keep(self, member: str, beat: Beat) -> int:
        """Journal the facts that are new; how many of this sender's are in storage."""
        known = self._told.get(member, beat.first_fact)
        for line in beat.facts[max(0, known - beat.first_fact) :]:
            event = decode(line)
            if isinstance(event, StepsDone):
                self._told_step = max(self._told_step, event.last_step)
            self._append_fact(event)
        told = self._told[member] = max(known, beat.first_fact + len(beat.facts))
        taken, written = self._marks()
        unsafe = self._unsafe.setdefault(member, deque())
        if told > known:
            unsafe.append((told, taken))
        while unsafe and unsafe[0][1] <= written:
            self._safe[member] = unsafe.popleft()[0]
        return self._safe.get(member, beat.first_fact)

    def _run(self) -> None:
        while not self._closing.wait(_TICK_S):
            with self._changed:
                try:
                    self._look(self._monotonic_s())
                except Exception:  # the loop must live: without it nobody is found lost
                    log.exception("the members of the job could not be looked at")

    def _look(self, now: float) -> None:
        """Let time pass: losses, plans, and the next generation if it can be formed."""
        membership = self._membership
        if self._is_recovering(now):
            return
        was_whole = not membership.broken
        before = membership.roster.generation
        self._plan(now)
        had_members = bool(membership.roster.members)
        roster = membership.tick(now)
        self._tell_fallback(had_members, now)
        losses = self._take_losses()
        if was_whole and (membership.broken or any(loss.was_member for loss in losses)):
            self._tell_broken(losses)
            was_whole = False
        if roster is not None and roster.generation > before:
            if was_whole:
                self._broke_at_s = None  # they met as agreed
            self._tell_formed(roster, now)
            self._changed.notify_all()
        elif losses or membership.done or membership.gave_up:
            self._changed.notify_all()

    def _tell_fallback(self, had_members: bool, now: float) -> None:
        """Tell where the state in the members' memory is not enough to go on at once."""
        membership = self._membership
        if membership.done or membership.gave_up:
            return
        left = len(membership.members_alive())
        if had_members and not left:
            why = "no worker is left: the next ones begin from what was saved"
            self._fell_back(why, "snapshot")
        if not (left and membership.holding()):
            self._holds_since = None
        elif self._holds_since is None:
            self._holds_since = now
        elif self._holds_since + _HOLD_S <= now:
            self._holds_since = float("inf")  # told
            least = membership.min_workers
            why = f"{left} worker(s) of at least {least} are left: they wait, and keep the state"
            self._fell_back(why, "waiting")

    def _fell_back(self, why: str, to: str) -> None:
        log.warning("%s", why)
        generation = self._membership.roster.generation
        self._append_fact(FellBack(at_s=time.time(), generation=generation, why=why, to=to))

    def _take_losses(self) -> list[Loss]:
        losses, self._membership.losses = self._membership.losses, []
        for loss in losses:
            self._ready_at.pop(loss.member, None)
            if self._membership.done:
                continue
            log.warning("worker %s on node %s is out: %s", loss.member, loss.node_id[:8], loss.why)
            if loss.maybe_alive:
                self._append_fact(
                    MemberFencedOut(
                        at_s=time.time(),
                        generation=loss.generation,
                        node_id=loss.node_id,
                        why=loss.why,
                    )
                )
        return losses

    def _tell_broken(self, losses: Sequence[Loss] = ()) -> None:
        membership = self._membership
        if membership.done:
            return
        self._broke_at_s = time.time()
        self._append_fact(
            WorkerGroupLost(
                at_s=self._broke_at_s,
                generation=membership.roster.generation,
                cause="loss",
                why=membership.broken or "; ".join(loss.why for loss in losses),
                lost_node_ids=membership.broken_nodes
                or tuple(loss.node_id for loss in losses if loss.was_member),
            )
        )

    def _tell_formed(self, roster: Roster, now: float) -> None:
        self._met_at = now if self._broke_at_s is None and roster.heirs else None
        self._on_formed(roster)
        for member in roster.members:
            if (since := self._ready_at.pop(member, None)) is not None and roster.heirs:
                node_id = roster.node_ids[roster.rank_of(member)]
                ready_s = now - since
                self._append_fact(
                    MemberReady(at_s=time.time() - ready_s, node_id=node_id, seconds=ready_s)
                )
        self._append_fact(
            WorkerGroupStarted(
                at_s=time.time(),
                generation=roster.generation,
                world_size=len(roster.members),
                node_ids=roster.node_ids,
                live=bool(roster.heirs),
            )
        )

    def _plan(self, now: float) -> None:
        """Decide whether all members should meet again after their next step, and why."""
        membership = self._membership
        alive = membership.members_alive()
        if not alive:
            membership.set_leaving(set(self._notices))
        if not alive or membership.broken:
            return
        group = [n for m, n in self._nodes_of(alive)]
        newcomers = membership.newcomers()
        leaving = [n for n in self._notices if n in group]
        why, durable = "", False
        if leaving:
            staying = sum(n not in self._notices for n in group)
            room = staying + len(newcomers)
            known = [d for n in leaving if (d := self._notices[n]) is not None]
            deadline_s = min(known) if len(known) == len(leaving) else None
            first = min(self._noticed_at[n] for n in leaving)
            if room == 0:
                # No peer will be left to keep the state: it goes to storage in time.
                stop = time_to_leave(
                    deadline_s=deadline_s,
                    leaving=leaving,
                    group=group,
                    progress=self.progress,
                    room=0,
                    margin_s=self._margin_s,
                    now_s=time.time(),
                )
                if stop is not None:
                    why, durable = stop.why, stop.durable
            elif time_to_part(
                deadline_s=deadline_s,
                step_s=self.progress.step_s,
                margin_s=self._margin_s,
                now_s=time.time(),
            ):
                why = f"{len(leaving)} node(s) are about to be taken"
            elif room >= len(group) and time_to_swap(noticed_for_s=now - first):
                why = f"{len(leaving)} node(s) will be taken, others are ready"
        # Until then they step with the others, also through a meeting for another reason.
        parting = set(leaving) if why else set()
        membership.set_leaving((set(self._notices) - set(group)) | parting)
        if not why and newcomers and len(alive) < min(self._max, self._useful()):
            settled = membership.on_the_way() == 0 or (
                now - min(self._ready_at.get(m, now) for m in newcomers) >= _SETTLE_S
            )
            pays = growth_pays(
                pause_s=self._pause_s, workers=len(alive), expected_life_s=self._mtbp_s
            )
            if settled and pays:
                why = f"{len(newcomers)} worker(s) are ready"
        membership.ask_to_meet(why, durable=durable)

    def _useful(self) -> int:
        return self.progress.useful_workers or self._max

    def _nodes_of(self, members: Sequence[str]) -> list[tuple[str, str]]:
        roster = self._membership.roster
        return [(m, roster.node_ids[roster.rank_of(m)]) for m in members]


def _open_store(host: str) -> tuple[Any, int]:
    """The store at which process groups meet, on ``host`` alone, and its port."""
    from torch.distributed import TCPStore

    with socket.create_server((host, 0), backlog=1024) as listener:
        port = listener.getsockname()[1]
        store = TCPStore(
            host,
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
    return store, port
