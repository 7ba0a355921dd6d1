"""What `ray down` leaves of a cluster in its account: data disks, placement groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from spotray.clock import Clock
from spotray.cluster.disks.choice import pool_of
from spotray.cluster.disks.owned import delete, open_disks, owned, place_of, plainly, unused
from spotray.cluster.node_types import cloud_of, disk_of, node_types
from spotray.cluster.prepare import placement_groups, region_of
from spotray.errors import ConfigError

_PATIENCE_S = 180.0  # an instance is shutting down for a minute or two


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """One thing that the cluster had, and why it stays; empty if it is gone."""

    what: str
    stays: str = ""

    def __str__(self) -> str:
        return f"{self.what} {'stays: ' + self.stays if self.stays else 'deleted'}"


def remove_leftovers(config: Mapping[str, Any], *, clock: Clock) -> Iterator[Leftover]:
    """Delete what a cluster's YAML had made and `ray down` left, once no node is there any more.

    Disks with ``keep_after_down`` are left alone, and so are roles, which cost nothing and
    are those of other clusters too. One thing's failure does not keep the others.
    """
    for part in (_disks, _groups):
        try:
            yield from part(config, clock)
        except ConfigError as exc:
            yield Leftover(what=part.__name__.strip("_"), stays=str(exc))


def _disks(config: Mapping[str, Any], clock: Clock) -> Iterator[Leftover]:
    wanted = {one.name: disk_of(config, one.name) for one in node_types(config)}
    if not any(wanted.values()):
        return
    place = place_of(config)
    kept = {pool_of(name) for name, disk in wanted.items() if disk.get("keep_after_down")}
    with plainly(place):
        disks = open_disks(place)
        found = [
            one
            for one in owned(disks, place.cluster, now_s=clock.now_s())
            if one.disk.slot.rpartition("-")[0] not in kept
        ]
        # One that a node has goes with its node: `ray down` saw to that.
        for one, why in delete(disks, unused(found, hours=0.0)):
            yield Leftover(what=f"disk {one.disk.disk_id}", stays=why)


def _groups(config: Mapping[str, Any], clock: Clock) -> Iterator[Leftover]:
    if cloud_of(config) != "aws":
        return
    from spotray.cloud.aws.placement import delete_placement_group

    for group in placement_groups(config):
        try:
            stays = delete_placement_group(
                group, region=region_of(config), clock=clock, patience_s=_PATIENCE_S
            )
        except ConfigError as exc:
            stays = str(exc)
        yield Leftover(what=f"placement group {group}", stays=stays)
