"""Who steps together: the rules of live membership, from plain values.

A *generation* is one list of members that share a process group. It ends when a member
is lost, when a member cannot go on with it, or when all agreed to meet again because
somebody comes or goes. Then every member that is left *joins*; the next generation is
formed when all of them did, and takes in the newcomers that are ready.

No threads, no Ray, no clock of its own: `spotray.train.live_coordinator` runs it, and a
test can try any order of events.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

_LATE_S = 0.5  # a tick that comes so late after the last one heard nobody meanwhile


@dataclass(frozen=True, kw_only=True)
class Roster:
    """One generation. Tuples are in the order of ranks."""

    generation: int
    members: tuple[str, ...]
    node_ids: tuple[str, ...]
    # Members of the generation before that hold the job's state. Empty: all begin, and the
    # newest saved state is what counts.
    heirs: tuple[str, ...] = ()

    def rank_of(self, member: str) -> int:
        return self.members.index(member)


@dataclass(frozen=True, kw_only=True)
class Directive:
    """What a member learns with each heartbeat. ``generation`` says of which one it speaks."""

    generation: int
    is_out: bool = False  # not a member any more, and no newcomer either
    broken: str = ""  # why the generation cannot go on: leave its collectives and join
    meet: str = ""  # why all should meet again after the next step
    durable: bool = False  # with meet: the state must reach storage first
    done: bool = False  # training is finished
    gave_up: str = ""  # live recovery gives way to a restart


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """Seconds; all are counted from a worker's last heartbeat, except where said."""

    heartbeat_s: float = 3.0  # a member that is silent for longer is lost
    join_s: float = 1.0  # the same while others wait for it
    newcomer_s: float = 10.0  # the same of a worker that imports and loads
    rejoin_s: float = 120.0  # from the first joiner: alive, but does not come
    start_s: float = 20.0  # from the first joiner of the first generation: not there yet


@dataclass
class _Worker:
    node_id: str
    seen_s: float
    entered: bool = False  # its process runs; before, it was only started
    joined: bool = False
    joined_order: int = 0
    has_state: bool = False  # the job's, as it said when it joined
    leaving: bool = False


@dataclass(frozen=True)
class Loss:
    """A worker that is out, with the reason; ``was_member`` of generation ``generation``."""

    member: str
    node_id: str
    why: str
    generation: int
    was_member: bool
    maybe_alive: bool


@dataclass
class _Breach:
    """Why the current generation cannot go on, and since when."""

    why: str
    at_s: float
    lost: list[str] = field(default_factory=list)  # node ids


class Membership:
    """The state of one job's membership.

    Args:
        min_workers: Fewer do not step; who is left waits, with its state in memory.
        max_workers: More do not step; newcomers beyond wait.
        timeouts: When silence is a loss.
        generation: The last one that was formed before (a job that is resumed).
        max_idle_generations: So many in a row without a single step, and live recovery
            gives up.
    """

    def __init__(
        self,
        *,
        min_workers: int,
        max_workers: int,
        timeouts: Timeouts | None = None,
        generation: int = 0,
        max_idle_generations: int = 5,
    ) -> None:
        self.min_workers, self.max_workers = min_workers, max_workers
        self.timeouts = timeouts or Timeouts()
        self._max_idle = max_idle_generations
        self.roster = Roster(generation=generation, members=(), node_ids=())
        self.losses: list[Loss] = []  # since the last look; the owner takes them
        self.done = False
        self.gave_up = ""
        self._workers: dict[str, _Worker] = {}
        self._out: dict[str, str] = {}  # names never come back; and why they are out
        self._let_go: set[str] = set()  # those of them that end by themselves, and well
        self._breach: _Breach | None = None
        self._meet: tuple[str, bool] = ("", False)
        self._first_join_s: float | None = None
        self._order = 0
        self._ticked_s: float | None = None
        self._made_steps = False  # in the current generation
        self._idle = 0  # generations in a row without a step

    # -- what workers and their owner tell --------------------------------------

    def expect(self, member: str, node_id: str, now_s: float) -> None:
        """A worker was started; the first generation waits for it."""
        if member not in self._out:
            self._workers.setdefault(member, _Worker(node_id=node_id, seen_s=now_s))

    def enter(self, member: str, node_id: str, now_s: float) -> bool:
        """A worker's process runs. Whether others step already: then it warms up first."""
        self.expect(member, node_id, now_s)
        if (worker := self._workers.get(member)) is not None:
            worker.entered, worker.seen_s = True, now_s
        return bool(self.roster.members)

    def beat(self, member: str, now_s: float, *, made_steps: bool = False) -> Directive:
        """A sign of life; the answer tells what to do.

        Args:
            member: Who gives it.
            now_s: The time.
            made_steps: It has done a step in the current generation.
        """
        worker = self._workers.get(member)
        generation = self.roster.generation
        if self.done or self.gave_up:
            # Members still part from each other: none may wait for one that is lost.
            broken = self.broken
            return Directive(
                generation=generation, broken=broken, done=self.done, gave_up=self.gave_up
            )
        if worker is None:
            return Directive(generation=generation, is_out=True)
        worker.entered, worker.seen_s = True, now_s  # this side may have forgotten the former
        if member in self.roster.members:
            self._made_steps |= made_steps
            why, durable = self._meet
            return Directive(generation=generation, broken=self.broken, meet=why, durable=durable)
        return Directive(generation=generation)

    def adopt(self, member: str, roster: Roster, now_s: float) -> None:
        """Take over a generation from one of its members, after this side forgot it.

        An older one than what is known is left alone: its members are out.
        """
        if roster.generation < self.roster.generation or member not in roster.members:
            return
        if roster.generation > self.roster.generation or not self.roster.members:
            behind = set(self.roster.members) - set(roster.members)
            self.roster = roster
            self._breach = None
            for one in behind:
                self.leave(one, "the others went on without it")
            for one, node_id in zip(roster.members, roster.node_ids, strict=True):
                self.enter(one, node_id, now_s)
            if gone := [one for one in roster.members if one in self._out]:
                self._breach = _Breach(f"{gone[0]}: {self._out[gone[0]]}", now_s)

    def join(
        self,
        member: str,
        generation: int,
        now_s: float,
        *,
        has_state: bool = False,
        why: str = "",
    ) -> None:
        """A worker waits for the next generation.

        Args:
            member: It.
            generation: The one that it comes from; 0 for a newcomer. If a newer one was
                formed meanwhile, the call is late and changes nothing.
            now_s: The time.
            has_state: It holds the job's state. A newcomer does not before it was healed,
                though it may be a member already.
            why: What it saw of the generation's end; empty if it came as agreed.
        """
        worker = self._workers.get(member)
        is_late = generation < self.roster.generation and (
            generation > 0 or member in self.roster.members
        )
        if worker is None or is_late:
            return
        worker.seen_s = now_s
        worker.has_state = has_state
        if not worker.joined:
            self._order += 1
            worker.joined, worker.joined_order = True, self._order
        if member in self.roster.members and why and self._breach is None:
            self._breach = _Breach(why, now_s)
        if self._first_join_s is None and (member in self.roster.members or not self._is_live()):
            self._first_join_s = now_s

    def lose(self, member: str, why: str, now_s: float, *, maybe_alive: bool = False) -> None:
        """A worker is gone, or thrown out; telling it twice changes nothing."""
        self._out.setdefault(member, why)
        worker = self._workers.pop(member, None)
        if worker is None:
            return
        was_member = member in self.roster.members
        self.losses.append(
            Loss(member, worker.node_id, why, self.roster.generation, was_member, maybe_alive)
        )
        if was_member and (maybe_alive or not self.done):  # else it ended like the job
            if self._breach is None:
                self._breach = _Breach(why, now_s)
            self._breach.lost.append(worker.node_id)

    def leave(self, member: str, why: str) -> None:
        """A worker that is no member leaves because it is told to."""
        self._out.setdefault(member, why)
        self._let_go.add(member)
        self._workers.pop(member, None)

    def let_go_of_surplus(self, noticed: Collection[str]) -> None:
        """Tell workers to leave for which there will be no place: who came last goes first.

        A newcomer holds a slot, also while its process only starts; somebody else may need
        it.

        Args:
            noticed: Nodes that will be taken some time; who is there needs somebody to follow.
        """
        staying = sum(self._workers[m].node_id not in noticed for m in self.members_alive())
        others = [
            m
            for m, worker in self._workers.items()
            if m not in self.roster.members and worker.node_id not in noticed
        ]
        others.sort(key=self._how_far)  # of equals who was started first
        for member in others[max(0, self.max_workers - staying) :]:
            self.leave(member, "its place is needed elsewhere")

    def why_out(self, member: str) -> str:
        """Why a worker has no part in the job any more; empty if it may have."""
        return self._out.get(member, "")

    def is_let_go(self, member: str) -> bool:
        """Whether it was told to leave, and does so by itself when it hears of it."""
        return member in self._let_go

    def set_leaving(self, node_ids: Collection[str]) -> None:
        """Nodes that will be taken: their members are not taken into the next generation."""
        for worker in self._workers.values():
            worker.leaving = worker.node_id in node_ids

    def ask_to_meet(self, why: str, *, durable: bool = False) -> None:
        """All members should meet again after their next step; empty takes it back."""
        self._meet = (why, durable)

    # -- what follows -----------------------------------------------------------

    def tick(self, now_s: float) -> Roster | None:
        """Let time pass; the next generation if it could be formed."""
        if self._ticked_s is not None and now_s - self._ticked_s > _LATE_S:
            # This side stood still, not the workers: nobody could be heard meanwhile.
            for worker in self._workers.values():
                worker.seen_s = min(now_s, worker.seen_s + now_s - self._ticked_s)
        self._ticked_s = now_s
        self._throw_out_the_silent(now_s)
        if self.done or self.gave_up:
            return None
        if not any(m in self._workers for m in self.roster.members):
            self._forget_generation()
        return self._form(now_s)

    def members_alive(self) -> list[str]:
        """Members of the current generation that are not lost, in the order of ranks."""
        return [m for m in self.roster.members if m in self._workers]

    def newcomers(self) -> list[str]:
        """Workers that wait to be let in, in the order in which they came."""
        waiting = [
            (w.joined_order, m)
            for m, w in self._workers.items()
            if w.joined and m not in self.roster.members and not w.leaving
        ]
        return [m for _, m in sorted(waiting)]

    def on_the_way(self) -> int:
        """Workers that were started and are neither members nor waiting yet."""
        return sum(not w.joined and m not in self.roster.members for m, w in self._workers.items())

    def is_member(self, member: str) -> bool:
        """Whether it may write for the job."""
        return member in self._workers and member in self.roster.members

    def is_known(self, member: str) -> bool:
        """Whether it is a member or may become one."""
        return member in self._workers

    def has_entered(self, member: str) -> bool:
        """Whether its process runs, as far as known."""
        worker = self._workers.get(member)
        return worker is not None and worker.entered

    @property
    def broken(self) -> str:
        """Why the current generation cannot go on; empty while it can."""
        return self._breach.why if self._breach is not None else ""

    @property
    def broken_nodes(self) -> tuple[str, ...]:
        """Nodes of the members that the current generation lost."""
        return tuple(self._breach.lost) if self._breach is not None else ()

    def holding(self) -> bool:
        """Whether all members wait, since too few workers are left."""
        alive = self.members_alive()
        return bool(alive) and all(self._workers[m].joined for m in alive)

    # -- inside -----------------------------------------------------------------

    def _how_far(self, member: str) -> tuple[bool, int, bool]:
        worker = self._workers[member]
        return not worker.joined, worker.joined_order, not worker.entered

    def _is_live(self) -> bool:
        return any(m in self._workers for m in self.roster.members)

    def _throw_out_the_silent(self, now_s: float) -> None:
        times = self.timeouts
        waited_for = self._first_join_s is not None and self._is_live()
        for member, worker in list(self._workers.items()):
            if not worker.entered:
                continue  # its owner knows whether it still starts
            silent_s = now_s - worker.seen_s
            is_member = member in self.roster.members
            limit_s = times.newcomer_s
            if is_member:
                limit_s = times.join_s if waited_for else times.heartbeat_s
            if silent_s > limit_s:
                why = f"no sign of life for {silent_s:.1f} s"
                self.lose(member, why, now_s, maybe_alive=True)
            elif (
                waited_for
                and is_member
                and not worker.joined
                and self._first_join_s is not None
                and now_s - self._first_join_s > times.rejoin_s
            ):
                why = f"alive, but did not join within {times.rejoin_s:.0f} s"
                self.lose(member, why, now_s, maybe_alive=True)

    def _forget_generation(self) -> None:
        """No member is left: whoever comes next begins from what was saved."""
        if self.roster.members:
            self.roster = Roster(generation=self.roster.generation, members=(), node_ids=())
            self._count_idle()
            self._breach = None
            self._first_join_s = None
            waiting = [w for w in self._workers.values() if w.joined]
            if waiting:
                self._first_join_s = max(w.seen_s for w in waiting)

    def _count_idle(self) -> None:
        self._idle = 0 if self._made_steps else self._idle + 1
        if self._idle >= self._max_idle:
            self.gave_up = f"{self._idle} generations in a row did not a single step"

    def _form(self, now_s: float) -> Roster | None:
        alive = self.members_alive()
        staying = [m for m in alive if not self._workers[m].leaving]
        if alive:
            if not all(self._workers[m].joined for m in alive):
                return None
        elif not self._first_is_complete(now_s):
            return None
        newcomers = self.newcomers()
        chosen = (staying + newcomers)[: self.max_workers]
        hold_state = {m for m in alive if self._workers[m].has_state}
        if len(chosen) < self.min_workers and self._breach is not None:
            # Not what was planned: nodes that will be taken still work, and if nobody is
            # to come, their state must be brought to storage in time.
            chosen = alive + newcomers
        if len(chosen) < self.min_workers:
            return None
        if alive and self._breach is not None:
            self._count_idle()
            if self.gave_up:
                return None
        if hold_state.isdisjoint(chosen):
            # All who hold the state leave and others come: one generation of both hands it
            # on, unless nobody holds it; the leavers are asked to go with its first step.
            chosen = chosen if not hold_state else alive + newcomers
        return self._start(chosen, tuple(m for m in chosen if m in hold_state))

    def _first_is_complete(self, now_s: float) -> bool:
        """Whether the first generation need not wait for more workers."""
        joined = [w for w in self._workers.values() if w.joined]
        if not joined:
            return False
        if len(joined) >= self.max_workers or len(joined) == len(self._workers):
            return True
        since_s = self._first_join_s if self._first_join_s is not None else now_s
        return now_s - since_s > self.timeouts.start_s

    def _start(self, chosen: list[str], heirs: tuple[str, ...]) -> Roster:
        for member in chosen:
            self._workers[member].joined = False
        self.roster = Roster(
            generation=self.roster.generation + 1,
            members=tuple(chosen),
            node_ids=tuple(self._workers[m].node_id for m in chosen),
            heirs=heirs,
        )
        self._breach = None
        self._meet = ("", False)
        self._first_join_s = None
        self._made_steps = False
        return self.roster
