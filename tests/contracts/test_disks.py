"""What every cloud's disks must do: on EC2 as moto has it, and on a fake of Google's REST calls."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, Protocol

import pytest

from spotray.clock import FakeClock
from spotray.cloud.aws.disks import EbsDisks
from spotray.cloud.disks import CLUSTER_TAG, Disk, Disks, DiskWish
from spotray.errors import DiskNotFree, QuotaError
from tests.cloud.gcp.fake_compute import FakeCompute, serving
from tests.cluster.emulated_ec2 import REGION, EmulatedEC2, emulated_ec2


class Cloud(Protocol):
    """A cloud in which nodes come and go."""

    disks: Disks
    zone: str
    type: str

    def node(self) -> str: ...
    def end(self, node: str) -> None: ...
    def strip(self, disk: Disk) -> None:
        """Take our tag off."""

    def no_quota(self) -> None: ...


class AWS:
    zone, type = f"{REGION}a", "gp3"

    def __init__(self, ec2: EmulatedEC2) -> None:
        import boto3

        self.ec2, self.client = ec2, boto3.client("ec2", REGION)
        self.disks: Disks = EbsDisks(REGION, ec2=self.client, clock=ec2.clock)

    def node(self) -> str:
        conf = self.ec2.node_config(zones=(self.zone,))
        made = self.client.run_instances(
            ImageId=conf["ImageId"], SubnetId=conf["SubnetIds"][0], MinCount=1, MaxCount=1
        )
        return str(made["Instances"][0]["InstanceId"])

    def end(self, node: str) -> None:
        self.client.terminate_instances(InstanceIds=[node])

    def strip(self, disk: Disk) -> None:
        self.client.delete_tags(Resources=[disk.disk_id], Tags=[{"Key": CLUSTER_TAG}])

    def no_quota(self) -> None:
        class Response:
            status_code = 400

        error = {"Code": "VolumeLimitExceeded", "Message": "no"}
        answer = {"Error": error, "ResponseMetadata": {"HTTPStatusCode": 400}}
        self.client.meta.events.register(
            "before-call.ec2.CreateVolume", lambda **_: (Response(), answer)
        )


class GCP:
    zone, type = "us-central1-a", "pd-balanced"

    def __init__(self, compute: FakeCompute) -> None:
        from spotray.cloud.gcp.disks import PersistentDisks

        self.compute = compute
        self.disks: Disks = PersistentDisks(
            "p", "us-central1", client=compute.client, clock=compute.clock
        )

    def node(self) -> str:
        name = f"node-{len(self.compute.machines)}"
        self.compute.machines[name] = {"zone": f"zones/{self.zone}", "status": "RUNNING"}
        return name

    def end(self, node: str) -> None:
        del self.compute.machines[node]

    def strip(self, disk: Disk) -> None:
        self.compute.disks[disk.zone, disk.disk_id]["labels"] = {}

    def no_quota(self) -> None:
        self.compute.refuses["make"] = (403, "quotaExceeded")


@pytest.fixture(params=["aws", "gcp"])
def cloud(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    if request.param == "aws":
        with emulated_ec2(monkeypatch) as ec2:
            yield AWS(ec2)
    else:
        with serving(FakeCompute({}, FakeClock())) as compute:
            yield GCP(compute)


def make(cloud: Cloud, slot: str = "gpu-0", cluster: str = "vit") -> Disk:
    wish = DiskWish(cluster=cluster, zone=cloud.zone, slot=slot, size_gib=200, type=cloud.type)
    return cloud.disks.make(wish)


def only(cloud: Cloud) -> Disk:
    (disk,) = cloud.disks.listed("vit")
    return disk


def test_a_new_disk_is_listed_as_it_was_wished_for(cloud: Cloud) -> None:
    made = make(cloud)
    assert made == only(cloud)
    assert (made.zone, made.slot, made.size_gib, made.type) == (
        cloud.zone,
        "gpu-0",
        200,
        cloud.type,
    )
    assert made.is_free
    assert made.node == ""


def test_another_clusters_disks_are_not_listed(cloud: Cloud) -> None:
    make(cloud, cluster="other")
    assert cloud.disks.listed("vit") == []


def test_an_attached_disk_says_whose_it_is_and_where(cloud: Cloud) -> None:
    node = cloud.node()
    found_at = cloud.disks.attach(make(cloud), node)
    disk = only(cloud)
    assert (disk.node, disk.is_free) == (node, False)
    assert cloud.disks.found_at(disk) == found_at
    assert found_at[0].startswith("/dev/disk/by-id/")


def test_of_many_nodes_that_want_one_disk_one_gets_it(cloud: Cloud) -> None:
    disk, nodes = make(cloud), [cloud.node() for _ in range(4)]
    meet = threading.Barrier(len(nodes))
    outcomes: dict[str, Any] = {}

    def attach(node: str) -> None:
        meet.wait(timeout=10)
        try:
            outcomes[node] = cloud.disks.attach(disk, node)
        except DiskNotFree as exc:
            outcomes[node] = exc

    threads = [threading.Thread(target=attach, args=(node,)) for node in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    (winner,) = [node for node, got in outcomes.items() if isinstance(got, tuple)]
    assert len(outcomes) == len(nodes)
    assert only(cloud).node == winner


def test_a_node_that_ends_gives_its_disk_back(cloud: Cloud) -> None:
    first, second = cloud.node(), cloud.node()
    cloud.disks.attach(make(cloud), first)
    cloud.end(first)
    disk = only(cloud)
    assert disk.is_free
    assert cloud.disks.attach(disk, second)
    assert only(cloud).node == second


def test_a_disk_that_is_gone_is_not_to_be_had(cloud: Cloud) -> None:
    disk = make(cloud)
    cloud.disks.delete(disk)
    assert cloud.disks.listed("vit") == []
    with pytest.raises(DiskNotFree):
        cloud.disks.attach(disk, cloud.node())


def test_a_node_that_is_gone_is_no_reason_to_try_another_disk(cloud: Cloud) -> None:
    disk, node = make(cloud), cloud.node()
    cloud.end(node)
    with pytest.raises(Exception, match=node) as caught:
        cloud.disks.attach(disk, node)
    assert not isinstance(caught.value, DiskNotFree)
    assert only(cloud).is_free


def test_a_disk_goes_with_its_node_if_it_is_told_to(cloud: Cloud) -> None:
    node = cloud.node()
    cloud.disks.attach(make(cloud), node)
    cloud.disks.end_with_node(only(cloud))
    cloud.end(node)
    assert cloud.disks.listed("vit") == []


def test_a_disk_in_use_is_never_deleted(cloud: Cloud) -> None:
    cloud.disks.attach(make(cloud), cloud.node())
    with pytest.raises(DiskNotFree):
        cloud.disks.delete(only(cloud))
    assert not only(cloud).is_free


def test_a_disk_without_our_tag_is_never_deleted(cloud: Cloud) -> None:
    disk = make(cloud)
    cloud.strip(disk)
    with pytest.raises(DiskNotFree, match=CLUSTER_TAG):
        cloud.disks.delete(disk)
    cloud.disks.attach(disk, cloud.node())  # it is there


def test_deleting_twice_is_no_error(cloud: Cloud) -> None:
    disk = make(cloud)
    cloud.disks.delete(disk)
    cloud.disks.delete(disk)


def test_a_use_that_is_marked_makes_no_disk_older(cloud: Cloud) -> None:
    disk = make(cloud)
    cloud.disks.mark_used(disk, now_s=disk.used_s + 7200.0)
    assert only(cloud).used_s >= disk.used_s


def test_a_quota_is_told_as_one(cloud: Cloud) -> None:
    cloud.no_quota()
    with pytest.raises(QuotaError):
        make(cloud)
