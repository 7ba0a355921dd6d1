"""This worker's side of live membership: signs of life, meetings, and what it may write.

Free of Ray, like `spotray.train.assembly`, which it talks to through `Calls`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from spotray.checkpoint.manifest import Manifest
from spotray.errors import FencedOut, JournalError, WorldBroken
from spotray.events import Event, Restored, encode
from spotray.storage import Store
from spotray.train.membership import Directive, Roster
from spotray.train.messages import MEET, STOP, Answer, Ask, Assignment, Beat, Entry
from spotray.train.session import Progress, StopRequest
from spotray.train.shelf import Address
from spotray.train.world import World, forget_groups, peers

log = logging.getLogger(__name__)

_BEAT_S = 0.2
_CALL_S = 5.0
_POLL_S = 10.0  # one call to join waits so long at most
_ASK_S = 5.0  # the same of one question
_CONNECT_S = 15.0  # until all members of a new generation are at the store
_GROUP_S = 5.0  # from there to a process group: one that is lost meanwhile holds the others
_SILENCE_S = 120.0  # nobody answered for so long: the job is over
_COLLECTIVE_S = 1800.0  # torch's own limit; a lost peer is found out long before


class Calls(Protocol):
    """How a worker reaches the job's `Assembly`. Any error that is not ours means: try again."""

    def call(self, method: str, *args: Any, timeout_s: float) -> Any: ...


class Unreachable(Exception):
    """The assembly did not answer; it may be starting anew."""


class LeftJob(BaseException):
    """This worker has no part in the job any more; carries why.

    Not an Exception: a training loop that catches those must not keep it from leaving.
    """


class Reenter(BaseException):
    """The state that counts lies before the epoch that this loop is in: run it from its top."""


class Member:
    """One worker of a live job, in one process.

    Args:
        calls: The way to the assembly.
        name: Of this worker, never used twice in a job.
        node_id: Where it runs.
        device: Of its tensors.
        shelf: Of this process; None: it takes no copies of others' snapshots.
    """

    def __init__(
        self,
        calls: Calls,
        *,
        name: str,
        node_id: str,
        device: torch.device,
        shelf: Address | None = None,
    ) -> None:
        self.name = name
        self._shelf = shelf
        self._copied_to: Address | None = None
        self.copy_to: Address | None = None  # where copies of its snapshots should go
        self._calls = calls
        self._node_id = node_id
        self._device = device
        self.world: World | None = None
        self.assignment: Assignment | None = None
        self._roster: Roster | None = None
        self._made_steps = False
        self._has_state = False  # the job's; a newcomer has it when it was healed
        self._progress: Progress | None = None
        self._directive = Directive(generation=0)
        self._losses = (0, 0.0)
        self._lock = threading.Lock()
        self._facts: list[str] = []
        self._first_fact = 0
        self._store: tuple[tuple[str, int], Any] | None = None
        self._closing = threading.Event()
        self._soon = threading.Event()  # the next sign of life is due now
        self._answered_at = time.monotonic()
        self._thread: threading.Thread | None = None
        self.connected_at_s: float | None = None  # to the present generation, Unix seconds
        self.is_done = False  # it left because the job has its result
        self.speaks = False  # for the whole generation: rank 0 writes the facts

    # -- life ------------------------------------------------------------------------

    def enter(self) -> Entry:
        """Tell that this process runs, and begin with the signs of life.

        Raises:
            LeftJob: there is no place for it any more.
        """
        entry: Entry = self._call("enter", self.name, self._node_id)
        if entry.out:
            raise LeftJob(entry.out)
        self._thread = threading.Thread(target=self._beats, name="membership", daemon=True)
        self._thread.start()
        return entry

    def close(self) -> None:
        """End the thread; what is left to tell is told. The process may serve another job."""
        self._closing.set()
        self._soon.set()
        if self._thread is not None:
            self._thread.join(timeout=_CALL_S)
        if self.world is not None:
            forget_groups(self.world, is_busy=False)
            self.world = None

    def join(self, why: str, *, is_busy: bool = False) -> World:
        """Leave the present world and wait for the next one.

        Args:
            why: What broke; empty if all agreed to meet.
            is_busy: Another thread uses the present world.

        Raises:
            LeftJob: there is no next one for this worker.
        """
        while True:
            generation = self._roster.generation if self._roster is not None else 0
            if self.world is not None:
                forget_groups(self.world, is_busy=is_busy)
                self.world = None
            assignment = self._ask_to_join(generation, why)
            if assignment.roster is None:
                self.is_done = assignment.done
                raise LeftJob(assignment.out)
            with self._lock:
                self._roster = assignment.roster
                self._made_steps = False
                self._progress = None
            self.assignment = assignment
            self._soon.set()
            try:
                self.world = self._connect(assignment)
            except WorldBroken as exc:
                why = f"the members could not connect: {exc}"
                log.warning("generation %d: %s", assignment.roster.generation, why)
                continue
            self.connected_at_s = time.time()
            return self.world

    # -- what the run asks and tells ---------------------------------------------------

    def asks_to_meet(self) -> StopRequest | None:
        """Why all members should meet after this step; None if they should not."""
        directive = self._directive
        if self._roster is None or directive.generation != self._roster.generation:
            return None
        if not directive.meet:
            return None
        return StopRequest(directive.meet, directive.durable)

    def progress(self, progress: Progress) -> None:
        """A step is done; ``progress`` is told if this is rank 0."""
        with self._lock:
            self._made_steps = True
            self._progress = progress

    def losses(self) -> tuple[int, float]:
        return self._losses

    def copied(self, to: Address) -> None:
        """A copy of this worker's newest snapshot arrived at a shelf."""
        self._copied_to = to
        self._soon.set()

    @property
    def roster(self) -> Roster | None:
        """The present generation; None before the first."""
        return self._roster

    def append(self, event: Event) -> None:
        """A fact for the journal, if this worker speaks; goes out with the next sign of life."""
        if isinstance(event, Restored):
            self._has_state = True
        if self.speaks:
            with self._lock:
                self._facts.append(encode(event))

    def flush(self) -> None:
        """Return when the facts so far are in storage.

        Raises:
            JournalError: they are not, or this worker may not write any more.
        """
        with self._lock:
            facts, first = tuple(self._facts), self._first_fact
        if not self.speaks:
            return
        try:
            kept = self._call("tell", self.name, facts, first, timeout_s=30.0)
        except (FencedOut, Unreachable) as exc:
            raise JournalError(f"facts are not in the journal: {exc}") from exc
        self._drop_facts(kept)

    def commit(self, folder: Store, manifest: Manifest) -> None:
        """Make a checkpoint valid, through the one who knows the members.

        Raises:
            FencedOut: this worker is not a member any more.
        """
        self._call("commit", self.name, folder, manifest, timeout_s=60.0)

    def finish(self, metrics: Mapping[str, Any], checkpoint: str | None) -> None:
        """Training is done.

        Raises:
            LeftJob: this worker is not a member any more.
        """
        try:
            self._call("finish", self.name, dict(metrics), checkpoint)
        except FencedOut as exc:
            raise LeftJob(str(exc)) from exc

    def ask(self, ask: Ask) -> str:
        """Wait for the decision about a step: GO_ON or SAVE.

        Raises:
            WorldBroken: the workers changed before it.
            LeftJob: the job is to stop, or goes on without this worker.
        """
        while True:
            try:
                decision = self._call("ask", self.name, ask, _ASK_S, timeout_s=_ASK_S + _CALL_S)
            except FencedOut as exc:
                raise LeftJob(str(exc)) from exc
            if decision == MEET:
                raise WorldBroken(self._directive.broken or "the workers changed")
            if decision == STOP:
                raise LeftJob("the job was told to stop")
            if decision is not None:
                return str(decision)

    def saved(self, step: int, url: str | None) -> None:
        """What SAVE asked for is done, or failed."""
        self._call("saved", self.name, step, url)

    @property
    def is_out(self) -> bool:
        """Whether it was thrown out."""
        return self._directive.is_out

    @property
    def is_broken(self) -> bool:
        """Whether its generation cannot go on, as far as it heard."""
        directive = self._directive
        roster = self._roster
        return directive.is_out or (
            bool(directive.broken)
            and roster is not None
            and directive.generation == roster.generation
        )

    # -- inside ---------------------------------------------------------------------------

    def _ask_to_join(self, generation: int, why: str) -> Assignment:
        silent_since = time.monotonic()
        while True:
            try:
                answer: Assignment | None = self._calls.call(
                    "join",
                    self.name,
                    generation,
                    why,
                    self._has_state,
                    _POLL_S,
                    timeout_s=_POLL_S + _CALL_S,
                )
            except Unreachable as exc:
                if time.monotonic() - silent_since > _SILENCE_S:
                    raise LeftJob(f"nobody answered for {_SILENCE_S:.0f} s: {exc}") from exc
                self._closing.wait(0.2)
                continue
            silent_since = time.monotonic()
            if answer is not None:
                return answer

    def _connect(self, assignment: Assignment) -> World:
        """Process groups with the other members of a generation."""
        roster = assignment.roster
        assert roster is not None, "asked for by join"
        rank, size = roster.rank_of(self.name), len(roster.members)
        local_rank = roster.node_ids[:rank].count(self._node_id)
        with peers("meeting the other members"):
            store = dist.PrefixStore(f"g{roster.generation}", self._open(assignment))
            self._wait_for_all(store, roster, rank)
            on_host = self._device.type == "cpu"
            _forget_attempts()
            dist.init_process_group(
                "gloo" if on_host else "cpu:gloo,cuda:nccl",
                store=store,
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=_GROUP_S),
            )
            world = World.from_process_group(
                device=self._device,
                local_rank=local_rank,
                generation=roster.generation,
                timeout=timedelta(seconds=_GROUP_S),
            )
            groups = (world.group, world.host_group, world.io_group)
            for group in {id(g): g for g in groups if g}.values():
                # Only connecting is bounded that tightly: a peer may evaluate for minutes.
                limit = timedelta(seconds=_COLLECTIVE_S)
                dist.distributed_c10d._set_pg_timeout(limit, group)
        if self.is_broken:
            world.fail(self._directive.broken)
        return world

    def _open(self, assignment: Assignment) -> Any:
        """The store at which groups meet; one connection for all generations."""
        address = (assignment.store_host, assignment.store_port)
        if self._store is None or self._store[0] != address:
            host, port = address
            store = dist.TCPStore(
                host, port, is_master=False, timeout=timedelta(seconds=_CONNECT_S)
            )
            self._store = (address, store)
        return self._store[1]

    def _wait_for_all(self, store: Any, roster: Roster, rank: int) -> None:
        """Until all members are at the store: later steps wait without asking who lives."""
        store.set(f"here/{rank}", "1")
        keys = [f"here/{one}" for one in range(len(roster.members))]
        until = time.monotonic() + _CONNECT_S
        while not store.check(keys):
            if self.is_broken:
                raise WorldBroken(self._directive.broken or "thrown out")
            if time.monotonic() > until:
                raise WorldBroken(f"not all members came within {_CONNECT_S:.0f} s")
            self._closing.wait(0.002)

    def _beats(self) -> None:
        while not self._closing.is_set():
            try:
                self._beat()
            except Exception:  # the loop must live: a silent member is thrown out
                log.exception("a sign of life failed")
            self._soon.wait(_BEAT_S)
            self._soon.clear()
        self._beat()

    def _beat(self) -> None:
        with self._lock:
            roster = self._roster
            is_first = roster is not None and roster.members[0] == self.name
            beat = Beat(
                node_id=self._node_id,
                made_steps=self._made_steps,
                roster=roster,
                progress=self._progress if is_first else None,
                facts=tuple(self._facts),
                first_fact=self._first_fact,
                shelf=self._shelf,
                copied_to=self._copied_to if is_first else None,
            )
        try:
            answer: Answer = self._calls.call("beat", self.name, beat, timeout_s=_CALL_S)
        except Unreachable as exc:
            log.debug("no answer to a sign of life: %s", exc)
            if time.monotonic() - self._answered_at > _SILENCE_S and self.world is not None:
                self.world.fail("the job's coordinator is gone")
            return
        self._answered_at = time.monotonic()
        self._drop_facts(answer.facts_kept)
        self._losses = (answer.losses, answer.node_up_s)
        self.copy_to = answer.copy_to
        self._directive = answer.directive
        world = self.world
        if world is not None and self.is_broken and not world.failed:
            world.fail(answer.directive.broken or "this worker was thrown out")

    def _drop_facts(self, kept: int) -> None:
        with self._lock:
            if kept > self._first_fact:
                del self._facts[: kept - self._first_fact]
                self._first_fact = kept

    def _call(self, method: str, *args: Any, timeout_s: float = _CALL_S) -> Any:
        """A call that is repeated while nobody answers."""
        until = time.monotonic() + _SILENCE_S
        while True:
            try:
                return self._calls.call(method, *args, timeout_s=timeout_s)
            except Unreachable:
                if time.monotonic() > until:
                    raise
                self._closing.wait(0.2)


def _forget_attempts() -> None:
    """Undo what a connection that failed half way left in torch.

    It numbers groups, and members find each other by these numbers: one that failed
    before must count like a newcomer.
    """
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.distributed_c10d._world.group_count = 0
