"""Disks that outlive the nodes they are attached to: values and the protocol, no SDK."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

CLUSTER_TAG = "spotray-cluster"  # tag or label; nothing without it is ever deleted
SLOT_TAG = "spotray-slot"
USED_TAG = "spotray-used"  # Unix seconds; where the cloud does not know it itself


@dataclass(frozen=True, kw_only=True)
class Disk:
    """One disk of a cluster, as the cloud lists it."""

    disk_id: str  # EBS volume id; GCP's name
    zone: str
    cluster: str
    slot: str  # the node type and a number: "gpu-0"
    size_gib: int
    type: str  # "gp3", "pd-balanced"
    used_s: float  # when a node is last known to have had it, Unix seconds
    node: str = ""  # who has it, as far as it is known; instance id, GCP's name
    is_free: bool = True  # a node may have it now


@dataclass(frozen=True, kw_only=True)
class DiskWish:
    """What a disk shall be that is not there yet."""

    cluster: str
    zone: str
    slot: str
    size_gib: int
    type: str


class Disks(Protocol):
    """The disks of one account and region. Safe from any thread.

    Every method may raise `MarketError` and `ConfigError`, or what the cloud's SDK raises
    for a reason that nobody here knows.
    """

    def listed(self, cluster: str) -> list[Disk]:
        """All disks that carry the cluster's tag, also those that a node has."""
        ...

    def make(self, wish: DiskWish) -> Disk:
        """A new, empty disk with its tags, ready to be attached.

        Raises:
            DiskNotFree: somebody has just made that of this slot.
        """
        ...

    def attach(self, disk: Disk, node: str) -> tuple[str, ...]:
        """Give a free disk to a node, once that runs; where it is to be found there.

        The cloud itself sees to it that two nodes never have one disk.

        Raises:
            DiskNotFree: another node has it, or it is gone: try the next.
        """
        ...

    def found_at(self, disk: Disk) -> tuple[str, ...]:
        """Device files of an attached disk on its node, or its serial number; best first."""
        ...

    def mark_used(self, disk: Disk, *, now_s: float) -> None:
        """Remember that a node has it now, where the cloud does not know it itself."""
        ...

    def end_with_node(self, disk: Disk) -> None:
        """An attached disk: have the cloud delete it when its node ends."""
        ...

    def delete(self, disk: Disk) -> None:
        """Delete a free disk that carries our tag; one that is gone is no error.

        Raises:
            DiskNotFree: a node has it, or it carries no tag of ours.
        """
        ...
