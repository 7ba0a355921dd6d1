"""Google wants a disk's type with its zone, which a config of several zones cannot name."""

from __future__ import annotations

from typing import Any

from spotray.cluster.ray_autoscaler.gcp import disks_in


def disk(kind: str) -> dict[str, Any]:
    return {"disks": [{"boot": True, "initializeParams": {"diskType": kind}}, {"boot": False}]}


def test_a_short_disk_type_gets_the_zone_of_the_launch() -> None:
    given = disk("pd-balanced")
    assert disks_in("z-a", given) == disk("zones/z-a/diskTypes/pd-balanced")
    assert given == disk("pd-balanced")  # the next zone starts from it


def test_a_disk_type_with_a_zone_stays_as_it_is() -> None:
    assert disks_in("z-a", disk("zones/z-b/diskTypes/pd-ssd")) == disk("zones/z-b/diskTypes/pd-ssd")
    assert disks_in("z-a", {"machineType": "m"}) == {"machineType": "m"}
