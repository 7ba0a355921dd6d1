"""Which node has the copies of whose snapshots: known where jobs are coordinated.

One record for all jobs that one process coordinates: in a sweep, the workers of one trial keep
copies for the others.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from spotray.train.shelf import Address

ZONE_LABEL = "ray.io/availability-zone"
_HEARD_S = 2.0  # a shelf whose process was silent for longer is not counted on


class Copies:
    """Shelves, and whose copies are where.

    Args:
        own: The shelf of this process, on the node that is not taken: for runs that find
            no other.
        monotonic_s: The time; a test has its own.
    """

    def __init__(
        self, own: Address | None = None, *, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._own, self._monotonic_s = own, monotonic_s
        self._lock = threading.Lock()
        self._heard: dict[Address, float] = {}  # when its process was last heard, monotonic
        self._chosen: dict[str, Address] = {}  # run -> where its copies go
        self._held: dict[str, str] = {}  # run -> node that has its newest one
        self._zones: dict[str, str] = {}  # node -> zone, where one is known
        self._leaving: frozenset[str] = frozenset()

    def heard(self, address: Address) -> None:
        """The process around a shelf gave a sign of life."""
        with self._lock:
            self._heard[address] = self._monotonic_s()

    def held(self, run_id: str, node_id: str) -> None:
        """A node has the newest copy of a run."""
        with self._lock:
            self._held[run_id] = node_id

    def set_nodes(self, nodes: Iterable[Mapping[str, Any]], leaving: Collection[str]) -> None:
        """What Ray knows of the nodes, and which of them will be taken."""
        zones = {
            str(node["NodeID"]): str(zone)
            for node in nodes
            if (zone := (node.get("Labels") or {}).get(ZONE_LABEL))
        }
        with self._lock:
            self._zones, self._leaving = zones, frozenset(leaving)

    def go_to(self, run_id: str, node_id: str) -> Address | None:
        """Where the copies of a run go whose workers are all on one node; None: nowhere.

        It stays the same as long as it will do: each change costs a copy. Of several it is
        the one with the fewest, the own one last. Not in another zone: clouds take more for
        the traffic than the lost steps would cost.
        """
        with self._lock:
            fit = [one for one in self._there() if self._fits(one, node_id)]
            chosen = self._chosen.get(run_id)
            if chosen in fit:
                return chosen
            has = Counter(one.node_id for run, one in self._chosen.items() if run != run_id)
            best = min(
                fit,
                key=lambda one: (one == self._own, has[one.node_id], one.node_id, one.port),
                default=None,
            )
            if best is not None:
                self._chosen[run_id] = best
            return best

    def held_for(self, run_id: str) -> Address | None:
        """A shelf on the node that has the copies of a run; None: nobody has, or answers."""
        with self._lock:
            node_id = self._held.get(run_id)
            return next((one for one in self._there() if one.node_id == node_id), None)

    def forget(self, run_id: str) -> None:
        """Nobody goes on with a run."""
        with self._lock:
            self._chosen.pop(run_id, None)
            self._held.pop(run_id, None)

    def _there(self) -> list[Address]:
        now = self._monotonic_s()
        self._heard = {a: at for a, at in self._heard.items() if now - at <= _HEARD_S}
        return [*self._heard, *([self._own] if self._own is not None else [])]

    def _fits(self, address: Address, node_id: str) -> bool:
        zones = {self._zones.get(one, "") for one in (address.node_id, node_id)} - {""}
        return (
            address.node_id != node_id and address.node_id not in self._leaving and len(zones) < 2
        )


class CopiesOf:
    """The same for one run."""

    def __init__(self, copies: Copies, run_id: str) -> None:
        self._copies, self._run_id = copies, run_id

    def heard(self, address: Address) -> None:
        self._copies.heard(address)

    def go_to(self, node_ids: Iterable[str]) -> Address | None:
        """Where the copies of workers go; None if they are on several nodes, or nobody has room."""
        nodes = set(node_ids)
        return self._copies.go_to(self._run_id, nodes.pop()) if len(nodes) == 1 else None

    def held(self, address: Address) -> None:
        self._copies.held(self._run_id, address.node_id)

    def held_by(self) -> Address | None:
        return self._copies.held_for(self._run_id)
