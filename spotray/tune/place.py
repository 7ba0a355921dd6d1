"""Where trials' Tune processes run, and how many trials can at once."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import ray

from spotray.tune.nodes import possible_workers, present_workers

log = logging.getLogger(__name__)

_MARKET_LABEL = "ray.io/market-type"
_LEAST_NODE_SHARE = 0.0001  # of Ray's resource "node:IP": as fine as Ray counts


def beside_driver(
    sweep_dir: str, *, at_most: int | None
) -> tuple[dict[str, float], dict[str, str]]:
    """Resources and labels that put a process on the driver's node, whose loss ends the sweep.

    They take nothing that a worker could want.

    Args:
        sweep_dir: Of the sweep, for who has to go on after such a loss.
        at_most: The node holds only so many of them: a scheduler that pauses trials so that
            others get their turn wants no more than can run. None: any number.
    """
    node_id = ray.get_runtime_context().get_node_id()
    node = next(node for node in ray.nodes() if node["NodeID"] == node_id)
    if (node.get("Labels") or {}).get(_MARKET_LABEL) == "spot":
        log.warning(
            "this driver is on a spot node, whose loss ends the sweep: run it on the head, or "
            "go on after a loss by SpotTuner.restore(%r, ...)",
            sweep_dir,
        )
    share = _LEAST_NODE_SHARE * 10
    if at_most is not None:
        share = int(1 / _LEAST_NODE_SHARE / at_most) * _LEAST_NODE_SHARE
    return {f"node:{node['NodeManagerAddress']}": share}, {"ray.io/node-id": node_id}


def trials_at_once(needs: Mapping[str, float], *, least: int, most: int) -> int:
    """Trials for which the cluster has the least number of workers, 1 to ``most``."""
    workers = max(possible_workers(needs) or 0, present_workers(needs))
    return max(1, min(most, workers // least))
