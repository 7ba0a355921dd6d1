"""What the controller decides from, and what it remembers: plain values, with the time in them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from spotray.market.offer import Market
from spotray.policy.view import Fact


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A worker that is alive in Ray.

    Args:
        node_id: Ray's id.
        name: the cloud's id of its instance.
        node_type: its entry in the cluster's YAML.
        market: where it is.
        born_s: since when it runs, Unix seconds.
        busy: whether it has work.
        leaves_by_s: it drains, and shall be gone by then (Unix seconds); None: it stays.
    """

    node_id: str
    name: str
    node_type: str
    market: Market
    born_s: float
    busy: bool = True
    leaves_by_s: float | None = None

    @property
    def stays(self) -> bool:
        return self.leaves_by_s is None


@dataclass(frozen=True, kw_only=True)
class Pool:
    """A node type of workers, as the cluster's YAML has it.

    Args:
        candidates: markets that its nodes may come from; empty: Ray's own provider
            launches them, and nobody here knows where.
        max_workers: the autoscaler launches no more.
        on_demand_floor: on-demand workers of it that are never replaced by spot.
        lifetime_s: the cloud ends each of its nodes at that age; inf: it does not.
    """

    name: str
    candidates: tuple[Market, ...] = ()
    max_workers: int
    on_demand_floor: int = 0
    lifetime_s: float = math.inf


@dataclass(frozen=True, kw_only=True)
class View:
    """The cluster at one time.

    Args:
        now_s: the time, Unix seconds.
        workers: those alive in Ray, in any order.
        pools: by name.
        facts: what launches have taught, by time.
        room: nodes that the cluster may have more, of all types together.
        deadline_s: of the running job whose deadline is next, Unix seconds; inf: none.
        deadline_of: that job's name.
        is_spent: the budget of a job that runs is used up.
        lost: of each busy spot worker that is known since the last view to be taken, or to be
            taken soon: since when anybody knows, Unix seconds.
        asked_since_s: when this cluster was last asked for, as launches count it.
    """

    now_s: float
    workers: tuple[Worker, ...]
    pools: Mapping[str, Pool]
    facts: tuple[Fact, ...] = ()
    room: int = 1_000_000
    deadline_s: float = math.inf
    deadline_of: str = ""
    is_spent: bool = False
    lost: tuple[float, ...] = ()
    asked_since_s: float = -math.inf

    def staying(self, pool: str | None = None) -> list[Worker]:
        """Workers that do not drain, of one pool or of all."""
        return [w for w in self.workers if w.stays and pool in (None, w.node_type)]

    def find(self, node_id: str) -> Worker | None:
        return next((w for w in self.workers if w.node_id == node_id), None)


@dataclass(frozen=True, kw_only=True)
class Swap:
    """One worker is being replaced: a new one is asked for, then the old one is told to leave.

    Args:
        node_id, name, pool: of the old one.
        to_spot: whether only a spot node will do; else any new one.
        began_s: when it was asked for, Unix seconds.
        until_s: the phase it is in ends then.
        before: nodes that were there when it began.
        wanted: workers of the whole cluster that are asked for meanwhile.
        launched: the cloud has given the new node, and it is on its way.
        leaves_by_s: the old one was told to be gone by then; None: it was not told yet.
        agreed: Ray has been seen to drain it.
        ended: the cloud was asked to end it.
    """

    node_id: str
    name: str
    pool: str
    to_spot: bool
    began_s: float
    until_s: float
    before: frozenset[str]
    wanted: int
    launched: bool = False
    leaves_by_s: float | None = None
    agreed: bool = False
    ended: bool = False


@dataclass(frozen=True, kw_only=True)
class Rest:
    """A pool is left alone until ``until_s``, after ``failures`` attempts in vain in a row."""

    until_s: float
    failures: int = 0


@dataclass(frozen=True, kw_only=True)
class Hold:
    """So many workers are asked for, until ``until_s``, since some of them were taken."""

    workers: int
    until_s: float


@dataclass(frozen=True, kw_only=True)
class State:
    """All that one decision leaves for the next."""

    swap: Swap | None = None
    rests: Mapping[str, Rest] = field(default_factory=dict)  # by pool
    hold: Hold | None = None
    hurry_until_s: float = 0.0  # on-demand comes first until then, for a job's deadline

    @property
    def wanted(self) -> int:
        """Workers of the whole cluster to ask for; 0: as many as the applications ask for."""
        swapping = self.swap is not None and self.swap.leaves_by_s is None
        return max(
            self.swap.wanted if swapping and self.swap is not None else 0,
            self.hold.workers if self.hold is not None else 0,
        )
