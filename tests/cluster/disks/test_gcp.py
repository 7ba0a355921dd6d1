"""What is kept of workers on Compute Engine: data disks, and stopped nodes with their boot disk."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spotray.cloud.gcp.disks import PersistentDisks
from spotray.cloud.gcp.kept import KeptDisks
from spotray.cluster.disks.boot import LAUNCH_LABEL
from spotray.cluster.disks.owned import delete, open_disks, owned, place_of
from spotray.cluster.gcp import SpotNodeProvider
from spotray.cluster.markets import check_provider
from spotray.errors import DiskNotFree
from spotray.events import DiskDeleted, DiskMounted, Event, Warned
from spotray.policy.evidence import losses
from tests.cloud.gcp.fake_compute import FakeCompute, serving
from tests.cluster.emulated_gce import (
    REGION,
    STOCK_OUT,
    ZONES,
    EmulatedGCE,
    head_labels,
    market,
    worker_labels,
)

NODE_CONFIG: dict[str, Any] = {"machineType": "g2-standard-4", "disks": [{"boot": True}]}


class Nodes:
    """A provider with a market's extras, the clouds below it, and what it told."""

    def __init__(self, gce: EmulatedGCE, compute: FakeCompute, memory: Path, **gpu: Any) -> None:
        self.gce, self.compute = gce, compute
        self.disks = PersistentDisks("p", REGION, client=compute.client, clock=gce.clock)
        self.provider = SpotNodeProvider(
            {
                "type": "external",
                "module": "spotray.cluster.gcp.SpotNodeProvider",
                "region": REGION,
                "availability_zone": ",".join(ZONES),
                "project_id": "p",
                "launch_memory": str(memory),
                "markets": {"gpu": gpu},
            },
            "test",
            clock=gce.clock,
            compute=gce,
            disks=self.disks,
        )
        self.events: list[Event] = []
        self.provider.data_disks._tell = self.events.append
        if self.provider._stopped is not None:
            self.provider._stopped._tell = self.events.append

    def up(self, count: int = 1, **labels: str) -> list[str]:
        made = self.provider.create_node(dict(NODE_CONFIG), worker_labels() | labels, count)
        self.provider.non_terminated_nodes({})
        return sorted(made)

    def head(self) -> str:
        (name,) = self.provider.create_node({"machineType": "n2-standard-2"}, head_labels(), 1)
        self.provider.non_terminated_nodes({})
        return str(name)

    def give(self, name: str) -> Any:
        zone = self.provider.market_of(name).zone
        return self.provider.data_disks.give(name, node_type="gpu", zone=zone)

    def told(self, kind: type[Event]) -> list[Any]:
        return [one for one in self.events if isinstance(one, kind)]


@pytest.fixture
def gce(monkeypatch: pytest.MonkeyPatch) -> EmulatedGCE:
    monkeypatch.delenv("SPOTRAY_JOURNAL", raising=False)
    return EmulatedGCE()


@pytest.fixture
def compute(gce: EmulatedGCE) -> Iterator[FakeCompute]:
    with serving(FakeCompute(gce.machines, gce.clock)) as served:
        yield served


@pytest.fixture
def disky(gce: EmulatedGCE, compute: FakeCompute, tmp_path: Path) -> Nodes:
    return Nodes(gce, compute, tmp_path / "launches.jsonl", data_disk={"size_gb": 200})


@pytest.fixture
def booty(gce: EmulatedGCE, compute: FakeCompute, tmp_path: Path) -> Nodes:
    return Nodes(gce, compute, tmp_path / "launches.jsonl", reuse="boot")


# -- data disks --------------------------------------------------------------------


def test_after_a_preemption_the_next_node_of_the_zone_has_the_same_disk(disky: Nodes) -> None:
    (first,) = disky.up()
    before = disky.give(first)
    assert before.found_at == ("/dev/disk/by-id/google-spotray-test-gpu-0",)
    disky.gce.take(first)
    assert disky.disks.listed("test")[0].is_free  # from now on, for the fake
    disky.gce.refuses = {market("b"): STOCK_OUT, market("c"): STOCK_OUT}
    disky.gce.clock.advance(7200)
    (second,) = disky.up()
    after = disky.give(second)
    assert after.disk.disk_id == before.disk.disk_id
    said = "spotray-disk: mounted: /dev/sdb, with what was on it"
    disky.provider.data_disks.mount(second, after, lambda cmd: said, node_type="gpu")
    (mounted,) = disky.told(DiskMounted)
    assert mounted.warm
    assert mounted.usd_per_month == 20.0
    assert "unused for 2.0 h" in mounted.why


def test_two_providers_that_make_the_same_slot_are_told_apart(disky: Nodes) -> None:
    first, second = disky.up(2)
    listed = iter([[], []])
    real = disky.disks.listed
    disky.disks.listed = lambda cluster: next(listed, None) or real(cluster)  # type: ignore[method-assign]
    assert disky.give(first).disk.slot == "gpu-0"
    assert disky.give(second).disk.slot == "gpu-1"


@pytest.mark.parametrize(
    ("refused", "failed", "word"),
    [
        ({"make": (403, "quotaExceeded")}, {}, "quotaExceeded"),
        ({"make": (403, "forbidden")}, {}, "the role Compute Admin"),
        ({"attach": (503, "backendError")}, {}, "backendError"),
        ({"list": (400, "brandNew")}, {}, "list is refused"),
        ({}, {"make": "BRAND_NEW"}, "BRAND_NEW"),
        ({}, {"attach": "INTERNAL_ERROR"}, "INTERNAL_ERROR"),
    ],
)
def test_the_node_goes_without_a_disk_and_the_journal_says_why(
    disky: Nodes, refused: dict[str, Any], failed: dict[str, str], word: str
) -> None:
    (name,) = disky.up()
    disky.compute.refuses, disky.compute.fails = refused, failed
    assert disky.give(name) is None
    (warned,) = disky.told(Warned)
    assert word in warned.what


def test_disks_are_asked_for_with_the_credentials_of_the_yaml(
    gce: EmulatedGCE, compute: FakeCompute, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "there is none"))
    config = {
        "type": "external",
        "module": "spotray.cluster.gcp.SpotNodeProvider",
        "region": REGION,
        "availability_zone": ZONES[0],
        "project_id": "p",
        "gcp_credentials": {"type": "credentials_token", "credentials": "of-the-yaml"},
        "launch_memory": str(tmp_path / "launches.jsonl"),
        "markets": {"gpu": {"data_disk": {"size_gb": 200}}},
    }
    compute.stands_for_google(monkeypatch)
    provider = SpotNodeProvider(config, "test", clock=gce.clock, compute=gce)
    (name,) = provider.create_node(dict(NODE_CONFIG), worker_labels(), 1)
    zone = provider.market_of(name).zone
    assert provider.data_disks.give(name, node_type="gpu", zone=zone) is not None
    place = place_of({"cluster_name": "test", "provider": config})
    assert [one.slot for one in open_disks(place).listed("test")] == ["gpu-0"]
    assert compute.tokens == {"Bearer of-the-yaml"}


def test_an_operation_that_takes_a_while_is_waited_for(disky: Nodes) -> None:
    (name,) = disky.up()
    disky.compute.slow = 3
    start_s = disky.gce.clock.now_s()
    assert disky.give(name) is not None
    assert disky.gce.clock.now_s() - start_s == 6.0


def test_an_operation_that_hangs_costs_half_a_minute_and_the_disk(disky: Nodes) -> None:
    (name,) = disky.up()
    disky.compute.slow = 10_000
    start_s = disky.gce.clock.now_s()
    assert disky.give(name) is None
    assert 25 < disky.gce.clock.now_s() - start_s < 40


def test_going_down_deletes_the_disks(disky: Nodes) -> None:
    head, (first, second) = disky.head(), disky.up(2)
    disky.give(first)
    disky.give(second)
    disky.provider.terminate_node(first)
    disky.provider.terminate_nodes([head, second])
    assert disky.disks.listed("test") == []
    assert disky.gce.machines == {}
    assert disky.told(Warned) == []


def test_a_disk_in_another_region_is_not_seen(disky: Nodes) -> None:
    (name,) = disky.up()
    disky.give(name)
    elsewhere = PersistentDisks("p", "us-east1", client=disky.compute.client)
    assert elsewhere.listed("test") == []


def test_a_node_that_nobody_knows_any_more_can_be_terminated(disky: Nodes, booty: Nodes) -> None:
    for nodes in (disky, booty):
        nodes.provider.terminate_nodes(["gone"])
        nodes.provider.terminate_node("gone")


# -- nodes that are stopped --------------------------------------------------------


def test_a_preempted_node_is_started_again_with_its_boot_disk(booty: Nodes) -> None:
    (name,) = booty.up()
    assert booty.gce.bodies[0]["scheduling"]["instanceTerminationAction"] == "STOP"
    booty.gce.take(name, action="STOP")
    assert booty.provider.non_terminated_nodes({}) == []
    booty.gce.clock.advance(7200)
    assert booty.up(**{"ray-node-status": "uninitialized"}) == [name]
    assert booty.gce.started == [name]
    assert len(booty.gce.bodies) == 1
    assert booty.provider.node_tags(name)["ray-node-status"] == "uninitialized"


def test_what_is_missing_besides_the_stopped_nodes_is_new(booty: Nodes) -> None:
    (name,) = booty.up()
    booty.gce.take(name, action="STOP")
    booty.provider.non_terminated_nodes({})
    booty.gce.clock.advance(7200)
    names = booty.up(3)
    assert len(names) == 3
    assert name in names
    assert booty.gce.started == [name]


def test_a_node_that_ray_ends_after_a_notice_is_stopped(booty: Nodes) -> None:
    (name,) = booty.up()
    booty.provider.terminate_node(name)
    assert booty.gce.machines[name]["status"] == "TERMINATED"
    assert booty.up() == [name]


def test_a_zone_without_capacity_refuses_the_stopped_node_and_a_new_one_comes_elsewhere(
    booty: Nodes,
) -> None:
    (name,) = booty.up()
    booty.provider.terminate_node(name)
    booty.gce.refuses = {market("a"): STOCK_OUT}
    (other,) = booty.up()
    assert other != name
    assert booty.provider.market_of(other) == market("b")
    assert booty.gce.started == []


def test_a_changed_description_makes_a_new_node(booty: Nodes) -> None:
    (name,) = booty.up()
    booty.provider.terminate_node(name)
    (other,) = booty.up(**{LAUNCH_LABEL: "another"})
    assert other != name
    assert booty.gce.started == []


def test_an_on_demand_node_is_deleted(booty: Nodes) -> None:
    booty.gce.refuses = {market(zone): STOCK_OUT for zone in "abc"}
    (name,) = booty.up()
    booty.provider.terminate_node(name)
    assert name not in booty.gce.machines


def test_a_stopped_node_that_is_deleted_meanwhile_is_replaced(booty: Nodes) -> None:
    (name,) = booty.up()
    booty.provider.terminate_node(name)
    stale = booty.provider.stopped(ZONES[0], {})
    del booty.gce.machines[name]
    booty.provider.stopped = lambda zone, labels: stale  # type: ignore[method-assign]
    (other,) = booty.up()
    assert other != name


def test_each_loss_of_a_node_that_comes_back_counts(booty: Nodes) -> None:
    for _ in range(2):
        (name,) = booty.up()
        booty.gce.clock.advance(60)
        booty.gce.take(name, action="STOP")
        booty.provider.non_terminated_nodes({})
        booty.gce.clock.advance(7200)
    found = losses(booty.provider.memory.facts())
    assert [loss.market for loss in found] == [market("a")] * 2
    assert all(55 < loss.lived_s < 70 for loss in found)


def test_a_node_that_was_once_taken_may_later_be_ended_by_a_person(booty: Nodes) -> None:
    for by in ("", "delete"):
        (name,) = booty.up()
        booty.gce.clock.advance(60)
        booty.gce.take(name, action="STOP", by=by)
        booty.provider.non_terminated_nodes({})
        booty.gce.clock.advance(7200)
    assert len(losses(booty.provider.memory.facts())) == 1


def test_what_was_stopped_for_a_day_is_deleted(booty: Nodes) -> None:
    (name,) = booty.up()
    booty.provider.terminate_node(name)
    booty.gce.clock.advance(23 * 3600)
    booty.provider.non_terminated_nodes({})
    assert name in booty.gce.machines
    booty.gce.clock.advance(2 * 3600)
    booty.provider.non_terminated_nodes({})
    assert name not in booty.gce.machines
    (deleted,) = booty.told(DiskDeleted)
    assert deleted.disk == name


def test_going_down_leaves_no_stopped_node(booty: Nodes) -> None:
    head, (first, second) = booty.head(), booty.up(2)
    booty.provider.terminate_node(first)
    booty.provider.terminate_nodes([head, second])
    assert booty.gce.machines == {}


def test_a_node_that_somebody_else_stopped_is_not_touched(booty: Nodes) -> None:
    (name,) = booty.up()
    booty.provider.terminate_node(name)
    del booty.gce.machines[name]["labels"]["spotray-reuse"]
    (other,) = booty.up()
    booty.provider.terminate_nodes([booty.head(), other])
    assert set(booty.gce.machines) == {name}


def test_stopped_nodes_are_among_what_a_cluster_keeps(booty: Nodes) -> None:
    first, second = booty.up(2)
    booty.provider.terminate_node(first)
    booty.gce.clock.advance(7200)
    kept = KeptDisks("p", REGION, client=booty.compute.client, clock=booty.gce.clock)
    (one,) = owned(kept, "test", now_s=booty.gce.clock.now_s())
    assert (one.disk.disk_id, one.disk.size_gib, one.unused_hours) == (first, 150, 2.0)
    running = dataclasses.replace(one.disk, disk_id=second)
    with pytest.raises(DiskNotFree, match="RUNNING"):
        kept.delete(running)
    assert [why for _, why in delete(kept, [one, one])] == ["", ""]
    assert set(booty.gce.machines) == {second}


@pytest.mark.parametrize(
    ("given", "cloud", "cure"),
    [
        ({"reuse": "boot"}, "aws", "data_disk"),
        ({"reuse": "disk"}, "gcp", "write boot"),
        ({"reuse": "boot", "spot": False}, "gcp", "leave one"),
    ],
)
def test_a_reuse_that_cannot_be_is_told(given: dict[str, Any], cloud: str, cure: str) -> None:
    (problem,) = check_provider({"markets": {"gpu": given}}, cloud=cloud)
    assert problem.path == "provider.markets.gpu.reuse"
    assert cure in problem.cure
