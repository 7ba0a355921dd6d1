"""Which disk a node gets, which are too old, what they cost: values in, values out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from spotray.cloud.disks import Disk, DiskWish
from spotray.cluster.disks.config import DataDisk
from spotray.market.offer import Market

# List prices in us-east-1 and us-central1, USD for a GiB and a month of 730 hours, as of 2026:
# https://aws.amazon.com/ebs/pricing/ and https://cloud.google.com/compute/disks-image-pricing.
# A type that is not here has no known price.
_USD_PER_GIB_MONTH = {
    "gp3": 0.08,
    "gp2": 0.10,
    "st1": 0.045,
    "sc1": 0.015,
    "pd-balanced": 0.10,
    "pd-ssd": 0.17,
    "pd-standard": 0.04,
}
_MONTH_H = 730.0


def pool_of(node_type: str) -> str:
    """A node type as clouds take it in a name: its disks are no other type's.

    >>> pool_of("ray.worker_Default")
    'ray-worker-default'
    """
    return re.sub(r"[^a-z0-9]+", "-", node_type.lower()).strip("-") or "node"


def fitting(
    disks: Iterable[Disk], wanted: DataDisk, *, node_type: str, zone: str, without: Iterable[str]
) -> list[Disk]:
    """Free disks that a node of this type may have, the one used last first.

    Args:
        disks: of the cluster.
        wanted: smaller ones and those of other types are passed over.
        node_type: of the node; another type's disks hold something else.
        zone: of the node: a disk never leaves its own.
        without: ids of disks that are being given to somebody.
    """
    taken = set(without)
    found = [
        disk
        for disk in disks
        if disk.is_free
        and disk.zone == zone
        and disk.disk_id not in taken
        and disk.type == wanted.type
        and disk.size_gib >= wanted.size_gb
        and _pool(disk) == pool_of(node_type)
    ]
    return sorted(found, key=lambda disk: (-disk.used_s, _number(disk), disk.disk_id))


def wish_for(
    disks: Iterable[Disk],
    wanted: DataDisk,
    *,
    cluster: str,
    node_type: str,
    zone: str,
    without: Iterable[str],
) -> DiskWish:
    """A new disk in the lowest slot that is free in the zone.

    ``without``: slots in which one is being made.
    """
    taken = {disk.slot for disk in disks if disk.zone == zone} | set(without)
    pool, number = pool_of(node_type), 0
    while f"{pool}-{number}" in taken:
        number += 1
    return DiskWish(
        cluster=cluster,
        zone=zone,
        slot=f"{pool}-{number}",
        size_gib=wanted.size_gb,
        type=wanted.type,
    )


def warm_first(candidates: Sequence[Market], warm: Iterable[str]) -> tuple[Market, ...]:
    """The candidates of a launch, with warm zones first among those that are otherwise equal.

    Only the order of zones changes, of one instance type and one purchase kind: which of
    them failed less is the policy's business, and comes before the order.

    Args:
        candidates: in the order of the config.
        warm: zones where a disk waits.
    """
    zones = set(warm)
    kinds = list(dict.fromkeys((one.spot, one.instance_type) for one in candidates))
    return tuple(
        sorted(
            candidates,
            key=lambda one: (kinds.index((one.spot, one.instance_type)), one.zone not in zones),
        )
    )


def expired(disks: Iterable[Disk], *, now_s: float, keep_hours: float) -> list[Disk]:
    """Disks that no node has had for ``keep_hours``, also those that no node can have."""
    return [disk for disk in disks if not disk.node and now_s - disk.used_s > keep_hours * 3600.0]


def usd_per_month(disk: Disk) -> float | None:
    """What it costs, used or not, at list price; None where that is not known."""
    price = _USD_PER_GIB_MONTH.get(disk.type)
    return None if price is None else price * disk.size_gib


def usd_per_hour(disk: Disk) -> float | None:
    """The same for an hour."""
    price = usd_per_month(disk)
    return None if price is None else price / _MONTH_H


def told(disk: Disk, *, now_s: float) -> str:
    """A disk in a line: where, how large, how old, at what cost.

    >>> told(Disk(disk_id="vol-1", zone="us-west-2a", cluster="c", slot="gpu-0", size_gib=200,
    ...     type="gp3", used_s=0.0), now_s=7200.0)
    'vol-1 (gpu-0) in us-west-2a, 200 GiB gp3, unused for 2.0 h, 16.00 USD a month'
    """
    state = f"on {disk.node}" if disk.node else f"unused for {_hours(disk, now_s):.1f} h"
    price = usd_per_month(disk)
    cost = "" if price is None else f", {price:.2f} USD a month"
    return (
        f"{disk.disk_id} ({disk.slot}) in {disk.zone}, {disk.size_gib} GiB {disk.type}, "
        f"{state}{cost}"
    )


def _hours(disk: Disk, now_s: float) -> float:
    return max(0.0, now_s - disk.used_s) / 3600.0


def _pool(disk: Disk) -> str:
    return disk.slot.rpartition("-")[0]


def _number(disk: Disk) -> int:
    number = disk.slot.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0
