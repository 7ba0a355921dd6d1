"""Nodes that are stopped instead of deleted, and started again with their boot disk: GCP only.

A stopped node costs its disks and nothing else. It is started again in the market that it was
launched in, by the same description; another zone or another description is a new node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Protocol

from spotray.clock import Clock
from spotray.cloud.disks import CLUSTER_TAG
from spotray.events import DiskDeleted, Event

SWEEP_S = 600.0  # between two looks for nodes that were stopped for long
KEEP_H = 24.0  # a node that was stopped for longer is deleted

REUSE_LABEL = "spotray-reuse"  # nothing without it is started or deleted here
LAUNCH_LABEL = "ray-launch-config"  # Ray's hash of the node's description


class Instances(Protocol):
    """What this needs of the provider."""

    def stopped(self, zone: str, labels: Mapping[str, str]) -> dict[str, Any]:
        """The instances of the cluster that are stopped, by name."""
        ...

    def start(
        self, zone: str, instances: Iterable[Any], labels: Mapping[str, str]
    ) -> dict[str, Any]:
        """Start them with these labels, at least one; raises the first refusal if none."""
        ...

    def delete(self, node_id: str) -> None:
        """Delete an instance; one that is gone is no error."""
        ...


def labels_for(cluster: str) -> dict[str, str]:
    """What a node carries that may be started again."""
    return {CLUSTER_TAG: cluster, REUSE_LABEL: "boot"}


def startable(
    stopped: Mapping[str, Any], *, instance_type: str, launch_config: str, count: int
) -> list[Any]:
    """The spot nodes that may stand for ``count`` new ones, the one stopped last first.

    Args:
        stopped: Google's instances by name, of one node type in one zone.
        instance_type: of the market that is asked.
        launch_config: Ray's hash of the description that a new node would have.
        count: at most so many.
    """
    found = [
        one
        for one in stopped.values()
        if one["machineType"].rpartition("/")[2] == instance_type
        and (one.get("scheduling") or {}).get("provisioningModel") == "SPOT"
        and one["labels"].get(LAUNCH_LABEL) == launch_config
    ]
    return sorted(found, key=lambda one: (-stopped_s(one), one["name"]))[:count]


def stopped_s(instance: Mapping[str, Any]) -> float:
    """When it was stopped, Unix seconds."""
    told = instance.get("lastStopTimestamp") or instance["creationTimestamp"]
    return datetime.fromisoformat(told).timestamp()


class StoppedNodes:
    """The stopped nodes of one cluster: an end to those that nobody starts again."""

    def __init__(
        self,
        instances: Instances,
        zones: tuple[str, ...],
        *,
        tell: Callable[[Event], None],
        clock: Clock,
    ) -> None:
        """``tell``: takes the events."""
        self._instances, self._zones = instances, zones
        self._tell, self._clock = tell, clock
        self._swept_s = clock.now_s()

    def sweep(self) -> None:
        """Delete those that were stopped for long; looks every ten minutes."""
        now_s = self._clock.now_s()
        if now_s - self._swept_s < SWEEP_S:
            return
        self._swept_s = now_s
        self._end(KEEP_H, f"stopped for {KEEP_H:g} h")

    def end(self) -> None:
        """Delete all of them."""
        self._end(-1.0, "the cluster goes down")

    def _end(self, hours: float, why: str) -> None:
        now_s = self._clock.now_s()
        for zone in self._zones:
            for name, one in self._instances.stopped(zone, {REUSE_LABEL: "boot"}).items():
                if now_s - stopped_s(one) > hours * 3600.0:
                    self._instances.delete(name)
                    self._tell(DiskDeleted(at_s=now_s, disk=name, zone=zone, why=why))
