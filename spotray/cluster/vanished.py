"""Finds out which workers left the cloud's list without anybody here having ended them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from spotray.clock import Clock
from spotray.cluster.memory import LaunchMemory
from spotray.events import Event, InstanceVanished
from spotray.market.offer import Market
from spotray.policy.view import Launched

log = logging.getLogger(__name__)

LISTED_IN_S = 60.0  # a machine that is launched is in the cloud's list by then


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A worker's machine as the cloud lists it."""

    market: Market
    launched_s: float  # Unix seconds, by the cloud's clock
    listed_as: Any = None  # the listing's own record, for who asks after its fate


@dataclass(frozen=True, kw_only=True)
class Fate:
    """What the cloud says of a machine that it lists no more."""

    alive: bool = False  # it is there after all: listings are not always complete
    preempted: bool | None = None  # None: the cloud does not tell
    why: str = ""  # the cloud's words


class Lookout:
    """Compares each listing of the workers with the one before. Safe from any thread.

    What was launched since this was made is looked for too, for a machine may be taken
    before any listing had it.
    A spot machine that is gone was preempted unless the cloud says something else. One
    that Ray itself ended after a notice is not seen here: whoever heard the notice tells
    the memory.
    """

    def __init__(
        self, memory: LaunchMemory, *, tell: Callable[[Event], None], clock: Clock
    ) -> None:
        self._memory, self._tell, self._clock = memory, tell, clock
        self._alive: dict[str, Machine] = {}
        self._ended: set[str] = set()
        self._known: set[str] = set()  # were listed, or ended here, or have been told of
        self._since_s = clock.now_s()
        self._lock = threading.Lock()
        self._listing = threading.Lock()

    def ending(self, names: Iterable[str]) -> None:
        """Ray or the user is about to end these."""
        with self._lock:
            ended = set(names)
            self._ended |= ended
            self._known |= ended

    def pass_over(self, names: Collection[str]) -> None:
        """These are no workers: nobody looks for them."""
        with self._lock:
            self._known.update(names)
            for name in names:
                self._alive.pop(name, None)

    def look(
        self, listing: Callable[[], Mapping[str, Machine]], fate: Callable[[str, Machine], Fate]
    ) -> None:
        """Take a listing of the workers, and tell of those that are missing in it.

        Args:
            listing: asks the cloud; one at a time, since of two the older one would miss
                what is new.
            fate: asks the cloud about one machine.
        """
        with self._listing:
            launched = self._launched()  # first: what comes while the cloud lists is not in it
            listed = listing()
            with self._lock:
                self._known.update(listed)
                never = {k: v for k, v in launched.items() if k not in self._known}
                self._known.update(never)
                gone = {
                    name: machine
                    for name, machine in self._alive.items()
                    if name not in listed and name not in self._ended
                }
                self._alive = dict(listed)
                self._ended.intersection_update(listed)  # what was ended is listed for a while
        for name, machine in gone.items():
            self._missing(name, machine, fate(name, machine))
        for name, machine in never.items():
            answer = fate(name, machine)
            is_new = self._clock.now_s() - machine.launched_s < LISTED_IN_S
            if is_new and not answer.alive and not answer.why:
                with self._lock:  # the cloud may not know it yet: it is looked for again
                    self._known.discard(name)
                continue
            self._missing(name, machine, answer)

    def _launched(self) -> dict[str, Machine]:
        """What this process launched and nobody has seen yet."""
        return {
            name: Machine(market=fact.market, launched_s=fact.at_s)
            for fact in self._memory.facts()
            if isinstance(fact, Launched) and fact.at_s >= self._since_s
            for name in fact.names
            if name not in self._known
        }

    def _missing(self, name: str, machine: Machine, fate: Fate) -> None:
        if fate.alive:
            with self._lock:
                self._alive.setdefault(name, machine)
            return
        now_s = self._clock.now_s()
        launched_s = next(
            (
                fact.at_s
                for fact in reversed(self._memory.facts())  # it may have been started again
                if isinstance(fact, Launched) and name in fact.names
            ),
            machine.launched_s,
        )
        lived_s = max(0.0, now_s - launched_s)
        preempted = machine.market.spot if fate.preempted is None else fate.preempted
        if preempted:
            self._memory.preempted(machine.market, name, lived_s=lived_s)
        log.info("%s in %s vanished: %s", name, machine.market, fate.why or "nobody says why")
        self._tell(
            InstanceVanished(
                at_s=now_s,
                name=name,
                market=str(machine.market),
                preempted=preempted,
                lived_s=lived_s,
                why=fate.why,
            )
        )
