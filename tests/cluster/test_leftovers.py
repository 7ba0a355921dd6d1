"""What `ray down` leaves of a cluster goes, and nothing of anybody else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from spotray.clock import FakeClock
from spotray.cloud.aws.disks import EbsDisks
from spotray.cloud.disks import Disk, DiskWish
from spotray.cluster.leftovers import remove_leftovers
from spotray.cluster.prepare import needs_of, prepare
from tests.cluster.emulated_ec2 import REGION, EmulatedEC2, emulated_ec2
from tests.cluster.emulated_groups import EmulatedGroups

CLUSTER = "vit"


@pytest.fixture
def ec2(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedEC2]:
    with emulated_ec2(monkeypatch) as emulated:
        yield emulated


@pytest.fixture
def groups(ec2: EmulatedEC2, monkeypatch: pytest.MonkeyPatch) -> EmulatedGroups:
    return EmulatedGroups(monkeypatch)


def config_of(group: str = "", **disks: dict[str, Any]) -> dict[str, Any]:
    node: dict[str, Any] = {"InstanceType": "g6.8xlarge"}
    if group:
        node["Placement"] = {"GroupName": group}
    types = {name: {"node_config": node} for name in ("head", *(disks or ("gpu",)))}
    return {
        "cluster_name": CLUSTER,
        "head_node_type": "head",
        "provider": {
            "type": "external",
            "module": "spotray.cluster.aws.SpotNodeProvider",
            "region": REGION,
            "markets": {name: {"data_disk": disk} for name, disk in disks.items()},
        },
        "available_node_types": types,
    }


def make(slot: str, cluster: str = CLUSTER) -> Disk:
    wish = DiskWish(cluster=cluster, zone=f"{REGION}a", slot=slot, size_gib=20, type="gp3")
    return EbsDisks(REGION).make(wish)


def removed(config: dict[str, Any]) -> dict[str, str]:
    return {one.what: one.stays for one in remove_leftovers(config, clock=FakeClock())}


def test_disks_without_a_node_go_but_for_those_to_be_kept_and_other_clusters(
    ec2: EmulatedEC2,
) -> None:
    orphan, kept, other = make("gpu-0"), make("big-0"), make("gpu-0", cluster="other")
    config = config_of(gpu={"size_gb": 20}, big={"size_gb": 20, "keep_after_down": True})
    assert removed(config) == {f"disk {orphan.disk_id}": ""}
    disks = EbsDisks(REGION)
    assert [one.disk_id for one in disks.listed(CLUSTER)] == [kept.disk_id]
    assert [one.disk_id for one in disks.listed("other")] == [other.disk_id]


def test_a_group_that_prepare_made_goes(groups: EmulatedGroups) -> None:
    config = config_of(group="close")
    assert "placement group close made" in list(prepare(needs_of(config)))
    assert groups.tags
    assert removed(config) == {"placement group close": ""}
    assert groups.tags == {}


def test_a_group_of_the_users_own_stays_and_it_is_said(groups: EmulatedGroups) -> None:
    groups.tags["close"] = []
    assert "not made by" in removed(config_of(group="close"))["placement group close"]
    assert list(groups.tags) == ["close"]


def test_a_group_that_is_refused_does_not_keep_the_next(
    groups: EmulatedGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(group="close")
    config["available_node_types"]["more"] = config_of(group="next")["available_node_types"]["gpu"]
    list(prepare(needs_of(config)))
    assert sorted(groups.tags) == ["close", "next"]
    groups.refused.add("close")
    found = removed(config)
    assert "UnauthorizedOperation" in found["placement group close"]
    assert found["placement group next"] == ""
    assert list(groups.tags) == ["close"]


def test_disks_that_cannot_be_listed_do_not_keep_the_group(groups: EmulatedGroups) -> None:
    config = config_of(group="close", gpu={"size_gb": 20})
    list(prepare(needs_of(config)))
    del config["cluster_name"]
    found = removed(config)
    assert "cluster_name is missing" in found["disks"]
    assert found["placement group close"] == ""


def test_a_cluster_that_had_neither_leaves_nothing() -> None:
    azure = {"cluster_name": CLUSTER, "provider": {"type": "azure"}}
    assert removed(azure) == {}
    assert removed(config_of()) == {}
