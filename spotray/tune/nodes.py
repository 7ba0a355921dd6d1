"""The cluster as a sweep sees it: room for workers, and the facts about nodes."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.train.v2.api.config import ScalingConfig  # ray.train's own, as type checkers see it

from spotray.events import Event, NodeDown, NodeReady
from spotray.ledger.journal import JournalWriter
from spotray.storage import Store
from spotray.train.coordinator import death_of, node_up
from spotray.train.looks import look_at_nodes
from spotray.train.placing import fits, fits_labels, needs_of, start_worker, take
from spotray.train.ray_internals import (
    ResourceRequest,
    cluster_config,
    free_resources,
)
from spotray.tune.pool import Room

log = logging.getLogger(__name__)


class RayNodes:
    """`spotray.tune.pool.Nodes` on Ray.

    Args:
        scaling_config: What one worker needs, and where it may be.
        name: Of the sweep.
    """

    def __init__(self, scaling_config: ScalingConfig, *, name: str) -> None:
        self._needs = needs_of(scaling_config)
        self._selector = scaling_config.label_selector
        self._fits: dict[str, bool] = {}  # node id -> whether it has the wanted labels
        self._request = ResourceRequest(scaling_config, requester=f"spotray-{name}-{time.time()}")

    def room(self) -> Room:
        free = {
            node_id: count_fits(self._needs, resources)
            for node_id, resources in free_resources().items()
            if self._has_labels(node_id)
        }
        return Room(free, frozenset(look_at_nodes().draining))

    def start(self, node_id: str) -> Any:
        return start_worker(self._needs, node_id)

    def end(self, actor: Any) -> None:
        ray.kill(actor)

    def request(self, workers: int) -> None:
        self._request.renew(workers)

    def with_memory(self) -> list[str]:
        """Nodes that may hold snapshots, also those of an earlier driver's workers."""
        nodes = [node for node in ray.nodes() if node["Alive"]]
        return sorted(n["NodeID"] for n in nodes if count_fits(self._needs, n["Resources"]))

    def close(self) -> None:
        """Ask the autoscaler for nothing any more."""
        self._request.cancel()

    def _has_labels(self, node_id: str) -> bool:
        if node_id not in self._fits:
            self._fits[node_id] = fits_labels(node_id, self._selector)
        return self._fits[node_id]


class NodeFacts:
    """Writes what Ray knows of its nodes, for a sweep on a cluster without a journal.

    Args:
        store: Folder of the journal.
    """

    def __init__(self, store: Store) -> None:
        self._journal = JournalWriter(store, writer=f"sweep-{time.time_ns() // 10**6}")
        self._alive: set[str] = set()

    def look(self) -> None:
        """Compare Ray's list of nodes with the last one."""
        for event in self._changes(look_at_nodes().nodes):
            self._journal.append(event)

    def close(self) -> None:
        """Write what is left.

        Raises:
            JournalError: storage did not take it.
        """
        self._journal.close()

    def _changes(self, nodes: Sequence[Mapping[str, Any]]) -> list[Event]:
        now_s = time.time()
        events: list[Event] = []
        alive = {node["NodeID"] for node in nodes if node["Alive"]}
        for node in nodes:
            node_id = node["NodeID"]
            if node_id in alive - self._alive:
                events += [node_up(node, now_s), NodeReady(at_s=now_s, node_id=node_id)]
            elif node_id in self._alive - alive:
                cause, noticed = death_of(node)
                events.append(NodeDown(at_s=now_s, node_id=node_id, cause=cause, noticed=noticed))
        self._alive = alive
        return events


def count_fits(needs: Mapping[str, float], resources: Mapping[str, float]) -> int:
    """Workers that so many resources hold.

    >>> count_fits({"CPU": 2.0}, {"CPU": 5.0, "memory": 1.0})
    2
    """
    left, count = dict(resources), 0
    while needs and fits(needs, left):
        take(needs, left)
        count += 1
    return count


def possible_workers(needs: Mapping[str, float]) -> int | None:
    """Workers that the cluster could ever hold, if its autoscaler told what it may launch."""
    config = cluster_config()
    if config is None or not config.node_group_configs:
        return None
    count = 0
    for group in config.node_group_configs:
        fit = count_fits(needs, dict(group.resources))
        if fit and group.max_count < 0:
            return sys.maxsize
        count += fit * group.max_count
    return count


def present_workers(needs: Mapping[str, float], selector: Any = None) -> int:
    """Workers that the nodes hold that are there, if nothing else runs on them.

    Args:
        needs: Of one worker, by Ray's names.
        selector: Labels of the nodes where one may be, as `ScalingConfig` has it.
    """
    return sum(
        count_fits(needs, node["Resources"])
        for node in ray.nodes()
        if node["Alive"] and fits_labels(node["NodeID"], selector)
    )


def node_ups(now_s: float) -> list[Event]:
    """The nodes that are there, as Ray knows them; with a price where labels tell the type."""
    return [node_up(node, now_s) for node in ray.nodes() if node["Alive"]]
