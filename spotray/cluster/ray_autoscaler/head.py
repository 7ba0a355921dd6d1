"""What Ray's head knows of the nodes and of what is asked for; works without ``ray.init()``.

Ray's public words need a driver and tell less: not which node is idle, how a node ended,
which instance it is, or what the autoscaler is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from spotray.cluster.drain import gcs_client

_RPC_TIMEOUT_S = 5.0

# Ray's NodeDeathInfo.Reason
EXPECTED = (1, 4)  # EXPECTED_TERMINATION, AUTOSCALER_DRAIN_IDLE
DRAINED = 3  # AUTOSCALER_DRAIN_PREEMPTED


@dataclass(frozen=True, kw_only=True)
class RayNode:
    """A node as Ray's head lists it, also a dead one.

    ``leaves_by_s``: Unix seconds; 0: it drains without a deadline; None: it does not.
    ``death``: Ray's number of the reason; None: it is alive.
    """

    node_id: str
    instance_id: str
    node_type: str
    is_head: bool
    labels: Mapping[str, str]
    resources: Mapping[str, float]
    started_s: float
    busy: bool
    leaves_by_s: float | None
    death: int | None
    ended_s: float | None = None  # None: it is alive, or Ray does not know


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the autoscaler is asked for: standing requests, and what waits for a node."""

    standing: Sequence[Mapping[str, float]] = field(default_factory=tuple)
    waiting: int = 0


class RayHead:
    """Asks one cluster's head. Each method raises ClusterUnreachable if it does not answer."""

    def __init__(self, ray_address: str) -> None:
        """Nothing is asked yet. ``ray_address``: HOST:PORT."""
        self.address = ray_address

    def nodes(self) -> list[RayNode]:
        """All nodes, the dead ones too as long as Ray remembers them."""
        from ray.core.generated.gcs_pb2 import (  # type: ignore[attr-defined]
            GcsNodeInfo,
            NodeSnapshot,
        )

        with self._gcs() as gcs:
            found = gcs.get_all_node_info(timeout=_RPC_TIMEOUT_S).values()
            draining = {_hex(key): ms for key, ms in gcs.get_draining_nodes().items()}
        nodes = []
        for node in found:
            node_id, alive = node.node_id.hex(), node.state == GcsNodeInfo.ALIVE
            nodes.append(
                RayNode(
                    node_id=node_id,
                    instance_id=node.instance_id,
                    node_type=node.node_type_name,
                    is_head=node.is_head_node,
                    labels=dict(node.labels),
                    resources=dict(node.resources_total),
                    started_s=node.start_time_ms / 1000,
                    busy=node.state_snapshot.state != NodeSnapshot.IDLE,
                    leaves_by_s=draining[node_id] / 1000 if node_id in draining else None,
                    death=None if alive else int(node.death_info.reason),
                    ended_s=node.end_time_ms / 1000 if node.end_time_ms else None,
                )
            )
        return nodes

    def asked(self) -> Asked:
        """What the autoscaler is asked for now."""
        from ray.autoscaler.v2.sdk import get_cluster_resource_state

        with self._gcs() as gcs:
            state = get_cluster_resource_state(gcs)
        standing: list[Mapping[str, float]] = []
        for constraint in state.cluster_resource_constraints:
            for one in constraint.resource_requests:
                standing += [dict(one.request.resources_bundle)] * one.count
        waiting = sum(one.count for one in state.pending_resource_requests)
        waiting += len(state.pending_gang_resource_requests)
        return Asked(standing=tuple(standing), waiting=waiting)

    def drivers(self) -> int:
        """Drivers that are connected, without Ray's own."""
        with self._gcs() as gcs:
            jobs = gcs.get_all_job_info(timeout=_RPC_TIMEOUT_S).values()
        return sum(
            not job.is_dead and not job.config.ray_namespace.startswith(INTERNAL) for job in jobs
        )

    @contextmanager
    def _gcs(self) -> Iterator[Any]:
        with gcs_client(self.address) as gcs:
            yield gcs


# Of drivers that are no application: Ray leaves them out of its own list of jobs.
INTERNAL = "_ray_internal_"


def _hex(key: Any) -> str:
    return key if isinstance(key, str) else str(key.hex())
