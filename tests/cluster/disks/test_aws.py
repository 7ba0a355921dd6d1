"""Data disks through the node provider for EC2: given, found again, never shared, deleted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from ray.autoscaler._private.updater import NodeUpdater

from spotray.cloud.aws.disks import EbsDisks
from spotray.cloud.disks import CLUSTER_TAG, USED_TAG, Disk, DiskWish
from spotray.cluster.aws import SpotNodeProvider
from spotray.cluster.disks.supply import DiskSupply, Given
from spotray.errors import DiskNotFree, QuotaError
from spotray.events import DiskDeleted, DiskMounted, Event, Warned
from tests.cluster.emulated_ec2 import (
    REGION,
    EmulatedEC2,
    emulated_ec2,
    head_tags,
    provider_config,
    worker_tags,
)

WANTED = {"size_gb": 200, "mount": "/data"}


class Nodes:
    """A provider whose workers get disks, and what it told."""

    def __init__(self, ec2: EmulatedEC2, memory: Path, **data_disk: Any) -> None:
        markets = {"gpu": {"data_disk": WANTED | data_disk}}
        self.ec2 = ec2
        self.provider = SpotNodeProvider(
            provider_config(memory, markets=markets), "test", clock=ec2.clock
        )
        ec2.listen_to(self.provider.ec2_fail_fast.meta.client)
        self.events: list[Event] = []
        self.supply: DiskSupply = self.provider.data_disks
        self.supply._tell = self.events.append
        self.disks = EbsDisks(REGION, clock=ec2.clock)

    def up(self, **more: Any) -> str:
        """A worker that runs."""
        (name,) = self.provider.create_node(self.ec2.node_config(**more), worker_tags(), 1)
        self.provider.non_terminated_nodes({})
        return str(name)

    def give(self, name: str) -> Given | None:
        zone = self.provider.market_of(name).zone
        return self.supply.give(name, node_type="gpu", zone=zone)

    def mount(self, name: str, given: Given | None, says: str) -> None:
        self.supply.mount(name, given, lambda cmd: f"spotray-disk: {says}\n", node_type="gpu")

    def listed(self) -> list[Disk]:
        return sorted(self.disks.listed("test"), key=lambda disk: disk.slot)

    def told(self, kind: type[Event]) -> list[Any]:
        return [one for one in self.events if isinstance(one, kind)]


@pytest.fixture
def ec2(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedEC2]:
    monkeypatch.delenv("SPOTRAY_JOURNAL", raising=False)
    with emulated_ec2(monkeypatch) as emulated:
        yield emulated


@pytest.fixture
def nodes(ec2: EmulatedEC2, tmp_path: Path) -> Nodes:
    return Nodes(ec2, tmp_path / "launches.jsonl")


def refuse(disks: Any, operation: str, code: str, *, times: int = 1) -> list[str]:
    """Have EC2 refuse an operation so often; the calls are counted in what comes back."""
    calls: list[str] = []

    def answer(**_: Any) -> Any:
        calls.append(operation)
        if len(calls) > times:
            return None

        class Response:
            status_code = 400

        metadata = {"HTTPStatusCode": 400}
        return Response(), {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": metadata}

    disks._ec2.meta.events.register(f"before-call.ec2.{operation}", answer)
    return calls


# -- given and found again -----------------------------------------------------


def test_the_first_node_gets_a_new_disk_with_our_tags_in_its_zone(nodes: Nodes) -> None:
    name = nodes.up()
    given = nodes.give(name)
    assert given is not None
    (disk,) = nodes.listed()
    assert disk == Disk(
        disk_id=given.disk.disk_id,
        zone="us-west-2a",
        cluster="test",
        slot="gpu-0",
        size_gib=200,
        type="gp3",
        used_s=disk.used_s,
        node=name,
        is_free=False,
    )
    serial = disk.disk_id.replace("-", "")
    assert serial in given.found_at
    assert given.found_at[-1] == "/dev/xvdf"


def test_after_a_preemption_the_next_node_has_the_same_disk(nodes: Nodes) -> None:
    first = nodes.up()
    before = nodes.give(first)
    nodes.mount(first, before, "mounted: /dev/nvme1n1, formatted")
    nodes.ec2.take(first)
    second = nodes.up(zones=("us-west-2a",))
    after = nodes.give(second)
    nodes.mount(second, after, "mounted: /dev/nvme1n1, with what was on it")
    assert before is not None
    assert after is not None
    assert after.disk.disk_id == before.disk.disk_id
    assert [(one.name, one.warm) for one in nodes.told(DiskMounted)] == [
        (first, False),
        (second, True),
    ]
    assert "unused for" in after.why
    assert "16.00 USD a month" in after.why


def test_asked_again_a_node_keeps_the_disk_that_it_has(nodes: Nodes) -> None:
    name = nodes.up()
    first = nodes.give(name)
    again = nodes.give(name)
    assert first is not None
    assert again is not None
    assert again.disk.disk_id == first.disk.disk_id
    assert again.found_at == first.found_at
    assert len(nodes.listed()) == 1


def test_a_disk_of_another_zone_is_not_used_and_told_with_its_age_and_cost(nodes: Nodes) -> None:
    first = nodes.up()
    nodes.give(first)
    nodes.ec2.take(first)
    nodes.ec2.clock.advance(2 * 3600)
    given = nodes.give(nodes.up(zones=("us-west-2b",)))
    assert given is not None
    assert given.disk.zone == "us-west-2b"
    assert "none waited in us-west-2b; not used: vol-" in given.why
    assert "in us-west-2a, 200 GiB gp3, unused for" in given.why


@pytest.mark.parametrize(
    ("other", "reused"),
    [({"size_gb": 100}, True), ({"size_gb": 300}, False), ({"type": "gp2"}, False)],
)
def test_only_a_disk_that_is_large_enough_and_of_the_type_is_used_again(
    nodes: Nodes, tmp_path: Path, other: dict[str, Any], reused: bool
) -> None:
    first = nodes.up()
    before = nodes.give(first)
    nodes.ec2.take(first)
    changed = Nodes(nodes.ec2, tmp_path / "launches.jsonl", **other)
    after = changed.give(changed.up(zones=("us-west-2a",)))
    assert before is not None
    assert after is not None
    assert (after.disk.disk_id == before.disk.disk_id) is reused


def test_another_clusters_disk_is_left_alone(nodes: Nodes) -> None:
    wish = DiskWish(cluster="other", zone="us-west-2a", slot="gpu-0", size_gib=200, type="gp3")
    theirs = nodes.disks.make(wish)
    given = nodes.give(nodes.up())
    assert given is not None
    assert given.disk.disk_id != theirs.disk_id
    nodes.supply.end()
    assert [disk.disk_id for disk in nodes.disks.listed("other")] == [theirs.disk_id]


class Shell:
    """Stands where Ray's updater has the module ``subprocess``: a node that says how it went."""

    def __init__(self, says: str) -> None:
        self.says = says
        self.ran: list[str] = []

    def check_call(self, cmd: list[str], **_: Any) -> int:
        self.ran.append(cmd[-1])
        return 0

    def check_output(self, cmd: list[str], **_: Any) -> bytes:
        self.ran.append(cmd[-1])
        return f"Welcome to Ubuntu\r\nspotray-disk: {self.says}\r\n".encode()


def set_up(nodes: Nodes, name: str, shell: Shell, *, is_head: bool = False) -> None:
    """What Ray does with a node that has come up."""
    updater = NodeUpdater(
        node_id=name,
        provider_config=nodes.provider.provider_config,
        provider=nodes.provider,
        auth_config={"ssh_user": "ubuntu"},
        cluster_name="test",
        file_mounts={},
        initialization_commands=[],
        setup_commands=["install"],
        ray_start_commands=["start"],
        runtime_hash="hash",
        file_mounts_contents_hash="hash",
        is_head_node=is_head,
        process_runner=shell,
        use_internal_ip=True,
    )
    updater.run()


@pytest.mark.parametrize(
    ("says", "warm"),
    [("mounted: /dev/nvme1n1, formatted", [False]), ("failed: no device", [])],
)
def test_rays_own_updater_mounts_the_disk_before_it_installs_anything(
    nodes: Nodes, says: str, warm: list[bool]
) -> None:
    name, shell = nodes.up(), Shell(says)
    set_up(nodes, name, shell)
    words = ("uptime", "blkid", "install", "start")
    seen = [next((word for word in words if word in cmd), "?") for cmd in shell.ran]
    assert [one for one in seen if one != "?"] == list(words)
    (disk,) = nodes.listed()
    assert disk.node == name
    assert disk.disk_id.replace("-", "") in next(cmd for cmd in shell.ran if "blkid" in cmd)
    assert [one.warm for one in nodes.told(DiskMounted)] == warm
    assert len(nodes.told(Warned)) == (not warm)
    assert nodes.provider.node_tags(name)["ray-node-status"] == "up-to-date"


def test_a_node_that_goes_without_a_disk_is_set_up_all_the_same(nodes: Nodes) -> None:
    name, shell = nodes.up(), Shell("none")
    nodes.supply._made_disks = nodes.disks
    refuse(nodes.disks, "CreateVolume", "VolumeLimitExceeded", times=100)
    set_up(nodes, name, shell)
    assert "mkdir -p" in shell.ran[1], "the folder is there all the same"
    assert nodes.provider.node_tags(name)["ray-node-status"] == "up-to-date"
    assert nodes.listed() == []


def test_the_head_gets_no_disk(nodes: Nodes) -> None:
    made = nodes.provider.create_node(nodes.ec2.node_config(), head_tags(), 1)
    nodes.provider.non_terminated_nodes({})
    shell = Shell("none")
    set_up(nodes, next(iter(made)), shell, is_head=True)
    assert not any("blkid" in cmd for cmd in shell.ran)
    assert nodes.listed() == []


# -- never two nodes on one disk -------------------------------------------------


def test_two_launches_at_once_for_one_disk_end_with_one_each(nodes: Nodes) -> None:
    first = nodes.up()
    nodes.give(first)
    nodes.ec2.take(first)
    both = [nodes.up(zones=("us-west-2a",)) for _ in range(2)]
    meet, got = threading.Barrier(2), {}

    def give(name: str) -> None:
        meet.wait(timeout=10)
        got[name] = nodes.give(name)

    threads = [threading.Thread(target=give, args=(name,)) for name in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    disks = {given.disk.disk_id for given in got.values()}
    assert len(disks) == 2
    assert {disk.node for disk in nodes.listed()} == set(both)
    assert [disk.slot for disk in nodes.listed()] == ["gpu-0", "gpu-1"]


def test_two_processes_that_choose_one_disk_are_told_apart_by_the_cloud(
    nodes: Nodes, tmp_path: Path
) -> None:
    first = nodes.up()
    nodes.give(first)
    nodes.ec2.take(first)
    other = Nodes(nodes.ec2, tmp_path / "launches.jsonl")
    mine, theirs = nodes.up(zones=("us-west-2a",)), nodes.up(zones=("us-west-2a",))
    listed, real = nodes.listed(), other.disks.listed
    late = iter([listed])  # the other process has looked before this one attached
    other.supply._made_disks = other.disks
    other.disks.listed = lambda cluster: next(late, None) or real(cluster)  # type: ignore[method-assign]
    assert nodes.give(mine) is not None
    other.provider.non_terminated_nodes({})
    given = other.give(theirs)
    assert given is not None
    assert given.disk.disk_id != listed[0].disk_id
    assert {disk.node for disk in nodes.listed()} == {mine, theirs}


def test_the_cloud_refuses_a_disk_that_another_node_has(nodes: Nodes) -> None:
    first, second = nodes.up(), nodes.up()
    nodes.give(first)
    (disk,) = nodes.listed()
    with pytest.raises(DiskNotFree) as caught:
        nodes.disks.attach(disk, second)
    assert caught.value.code in ("VolumeInUse", "IncorrectState")


# -- what goes wrong -------------------------------------------------------------


def test_a_disk_that_vanishes_is_passed_over(nodes: Nodes) -> None:
    first = nodes.up()
    nodes.give(first)
    nodes.ec2.take(first)
    (gone,) = nodes.listed()
    nodes.supply._made_disks = nodes.disks
    real, stale = nodes.disks.listed, iter([[gone]])
    nodes.disks.delete(gone)
    nodes.disks.listed = lambda cluster: next(stale, None) or real(cluster)  # type: ignore[method-assign]
    given = nodes.give(nodes.up(zones=("us-west-2a",)))
    assert given is not None
    assert given.disk.disk_id != gone.disk_id
    assert nodes.told(Warned) == []


@pytest.mark.parametrize(
    ("operation", "code"),
    [
        ("CreateVolume", "VolumeLimitExceeded"),
        ("CreateVolume", "UnauthorizedOperation"),
        ("CreateVolume", "BrandNewCode"),
        ("AttachVolume", "AttachmentLimitExceeded"),
        ("DescribeVolumes", "RequestLimitExceeded"),
    ],
)
def test_the_node_goes_without_a_disk_and_the_journal_says_why(
    nodes: Nodes, operation: str, code: str
) -> None:
    name = nodes.up()
    nodes.supply._made_disks = nodes.disks
    refuse(nodes.disks, operation, code, times=100)
    assert nodes.give(name) is None
    (warned,) = nodes.told(Warned)
    assert f"{name} in us-west-2a goes without a data disk" in warned.what
    assert code in warned.what


def test_a_disk_that_is_never_to_be_had_is_tried_a_few_times_only(nodes: Nodes) -> None:
    name = nodes.up()
    nodes.supply._made_disks = nodes.disks
    calls = refuse(nodes.disks, "AttachVolume", "VolumeInUse", times=100)
    assert nodes.give(name) is None
    assert len(calls) == 5
    (warned,) = nodes.told(Warned)
    assert "VolumeInUse" in warned.what


def test_a_node_that_dies_before_its_disk_comes_leaves_the_disk_to_the_next(nodes: Nodes) -> None:
    dead = nodes.up()
    nodes.ec2.take(dead)
    assert nodes.give(dead) is None
    (warned,) = nodes.told(Warned)
    assert "terminated" in warned.what
    (disk,) = nodes.listed()
    assert disk.is_free
    given = nodes.give(nodes.up(zones=("us-west-2a",)))
    assert given is not None
    assert given.disk.disk_id == disk.disk_id


def test_a_disk_that_cannot_be_mounted_is_not_given_again(nodes: Nodes) -> None:
    first = nodes.up()
    bad = nodes.give(first)
    nodes.mount(first, bad, "failed: /dev/nvme1n1 (ext4) cannot be mounted")
    (warned,) = nodes.told(Warned)
    assert "cannot be mounted" in warned.what
    nodes.ec2.take(first)
    given = nodes.give(nodes.up(zones=("us-west-2a",)))
    assert bad is not None
    assert given is not None
    assert given.disk.disk_id != bad.disk.disk_id


def test_a_new_disk_waits_for_the_node_to_run(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = nodes.up()
    states = iter(["pending", "pending", "running"])
    real = nodes.disks._ec2.describe_instances

    def slow(**kwargs: Any) -> Any:
        answer = real(**kwargs)
        answer["Reservations"][0]["Instances"][0]["State"]["Name"] = next(states)
        return answer

    monkeypatch.setattr(nodes.disks._ec2, "describe_instances", slow)
    nodes.supply._made_disks = nodes.disks
    start_s = nodes.ec2.clock.now_s()
    assert nodes.give(name) is not None
    assert nodes.ec2.clock.now_s() - start_s == 2.0


def test_a_quota_is_told_as_one(nodes: Nodes) -> None:
    refuse(nodes.disks, "CreateVolume", "VolumeLimitExceeded")
    wish = DiskWish(cluster="test", zone="us-west-2a", slot="gpu-0", size_gib=200, type="gp3")
    with pytest.raises(QuotaError):
        nodes.disks.make(wish)


# -- which zone ------------------------------------------------------------------


def test_a_warm_disk_breaks_the_tie_between_zones(nodes: Nodes) -> None:
    first = nodes.up(zones=("us-west-2c",))
    nodes.give(first)
    nodes.provider.terminate_node(first)
    nodes.ec2.clock.advance(31)
    nodes.ec2.asked()
    nodes.up()
    assert nodes.ec2.asked() == [nodes.ec2.market("c")]


def test_a_zone_with_a_failure_is_not_asked_first_for_its_warm_disk(nodes: Nodes) -> None:
    first = nodes.up(zones=("us-west-2c",))
    nodes.give(first)
    nodes.ec2.take(first)
    nodes.provider.non_terminated_nodes({})  # sees the preemption
    nodes.ec2.clock.advance(601)
    nodes.ec2.asked()
    nodes.up()
    assert nodes.ec2.asked() == [nodes.ec2.market("a")]


def test_where_there_is_no_capacity_no_disk_is_waited_for(nodes: Nodes) -> None:
    first = nodes.up(zones=("us-west-2c",))
    nodes.give(first)
    nodes.provider.terminate_node(first)
    nodes.ec2.clock.advance(31)
    nodes.ec2.refuses = {nodes.ec2.market("c"): "InsufficientInstanceCapacity"}
    nodes.ec2.asked()
    start_s = nodes.ec2.clock.now_s()
    name = nodes.up()
    assert nodes.ec2.asked() == [nodes.ec2.market("c"), nodes.ec2.market("a")]
    assert nodes.ec2.clock.now_s() == start_s
    assert nodes.provider.market_of(name) == nodes.ec2.market("a")


def test_a_listing_that_fails_leaves_the_zones_as_configured(nodes: Nodes) -> None:
    nodes.supply._made_disks = nodes.disks
    refuse(nodes.disks, "DescribeVolumes", "RequestLimitExceeded", times=100)
    nodes.ec2.asked()
    nodes.up()
    assert nodes.ec2.asked() == [nodes.ec2.market("a")]


# -- deleted -----------------------------------------------------------------------


def test_a_disk_that_nobody_uses_is_deleted_after_its_hours_and_not_before(nodes: Nodes) -> None:
    name = nodes.up()
    nodes.give(name)
    nodes.provider.terminate_node(name)
    nodes.ec2.clock.advance(23.9 * 3600)
    nodes.provider.non_terminated_nodes({})
    assert len(nodes.listed()) == 1
    nodes.ec2.clock.advance(3600)
    nodes.provider.non_terminated_nodes({})
    assert nodes.listed() == []
    (deleted,) = nodes.told(DiskDeleted)
    assert deleted.why == "no node had it for 24 h"


def test_the_hours_begin_when_the_last_node_goes(nodes: Nodes) -> None:
    name = nodes.up()
    nodes.give(name)
    for _ in range(60):  # two days of work
        nodes.ec2.clock.advance(0.8 * 3600)
        nodes.provider.non_terminated_nodes({})
    nodes.provider.terminate_node(name)
    nodes.ec2.clock.advance(20 * 3600)
    nodes.provider.non_terminated_nodes({})
    assert len(nodes.listed()) == 1


def test_going_down_deletes_all_disks_of_the_cluster(nodes: Nodes) -> None:
    head = next(iter(nodes.provider.create_node(nodes.ec2.node_config(), head_tags(), 1)))
    first, second = nodes.up(), nodes.up()
    nodes.give(first)
    nodes.give(second)
    nodes.provider.terminate_node(first)
    assert len(nodes.listed()) == 2
    nodes.provider.non_terminated_nodes({})
    nodes.provider.terminate_nodes([head, second])
    assert nodes.listed() == []
    assert nodes.told(Warned) == []


def test_disks_that_are_to_be_kept_outlive_the_cluster(ec2: EmulatedEC2, tmp_path: Path) -> None:
    nodes = Nodes(ec2, tmp_path / "launches.jsonl", keep_after_down=True)
    head = next(iter(nodes.provider.create_node(ec2.node_config(), head_tags(), 1)))
    name = nodes.up()
    nodes.give(name)
    nodes.provider.terminate_nodes([head, name])
    (disk,) = nodes.listed()
    assert disk.is_free


def test_workers_that_go_take_no_disks_with_them(nodes: Nodes) -> None:
    name = nodes.up()
    nodes.give(name)
    nodes.provider.terminate_nodes([name])
    (disk,) = nodes.listed()
    assert disk.is_free


def test_what_cannot_be_deleted_is_told_with_the_command_that_can(nodes: Nodes) -> None:
    head = next(iter(nodes.provider.create_node(nodes.ec2.node_config(), head_tags(), 1)))
    name = nodes.up()
    nodes.give(name)
    nodes.supply._made_disks = nodes.disks
    refuse(nodes.disks, "ModifyInstanceAttribute", "UnauthorizedOperation")
    nodes.provider.terminate_nodes([head, name])
    (warned,) = nodes.told(Warned)
    assert "spotray cluster disks delete test" in warned.what


def test_a_volume_without_our_tag_is_never_deleted(nodes: Nodes) -> None:
    wish = DiskWish(cluster="test", zone="us-west-2a", slot="gpu-0", size_gib=10, type="gp3")
    disk = nodes.disks.make(wish)
    nodes.disks._ec2.delete_tags(Resources=[disk.disk_id], Tags=[{"Key": CLUSTER_TAG}])
    with pytest.raises(DiskNotFree, match=CLUSTER_TAG):
        nodes.disks.delete(disk)
    assert nodes.disks._volume(disk.disk_id)["State"] == "available"


def test_a_disk_in_use_is_never_deleted(nodes: Nodes) -> None:
    nodes.give(nodes.up())
    (disk,) = nodes.listed()
    with pytest.raises(DiskNotFree):
        nodes.disks.delete(disk)
    assert len(nodes.listed()) == 1


def test_deleting_what_is_gone_is_no_error(nodes: Nodes) -> None:
    wish = DiskWish(cluster="test", zone="us-west-2a", slot="gpu-0", size_gib=10, type="gp3")
    disk = nodes.disks.make(wish)
    nodes.disks.delete(disk)
    nodes.disks.delete(disk)
    with pytest.raises(ClientError, match="NotFound"):
        nodes.disks._volume(disk.disk_id)


def test_a_tag_that_somebody_wrote_over_is_no_age(nodes: Nodes) -> None:
    nodes.give(nodes.up())
    (disk,) = nodes.listed()
    tags = [{"Key": USED_TAG, "Value": "yesterday"}]
    nodes.disks._ec2.create_tags(Resources=[disk.disk_id], Tags=tags)
    (again,) = nodes.listed()
    assert again.used_s > 0
