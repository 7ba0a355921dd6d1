"""The only file that asks Ray to drain a node; works without ``ray.init()``.

What Ray 2.60 does, found by trying (`tests/cluster/test_drain.py` holds it to that):

- A node may be drained again with another deadline; the last one counts.
- Nothing undoes a drain: a later deadline or none is accepted, yet the node gets no
  new work, and its raylet exits within a second once the node is idle.
- Ray kills nothing at the deadline: it is a promise to those who read it.
- A node that does not exist is "drained" with success, so this file looks first.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from spotray.errors import ClusterUnreachable, ConfigError, DrainRejected

_CONNECT_TIMEOUT_S = 2.0
_RPC_TIMEOUT_S = 5.0


def drain_node(ray_address: str, node_id: str, *, deadline_s: float, why: str) -> None:
    """Tell Ray that a node will be taken, so that nothing new starts there.

    Args:
        ray_address: of Ray's head, ``HOST:PORT``.
        node_id: Ray's id of the node, hex.
        deadline_s: when the node will be gone, Unix seconds, > 0.
        why: ends up as Ray's reason of the node's death.

    Raises:
        ClusterUnreachable: the head does not answer; try again.
        ConfigError: ``ray_address`` is not ``HOST:PORT``.
        DrainRejected: Ray said no (its words are in the message), the node is not
            alive, or it is an idle head, whose end would be the cluster's.
    """
    if deadline_s <= 0:
        raise ValueError(f"deadline_s is {deadline_s}: it is a time, in Unix seconds")
    with gcs_client(ray_address) as gcs:
        from ray.core.generated.autoscaler_pb2 import DrainNodeReason  # type: ignore[attr-defined]

        node = next((n for n in _alive(gcs) if n.node_id.hex() == node_id), None)
        if node is None:
            raise DrainRejected(f"node {node_id} is not alive in the Ray cluster at {ray_address}")
        if node.is_head_node and _is_idle(node):
            raise DrainRejected(
                f"node {node_id} is the head and idle: draining it would end the cluster at once"
            )
        accepted, words = gcs.drain_node(
            node_id,
            DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION"),
            why,
            int(deadline_s * 1000),
            timeout=_RPC_TIMEOUT_S,
        )
    if not accepted:
        raise DrainRejected(f"Ray refused to drain node {node_id}: {words}")


def find_node_id(ray_address: str, node_ip: str) -> str | None:
    """Ray's id (hex) of the live node with this address; None if there is none (yet).

    Raises:
        ClusterUnreachable: the head does not answer; try again.
        ConfigError: ``ray_address`` is not ``HOST:PORT``, or several nodes share the
            address, as they do when all run on one machine.
    """
    with gcs_client(ray_address) as gcs:
        ids = [n.node_id.hex() for n in _alive(gcs) if n.node_manager_address == node_ip]
    if len(ids) > 1:
        raise ConfigError(f"{len(ids)} live Ray nodes have the address {node_ip}: give a node id")
    return ids[0] if ids else None


def split_address(ray_address: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``.

    Raises:
        ConfigError: it is something else.
    """
    host, _, port = ray_address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"Ray address {ray_address!r}: write HOST:PORT, such as 10.0.0.1:6379")
    return host.strip("[]"), int(port)


@contextmanager
def gcs_client(ray_address: str) -> Iterator[Any]:
    """A client of the head's control store, whose errors become ours.

    Raises:
        ClusterUnreachable: the head does not answer; try again.
        ConfigError: ``ray_address`` is not ``HOST:PORT``.
    """
    try:
        # Ray's own client takes 40 s to find out that nobody listens.
        socket.create_connection(split_address(ray_address), _CONNECT_TIMEOUT_S).close()
    except (OSError, UnicodeError) as exc:
        raise ClusterUnreachable(f"no Ray head at {ray_address}: {exc}") from exc
    from ray._raylet import GcsClient  # type: ignore[attr-defined]  # compiled
    from ray.exceptions import RayError

    try:
        yield GcsClient(address=ray_address)
    except RayError as exc:
        raise ClusterUnreachable(f"the Ray head at {ray_address} does not answer: {exc}") from exc


def _alive(gcs: Any) -> list[Any]:
    from ray.core.generated.gcs_pb2 import GcsNodeInfo  # type: ignore[attr-defined]

    nodes = gcs.get_all_node_info(timeout=_RPC_TIMEOUT_S).values()
    return [node for node in nodes if node.state == GcsNodeInfo.ALIVE]


def _is_idle(node: Any) -> bool:
    from ray.core.generated.gcs_pb2 import NodeSnapshot  # type: ignore[attr-defined]

    return bool(node.state_snapshot.state == NodeSnapshot.IDLE)
