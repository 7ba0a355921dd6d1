"""Where the workers of live jobs are started."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

import ray
from ray.train.v2.api.config import ScalingConfig  # ray.train's own, as type checkers see it
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from spotray.train.live_worker import LiveWorker
from spotray.train.messages import View
from spotray.train.ray_internals import ResourceRequest, free_resources

SEEN_S = 3.0  # after which Ray's view of a node's free resources knows of a new actor
AVOID_S = 15.0  # a node whose worker fell silent: it may be frozen, and Ray slow to see it
_PLACE_EVERY_S = 0.5  # between two looks at Ray's nodes for room


class Workers(Protocol):
    """Where a job gets its workers from."""

    @property
    def place_s(self) -> float:
        """Time for Ray to start a worker's process; after it another job was quicker there."""
        ...

    def places(self, view: View, mine: Mapping[str, str]) -> list[str]:
        """Nodes on which to start one worker each, now; ``mine``: worker -> node."""
        ...

    def start(self, node_id: str) -> Any:
        """Handle of a `LiveWorker` actor on that node."""
        ...

    def give_back(self, actor: Any, *, healthy: bool) -> None:
        """It is no longer needed; ``healthy``: its process is fit for another job."""
        ...

    def avoid(self, node_id: str) -> None:
        """A worker fell silent there: place none for a while."""
        ...


class ClusterWorkers:
    """`Workers` of a job that has the cluster's free nodes to itself.

    Args:
        scaling_config: Ray Train's: how many workers at most, and what each one needs.
        name: Of the job.
    """

    place_s = 5.0

    def __init__(self, scaling_config: ScalingConfig, *, name: str) -> None:
        workers = scaling_config.num_workers
        self._max = workers if isinstance(workers, int) else workers[1]
        self._needs = needs_of(scaling_config)
        self._selector = scaling_config.label_selector
        self._request = ResourceRequest(scaling_config, requester=f"spotray-{name}-{time.time()}")
        self._started: list[tuple[str, float]] = []  # node id, monotonic
        self._avoid: dict[str, float] = {}  # node id -> until then, monotonic
        self._placed_at = float("-inf")

    def places(self, view: View, mine: Mapping[str, str]) -> list[str]:
        wanted = min(self._max, view.useful_workers)
        self._request.renew(wanted)
        leaving = set(view.leaving_nodes)
        missing = wanted - sum(node_id not in leaving for node_id in mine.values())
        now = time.monotonic()
        if missing <= 0 or now - self._placed_at < _PLACE_EVERY_S:
            return []
        self._placed_at = now
        self._started = [one for one in self._started if now - one[1] < SEEN_S]
        found: list[str] = []
        for node_id, free in free_resources().items():
            is_avoided = self._avoid.get(node_id, now) > now
            if node_id in leaving or is_avoided or not fits_labels(node_id, self._selector):
                continue
            for unseen, _ in self._started:
                if unseen == node_id:
                    take(self._needs, free)
            while missing > 0 and fits(self._needs, free):
                found.append(node_id)
                missing -= 1
                take(self._needs, free)
        return found

    def start(self, node_id: str) -> Any:
        self._started.append((node_id, time.monotonic()))
        return start_worker(self._needs, node_id)

    def give_back(self, actor: Any, *, healthy: bool) -> None:
        del healthy  # this job needs no other one, and its node's memory soon
        ray.kill(actor)

    def avoid(self, node_id: str) -> None:
        self._avoid[node_id] = time.monotonic() + AVOID_S

    def close(self) -> None:
        """Ask the autoscaler for nothing any more."""
        self._request.cancel()


def needs_of(scaling_config: ScalingConfig) -> dict[str, float]:
    """What one worker takes of a node, by Ray's names."""
    return {k: v for k, v in scaling_config._resources_per_worker_not_none.items() if v}


def fits(needs: Mapping[str, float], free: Mapping[str, float]) -> bool:
    """Whether a node has room for one worker."""
    return all(free.get(resource, 0.0) >= amount for resource, amount in needs.items())


def take(needs: Mapping[str, float], free: dict[str, float]) -> None:
    """Count one worker more on a node."""
    for resource, amount in needs.items():
        free[resource] = free.get(resource, 0.0) - amount


def start_worker(needs: Mapping[str, float], node_id: str) -> Any:
    """A new worker's process on a node."""
    return (
        ray.remote(LiveWorker)
        .options(
            num_cpus=needs.get("CPU", 0),
            num_gpus=needs.get("GPU", 0),
            resources={k: v for k, v in needs.items() if k not in ("CPU", "GPU")},
            max_restarts=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
        )
        .remote()
    )


def fits_labels(node_id: str, selector: Any) -> bool:
    """Whether a node has the labels that `ScalingConfig.label_selector` wants."""
    if not selector:
        return True
    one = selector[0] if isinstance(selector, list) else selector
    labels = next((n.get("Labels") or {} for n in ray.nodes() if n["NodeID"] == node_id), {})
    return all(_matches(labels.get(key), wanted) for key, wanted in one.items())


def _matches(value: str | None, wanted: str) -> bool:
    """Ray's label operators: ``x``, ``!x``, ``in(a,b)``, ``!in(a,b)``."""
    if wanted.startswith("!"):
        return not _matches(value, wanted[1:])
    if wanted.startswith("in(") and wanted.endswith(")"):
        return value in [one.strip() for one in wanted[3:-1].split(",")]
    return value == wanted
