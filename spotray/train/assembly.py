"""Where the members of a job meet: membership with its clock, its store and its facts.

Free of Ray: `spotray.train.coordinator` serves it to the workers as part of the job's actor, a test
as a plain object in another process. Every method may be called from any thread;
those with a time-out block.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spotray.checkpoint import manifest as manifests
from spotray.checkpoint.manifest import Manifest
from spotray.errors import FencedOut
from spotray.events import Event
from spotray.storage import Store
from spotray.train.asks import Asks
from spotray.train.chronicle import Chronicle
from spotray.train.copies import CopiesOf
from spotray.train.hearing import Hearing
from spotray.train.inbox import Inbox
from spotray.train.membership import Directive, Membership, Roster
from spotray.train.messages import MEET, Answer, Ask, Assignment, Beat, Entry, View
from spotray.train.moves import Newcomers, Planner
from spotray.train.session import Progress
from spotray.train.shelf import Address
from spotray.train.world import open_store

log = logging.getLogger(__name__)

_TICK_S = 0.05
_ASK_S = 0.1  # between two looks whether who asks is a member still


class Assembly:
    """Membership of one job, served.

    Args:
        membership: Its rules and state.
        append: Takes this side's own facts to the journal.
        inbox: Takes the workers' facts there.
        on_formed: Called with every new generation; must not call back.
        flush: Returns when the facts are in storage, or raises JournalError.
        host: Address of this node, for the store at which process groups meet.
        planner: Decides when the members should meet although nobody is lost.
        max_workers: More are not let in.
        progress: Of the job so far.
        adopts: Members of a generation before this object may still step; without, they are
            out, and the first ones that come need not wait for them.
        copies: Where copies of this job's snapshots go; None: nowhere.
        monotonic_s: The time by which silence is measured; a test has its own.
    """

    def __init__(
        self,
        membership: Membership,
        *,
        append: Callable[[Event], None],
        inbox: Inbox,
        flush: Callable[[], None],
        on_formed: Callable[[Roster], None],
        host: str,
        planner: Planner,
        max_workers: int,
        progress: Progress,
        adopts: bool = True,
        copies: CopiesOf | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._membership, self._max = membership, max_workers
        self._planner, self._inbox = planner, inbox
        self._chronicle = Chronicle(membership, append)
        self._flush, self._on_formed = flush, on_formed
        self._monotonic_s, self._copies = monotonic_s, copies
        self.progress = progress
        self._share = max_workers
        self.asks = Asks()
        self._changed = threading.Condition()
        # Members of an earlier generation may be about, of whom this side knows nothing.
        self.hearing = Hearing(
            needed=adopts and membership.roster.generation > 0,
            length_s=membership.timeouts.heartbeat_s,
        )
        self.result: tuple[Mapping[str, Any], str | None] | None = None
        self.losses, self.node_up_s = 0, 0.0  # kept by the owner
        self._closing = threading.Event()
        self._host = host
        self._store, self._port = open_store(host)
        self._ticker = threading.Thread(target=self._run, name="membership", daemon=True)
        self._ticker.start()

    # -- for the workers -----------------------------------------------------------

    def enter(self, member: str, node_id: str) -> Entry:
        """A worker's process runs its training function."""
        with self._changed:
            now = self._monotonic_s()
            self.hearing.heard(now)
            warm_up = self._membership.enter(member, node_id, now)
            return Entry(
                warm_up=warm_up,
                epoch=self.progress.epoch,
                step=self.progress.step,
                out=self._membership.why_out(member),
            )

    def beat(self, member: str, beat: Beat) -> Answer:
        """A sign of life, with what there is to tell."""
        with self._changed:
            now = self._monotonic_s()
            is_hearing = self.hearing.heard(now)
            self._place(member, beat, is_hearing, now)
            is_current = (
                beat.roster is not None
                and beat.roster.generation == self._membership.roster.generation
            )
            if self._membership.is_member(member):
                if beat.progress is not None and is_current:
                    self.progress = beat.progress
                    self._planner.stepped(beat.progress, monotonic_s=now)
                self._inbox.keep(member, beat.facts, beat.first_fact)
                kept = self._inbox.safe(member)
            else:
                kept = beat.first_fact + len(beat.facts)  # fenced out: they are dropped
            made_steps = beat.made_steps and is_current
            directive = self._membership.beat(member, now, made_steps=made_steps)
            if is_hearing:
                directive = Directive(generation=directive.generation)
            return Answer(
                directive=directive,
                facts_kept=kept,
                losses=self.losses,
                node_up_s=self.node_up_s,
                copy_to=self._copy_to(member, beat, is_current=is_current),
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
            self.hearing.heard(self._monotonic_s())
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
            if not self._may_write(member):
                raise FencedOut(f"{member} is not a member any more: its facts are not kept")
            told = self._inbox.keep(member, facts, first_fact)
        self._flush()
        return told

    def commit(self, member: str, folder: Store, manifest: Manifest) -> None:
        """Write a checkpoint's manifest, which makes it valid: only for a member.

        Raises:
            FencedOut: the sender is not a member.
            OSError: storage did not take it.
        """
        with self._changed:
            if not self._may_write(member):
                raise FencedOut(f"{member} is not a member any more: it may not write checkpoints")
        # Not under the lock, since storage may take its time and signs of life may not. Who is
        # thrown out just now was a member when all parts of this checkpoint were complete.
        manifests.write(folder, manifest)

    def finish(self, member: str, metrics: Mapping[str, Any], checkpoint: str | None) -> None:
        """Training is done, with this result."""
        with self._changed:
            if not self._may_write(member):
                raise FencedOut(f"{member} is not a member any more: it cannot end the job")
            self.result = (dict(metrics), checkpoint)
            self._membership.done = True
            self._changed.notify_all()

    def ask(self, member: str, ask: Ask, timeout_s: float) -> str | None:
        """Whether to go on after a step: GO_ON, SAVE or STOP, the same for all members.

        MEET: not decided, and the workers changed: they meet first. None: ask again.

        Raises:
            FencedOut: the sender is not a member.
        """
        until = time.monotonic() + timeout_s
        with self._changed:
            while True:
                membership = self._membership
                if not self._may_write(member):
                    why = membership.why_out(member)
                    raise FencedOut(f"{member} is not a member any more: {why}")
                if membership.roster.members[0] == member:
                    self.asks.tell(ask)
                    self._changed.notify_all()
                if decision := self.asks.decision(ask.step):
                    return decision
                if membership.broken:
                    return MEET
                left_s = until - time.monotonic()
                if left_s <= 0:
                    return None
                self._changed.wait(min(left_s, _ASK_S))

    def saved(self, member: str, step: int, url: str | None) -> None:
        """All members did what SAVE asked; ``url`` of the checkpoint, None if it failed."""
        with self._changed:
            if self._may_write(member):
                self.asks.saved(step, url)
                self._changed.notify_all()

    # -- for who decides -------------------------------------------------------------

    def next_ask(self, timeout_s: float) -> Ask | None:
        """The workers' next question, once; None if there is none meanwhile."""
        with self._changed:
            self._changed.wait_for(self.asks.has_next, timeout_s)
            return self.asks.next()

    def decide(self, step: int, kind: str) -> None:
        """Answer the question about a step: GO_ON, SAVE or STOP."""
        with self._changed:
            self.asks.decide(step, kind)
            self._changed.notify_all()

    def wait_saved(self, timeout_s: float) -> tuple[int, str | None] | None:
        """Step and URL of what SAVE asked for, once; None if it is not there in time."""
        with self._changed:
            self._changed.wait_for(self.asks.has_saved, timeout_s)
            return self.asks.take_saved()

    def set_share(self, workers: int) -> None:
        """At most so many take part from now on, but not fewer than the least."""
        with self._changed:
            self._share = max(self._membership.min_workers, min(workers, self._max))
            self._membership.max_workers = self._share

    def stop(self, why: str) -> None:
        """Everybody is out: the job ends without a result."""
        with self._changed:
            membership = self._membership
            membership.gave_up = membership.gave_up or why
            for member in membership.members_alive():
                membership.lose(member, why, self._monotonic_s())
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
            losses = self._chronicle.take_losses()
            if was_whole and any(loss.was_member for loss in losses):
                self._chronicle.broken(losses)
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
                entered=tuple(m for m in started if membership.has_entered(m)),
                let_go=tuple(m for m in started if membership.is_let_go(m)),
                leaving_nodes=tuple(self._planner.notices),
                useful_workers=max(self._useful(), membership.min_workers),
                done=membership.done,
                gave_up=membership.gave_up,
                waiting_for=missing,
                least=membership.min_workers,
            )

    def set_notices(self, deadlines: Mapping[str, float | None]) -> None:
        """Nodes that Ray drains, with the deadline (Unix seconds) where one is known."""
        with self._changed:
            self._planner.set_notices(deadlines, monotonic_s=self._monotonic_s())

    def close(self) -> None:
        """End the thread, and whoever waits."""
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        self._ticker.join(timeout=5)
        self._store = None  # its port closes

    # -- inside -----------------------------------------------------------------------

    def _may_write(self, member: str) -> bool:
        """Whether a worker is a member; waits while this side has yet to hear who is one."""
        while not self._membership.is_member(member):
            if not self.hearing.heard(self._monotonic_s()):
                return False
            self._changed.wait(_TICK_S)  # its next sign of life may be under way
        return True

    def _place(self, member: str, beat: Beat, is_hearing: bool, now: float) -> None:
        """Find out whether a worker that gives a sign of life has a part in the job."""
        membership, theirs = self._membership, beat.roster
        if is_hearing and theirs is not None:
            membership.adopt(member, theirs, now)
        is_behind = (
            theirs is not None
            and theirs.generation < membership.roster.generation
            and member not in membership.roster.members
        )
        if is_hearing:
            if not is_behind:
                membership.enter(member, beat.node_id, now)
            self._changed.notify_all()  # it may wait in `join` already
        elif is_behind:
            membership.leave(member, "the others went on without it")

    def _copy_to(self, member: str, beat: Beat, *, is_current: bool) -> Address | None:
        """Where copies of the members' snapshots go; told to all, done by who takes them."""
        if self._copies is None:
            return None
        if beat.shelf is not None:
            self._copies.heard(beat.shelf)
        if not (is_current and self._membership.is_member(member)):
            return None
        if beat.copied_to is not None:
            self._copies.held(beat.copied_to)
        return self._copies.go_to(self._membership.roster.node_ids)

    def _join(self, member: str, generation: int, why: str, has_state: bool) -> None:
        now = self._monotonic_s()
        membership = self._membership
        if not membership.is_known(member):
            return
        was_whole = not membership.broken
        membership.join(member, generation, now, why=why, has_state=has_state)
        if member in membership.newcomers():
            self._chronicle.ready(member, now)
        if was_whole and membership.broken:
            self._chronicle.broken()
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
                told_step=self._inbox.told_step,
                told_report=self._inbox.told_report,
                reached_step=self.progress.step,
                asked_step=self.asks.pending_step,
                broke_at_s=self._chronicle.broke_at_s,
                copy_at=self._copies.held_by() if self._copies and not roster.heirs else None,
            )
        if self.hearing.is_on(self._monotonic_s()):
            return None
        if generation and roster.generation > generation:
            # As they had agreed where its node will be taken.
            membership.leave(member, "the others went on without it")
        if not membership.is_known(member):
            return Assignment(roster=None, out=membership.why_out(member) or "nobody knows it")
        return None

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
        if self.hearing.is_on(now):
            return
        was_whole = not membership.broken
        before = membership.roster.generation
        self._plan(now)
        membership.let_go_of_surplus(self._planner.notices.keys())
        had_members = bool(membership.roster.members)
        roster = membership.tick(now)
        chronicle = self._chronicle
        chronicle.fallback(had_members=had_members, now=now)
        losses = chronicle.take_losses()
        if was_whole and (membership.broken or any(loss.was_member for loss in losses)):
            chronicle.broken(losses)
            was_whole = False
        if roster is not None and roster.generation > before:
            if was_whole:
                chronicle.broke_at_s = None  # they met as agreed
            as_agreed = chronicle.broke_at_s is None and bool(roster.heirs)
            self._planner.met(planned=as_agreed, monotonic_s=now)
            self._on_formed(roster)
            chronicle.formed(roster, now)
            self._changed.notify_all()
        elif losses or membership.done or membership.gave_up:
            self._changed.notify_all()

    def _plan(self, now: float) -> None:
        """Decide whether all members should meet again after their next step, and why."""
        membership = self._membership
        alive = membership.members_alive()
        if not alive:
            membership.set_leaving(self._planner.notices.keys())
        if not alive or membership.broken:
            return
        roster, waiting = membership.roster, membership.newcomers()
        move = self._planner.decide(
            [roster.node_ids[roster.rank_of(m)] for m in alive],
            Newcomers(
                ready=len(waiting),
                waited_s=self._chronicle.longest_wait_s(waiting, now),
                on_the_way=membership.on_the_way(),
            ),
            progress=self.progress,
            most=min(self._share, self._useful()),
            share=self._share,
            now_s=time.time(),
            monotonic_s=now,
        )
        membership.set_leaving(move.leaving_nodes)
        membership.ask_to_meet(move.why, durable=move.durable)

    def _useful(self) -> int:
        return self.progress.useful_workers or self._max
