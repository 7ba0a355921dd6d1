"""All that a cluster keeps on Compute Engine: its data disks, and its stopped nodes."""

from __future__ import annotations

from typing import Any

from spotray.cloud.disks import CLUSTER_TAG, Disk
from spotray.cloud.gcp.disks import CALL_S, PersistentDisks, last_part, unix_s
from spotray.errors import DiskNotFree

STOPPED = "boot disk of a stopped node"  # stands where a disk has its type
_REUSE = "spotray-reuse"


class KeptDisks(PersistentDisks):
    """`PersistentDisks` with the nodes that wait, stopped, to be started again.

    Such a node stands in the list as a free disk; to delete it deletes the node.
    """

    def listed(self, cluster: str) -> list[Disk]:
        words = (
            f'labels.{CLUSTER_TAG} = "{cluster}"',
            f'labels.{_REUSE} = "boot"',
            'status = "TERMINATED"',
        )
        request = {"project": self._project, "filter": " AND ".join(words)}
        found = []
        with self._about(self._region, "instances"):
            for place, scoped in self._instances.aggregated_list(request=request, timeout=CALL_S):
                if last_part(place).startswith(f"{self._region}-"):
                    found += [_stopped(one, cluster) for one in scoped.instances]
        return super().listed(cluster) + found

    def delete(self, disk: Disk) -> None:
        if disk.type != STOPPED:
            super().delete(disk)
            return
        try:
            with self._about(disk.zone, disk.disk_id):
                request = {**self._in(disk.zone), "instance": disk.disk_id}
                found = self._instances.get(request=request, timeout=CALL_S)
                is_ours = found.labels.get(CLUSTER_TAG) == disk.cluster and _REUSE in found.labels
                if not is_ours or found.status != "TERMINATED":
                    raise DiskNotFree(
                        f"{disk.disk_id} is {found.status}, or none of {disk.cluster}'s",
                        market=f"gcp/{disk.zone}/{disk.disk_id}",
                    )
                self._done(self._instances.delete_unary(request=request, timeout=CALL_S), disk.zone)
        except DiskNotFree as exc:
            if not exc.is_gone:
                raise


def _stopped(found: Any, cluster: str) -> Disk:
    pool = found.labels.get("ray-user-node-type", "")
    return Disk(
        disk_id=found.name,
        zone=last_part(found.zone),
        cluster=cluster,
        slot=f"{pool} (stopped)",
        size_gib=sum(int(one.disk_size_gb) for one in found.disks if one.auto_delete),
        type=STOPPED,
        used_s=unix_s(found.creation_timestamp, found.last_stop_timestamp),
    )
