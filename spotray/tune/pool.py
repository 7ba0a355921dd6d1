"""The workers of a sweep: placed in one place, so that trials do not race for a free slot.

A worker that a trial needs no longer waits a moment for the next trial: its process has
loaded torch already.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from spotray.train.messages import View
from spotray.train.placing import AVOID_S, SEEN_S
from spotray.tune.shares import Demand, plan

log = logging.getLogger(__name__)

LOOK_S = 0.5  # between two looks at Ray's nodes
IDLE_S = 20.0  # an idle worker ends: its memory may be wanted by something else


@dataclass(frozen=True)
class Room:
    """What Ray's nodes hold now."""

    free: Mapping[str, int]  # node id -> workers more that would fit
    leaving: frozenset[str]  # nodes that will be taken


class Nodes(Protocol):
    """The cluster, as far as workers are concerned."""

    def room(self) -> Room:
        """A look at the nodes that are there."""
        ...

    def start(self, node_id: str) -> Any:
        """A new worker's process."""
        ...

    def end(self, actor: Any) -> None: ...

    def request(self, workers: int) -> None:
        """Tell the autoscaler how many workers could be used."""
        ...


@dataclass
class _Idle:
    actor: Any
    node_id: str
    since: float  # monotonic


@dataclass
class _Tenant:
    """One trial and what it has."""

    demand: Demand
    limit: Callable[[int], None] | None = None
    workers: dict[Any, str] = field(default_factory=dict)  # actor -> node id
    prefers: Sequence[str] = ()  # nodes
    promised: list[str] = field(default_factory=list)  # nodes on which it will start one
    share: int = 0
    limited_to: int | None = None


class Pool:
    """All workers of a sweep, and who may have how many.

    Args:
        nodes: Where workers can be.
        least: Workers of a trial, of which fewer do not step.
        most: Workers of a trial at most.
        monotonic_s: The time; a test has its own.
    """

    def __init__(
        self,
        nodes: Nodes,
        *,
        least: int,
        most: int,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nodes, self._least, self._most = nodes, least, most
        self._monotonic_s = monotonic_s
        self._changed = threading.Condition()
        self._tenants: dict[str, _Tenant] = {}  # in the order of their start
        self._idle: list[_Idle] = []
        self._unseen: list[tuple[str, float]] = []  # started: node id, monotonic
        self._avoid: dict[str, float] = {}  # node id -> until then, monotonic
        self._room = Room({}, frozenset())
        self._more = 0  # workers for trials that did not begin
        self._closed = False

    def join(self, trial: str, *, prefers: Sequence[str] = ()) -> TrialWorkers:
        """A trial begins to take part.

        Args:
            prefers: Nodes whose memory has its state, the newest first.
        """
        with self._changed:
            demand = Demand(trial=trial, least=self._least, most=self._most)
            self._tenants[trial] = _Tenant(demand, prefers=prefers)
            self._share_out()
        return TrialWorkers(self, trial)

    def look(self) -> None:
        """Look at the nodes, and share out again; to be called every `LOOK_S` or so."""
        room = self._nodes.room()
        to_end: list[Any] = []
        with self._changed:
            now = self._monotonic_s()
            self._unseen = [one for one in self._unseen if now - one[1] < SEEN_S]
            self._avoid = {n: until for n, until in self._avoid.items() if until > now}
            unseen = Counter(node_id for node_id, _ in self._unseen)
            self._room = Room(
                {n: max(0, free - unseen[n]) for n, free in room.free.items()}, room.leaving
            )
            for one in list(self._idle):
                if now - one.since > IDLE_S or not self._is_good(one.node_id):
                    self._idle.remove(one)
                    to_end.append(one.actor)
            self._share_out()
            wanted = self._more + sum(t.demand.most for t in self._tenants.values())
        for actor in to_end:
            self._nodes.end(actor)
        self._nodes.request(wanted)
        self._hold_to_shares()

    def ask_for_more(self, workers: int) -> None:
        """Ask the autoscaler for so many beyond what the trials here could use."""
        with self._changed:
            self._more = workers

    def slots(self) -> int:
        """Workers that the nodes hold, those that run included."""
        with self._changed:
            return self._slots()

    def is_short(self, *, besides: Collection[str] = ()) -> bool:
        """Whether trials lack workers that they need at least, and no slot is free for them.

        Args:
            besides: Trials that do not count.
        """
        with self._changed:
            have = self._have()
            missing = sum(
                max(0, tenant.demand.least - have[trial])
                for trial, tenant in self._tenants.items()
                if trial not in besides
            )
            return missing > self._free()

    def close(self) -> None:
        """End all workers that are left."""
        with self._changed:
            self._closed = True
            actors = [one.actor for one in self._idle]
            actors += [actor for t in self._tenants.values() for actor in t.workers]
            self._idle.clear()
            self._tenants.clear()
            self._changed.notify_all()
        for actor in actors:
            self._nodes.end(actor)

    # -- for one trial ------------------------------------------------------------

    def wait(self, trial: str, timeout_s: float) -> bool:
        """Whether a trial may have its least number of workers; waits for that."""

        def has_room() -> bool:
            tenant = self._tenants.get(trial)
            return tenant is not None and tenant.share >= tenant.demand.least

        with self._changed:
            return self._changed.wait_for(has_room, timeout_s)

    def leave(self, trial: str) -> None:
        """A trial is over."""
        with self._changed:
            tenant = self._tenants.pop(trial, None)
            self._share_out()
        for actor in tenant.workers if tenant is not None else ():
            self._nodes.end(actor)

    def on_limit(self, trial: str, limit: Callable[[int], None]) -> None:
        """What to call when a trial should let workers go, with the number that it keeps."""
        with self._changed:
            if (tenant := self._tenants.get(trial)) is not None:
                tenant.limit = limit

    def places(self, trial: str, view: View, mine: Mapping[str, str]) -> list[str]:
        """Nodes on which a trial should start one worker each, now."""
        with self._changed:
            tenant = self._tenants.get(trial)
            if tenant is None or self._closed:
                return []
            most = max(self._least, min(self._most, view.useful_workers))
            if most != tenant.demand.most:
                tenant.demand = Demand(trial=trial, least=self._least, most=most)
                self._share_out()
            leaving = self._room.leaving | set(view.leaving_nodes)
            tenant.promised.clear()  # what it was told last time, it has done since
            missing = tenant.share - sum(node not in leaving for node in mine.values())
            found: list[str] = []
            while len(found) < missing:
                node_id = self._next_slot(leaving, tenant.prefers)
                if node_id is None:
                    break
                found.append(node_id)
                tenant.promised.append(node_id)
            return found

    def start(self, trial: str, node_id: str) -> Any:
        """A worker's process on a node: one that waits there, or a new one."""
        with self._changed:
            tenant = self._tenants[trial]
            if node_id in tenant.promised:
                tenant.promised.remove(node_id)
            waiting = next((one for one in self._idle if one.node_id == node_id), None)
            if waiting is not None:
                self._idle.remove(waiting)
                tenant.workers[waiting.actor] = node_id
                return waiting.actor
            self._unseen.append((node_id, self._monotonic_s()))
            free = dict(self._room.free)
            free[node_id] = max(0, free.get(node_id, 0) - 1)
            self._room = Room(free, self._room.leaving)
            actor = self._nodes.start(node_id)
            tenant.workers[actor] = node_id
            return actor

    def give_back(self, trial: str, actor: Any, *, healthy: bool) -> None:
        """A trial needs a worker no longer."""
        with self._changed:
            tenant = self._tenants.get(trial)
            node_id = tenant.workers.pop(actor, None) if tenant is not None else None
            is_fit = healthy and node_id is not None and not self._closed
            if is_fit and node_id is not None and self._is_good(node_id):
                self._idle.append(_Idle(actor, node_id, self._monotonic_s()))
                self._share_out()
                return
        self._nodes.end(actor)

    def avoid(self, node_id: str) -> None:
        """A worker fell silent there: place none for a while."""
        with self._changed:
            self._avoid[node_id] = self._monotonic_s() + AVOID_S

    # -- inside -------------------------------------------------------------------

    def _is_good(self, node_id: str) -> bool:
        return (
            node_id in self._room.free
            and node_id not in self._room.leaving
            and node_id not in self._avoid
        )

    def _next_slot(self, leaving: Collection[str], prefers: Sequence[str]) -> str | None:
        """A node with a slot that nobody has or was promised.

        One of those preferred first, then one with a waiting worker.
        """
        promised = Counter(n for tenant in self._tenants.values() for n in tenant.promised)
        waiting = Counter(one.node_id for one in self._idle)
        good = [n for n in self._room.free if self._is_good(n) and n not in leaving]
        preferred = [n for n in prefers if n in good]
        for node_id in preferred:
            if waiting[node_id] + self._room.free[node_id] > promised[node_id]:
                return node_id
        for node_id in good:
            if waiting[node_id] > promised[node_id]:
                return node_id
        for node_id in good:
            if waiting[node_id] + self._room.free[node_id] > promised[node_id]:
                return node_id
        return None

    def _have(self) -> dict[str, int]:
        return {
            trial: sum(self._is_good(node_id) for node_id in tenant.workers.values())
            for trial, tenant in self._tenants.items()
        }

    def _free(self) -> int:
        free = sum(count for n, count in self._room.free.items() if self._is_good(n))
        return free + sum(self._is_good(one.node_id) for one in self._idle)

    def _slots(self) -> int:
        return self._free() + sum(self._have().values())

    def _demands(self) -> list[Demand]:
        return [tenant.demand for tenant in self._tenants.values()]

    def _share_out(self) -> None:
        given = plan(self._slots(), self._demands(), self._have(), self._free()).shares
        for trial, tenant in self._tenants.items():
            tenant.share = given[trial]
        self._changed.notify_all()

    def _hold_to_shares(self) -> None:
        """Tell trials that have what others need."""
        calls: list[tuple[Callable[[int], None], int]] = []
        with self._changed:
            have = self._have()
            to_give = plan(self._slots(), self._demands(), have, self._free()).to_give
            for trial, tenant in self._tenants.items():
                # Without need nobody is held to anything; growth is held by `places`.
                limit = to_give.get(trial, max(tenant.share, have[trial], self._least))
                if limit != tenant.limited_to and tenant.limit is not None:
                    tenant.limited_to = limit
                    calls.append((tenant.limit, limit))
        for limit_to, limit in calls:  # not under the lock: it asks the trial
            limit_to(limit)


class TrialWorkers:
    """A trial's part of the pool: `spotray.train.placing.Workers`, and its seat."""

    # The trials do not race for a slot, but dozens of their processes may start at once: on a
    # busy machine that takes longer than a single job would wait.
    place_s = 60.0

    def __init__(self, pool: Pool, trial: str) -> None:
        self._pool, self._trial = pool, trial

    def places(self, view: View, mine: Mapping[str, str]) -> list[str]:
        return self._pool.places(self._trial, view, mine)

    def start(self, node_id: str) -> Any:
        return self._pool.start(self._trial, node_id)

    def give_back(self, actor: Any, *, healthy: bool) -> None:
        self._pool.give_back(self._trial, actor, healthy=healthy)

    def avoid(self, node_id: str) -> None:
        self._pool.avoid(node_id)

    def on_limit(self, limit: Callable[[int], None]) -> None:
        self._pool.on_limit(self._trial, limit)

    def wait(self, timeout_s: float) -> bool:
        return self._pool.wait(self._trial, timeout_s)

    def leave(self) -> None:
        self._pool.leave(self._trial)
