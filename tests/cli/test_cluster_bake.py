"""`spotray cluster bake` makes an image of a worker that is set up, without its data disks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from spotray.cli.main import main
from spotray.clock import FakeClock
from spotray.cloud.aws.images import Baking, bake
from spotray.errors import ConfigError
from tests.cluster.emulated_ec2 import REGION, EmulatedEC2, emulated_ec2

NODE = {"InstanceType": "g5.xlarge"}
CONFIG: dict[str, Any] = {
    "cluster_name": "vit",
    "provider": {"type": "aws", "region": REGION},
    "head_node_type": "head",
    "available_node_types": {"head": {"node_config": NODE}, "gpu": {"node_config": NODE}},
}


@pytest.fixture
def ec2(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedEC2]:
    with emulated_ec2(monkeypatch) as emulated:
        yield emulated


@pytest.fixture
def client(ec2: EmulatedEC2) -> Any:
    import boto3

    return boto3.client("ec2", REGION)


def node(client: Any, status: str = "up-to-date") -> str:
    tags = {"ray-cluster-name": "vit", "ray-user-node-type": "gpu", "ray-node-status": status}
    listed = [{"Key": key, "Value": value} for key, value in tags.items()]
    made = client.run_instances(
        ImageId=client.describe_images()["Images"][0]["ImageId"],
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[{"ResourceType": "instance", "Tags": listed}],
    )
    return str(made["Instances"][0]["InstanceId"])


def file_of(tmp_path: Path, config: Any = CONFIG) -> str:
    path = tmp_path / "vit.yaml"
    path.write_text(yaml.safe_dump(config))
    return str(path)


def test_the_line_for_the_yaml_is_all_that_is_printed(
    client: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node(client, status="setting-up")
    ready = node(client)
    assert main(["cluster", "bake", file_of(tmp_path)]) == 0
    out, err = capsys.readouterr()
    (image,) = client.describe_images(Owners=["self"])["Images"]
    assert yaml.safe_load(out) == {"ImageId": image["ImageId"]}
    assert ready in err
    assert "reboots" in err
    assert {"Key": "spotray-cluster", "Value": "vit"} in image["Tags"]


def test_a_cluster_without_a_ready_worker_is_told_what_to_do(
    client: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node(client, status="setting-up")
    assert main(["cluster", "bake", file_of(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert "1 run, and none is set up yet" in err
    assert "--node" in err


@pytest.mark.parametrize(
    ("change", "words", "told"),
    [
        ({"provider": {"type": "gcp"}}, [], "AWS only"),
        ({}, ["--node-type", "cpu"], "no worker type 'cpu'"),
        (
            {
                "provider": {
                    "type": "external",
                    "module": "spotray.cluster.aws.SpotNodeProvider",
                    "region": REGION,
                    "markets": {"gpu": {"data_disk": {"size_gb": 200}}},
                }
            },
            [],
            "on a data disk",
        ),
    ],
)
def test_what_cannot_be_baked_is_told(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, Any],
    words: list[str],
    told: str,
) -> None:
    assert main(["cluster", "bake", file_of(tmp_path, CONFIG | change), *words]) == 1
    assert told in capsys.readouterr().err


class Slow:
    """EC2 with an image that takes its time, and a node with a data disk."""

    def __init__(self, *states: str) -> None:
        self.states = list(states)
        self.asked: dict[str, Any] = {}
        self.last = ""
        self.tagged: list[str] = []

    def describe_instances(self, **_: Any) -> Any:
        devices = [{"DeviceName": name} for name in ("/dev/sda1", "/dev/sdf")]
        one = {"BlockDeviceMappings": devices, "RootDeviceName": "/dev/sda1"}
        return {"Reservations": [{"Instances": [one]}]}

    def create_image(self, **asked: Any) -> Any:
        self.asked = asked
        return {"ImageId": "ami-1"}

    def describe_images(self, **_: Any) -> Any:
        mapping = {"DeviceName": "/dev/sda1", "Ebs": {"SnapshotId": "snap-1"}}
        self.last = self.states.pop(0) if self.states else self.last
        return {"Images": [{"State": self.last, "BlockDeviceMappings": [mapping]}]}

    def create_tags(self, **tagged: Any) -> None:
        self.tagged = tagged["Resources"]

    def describe_snapshots(self, **_: Any) -> Any:
        return {"Snapshots": [{"Progress": f"{90 - 30 * len(self.states)}%"}]}


def baked(ec2: Slow, **more: Any) -> list[Baking]:
    where = {"cluster": "vit", "node_type": "gpu", "region": REGION}
    return list(bake("i-1", ec2=ec2, clock=FakeClock(), **where, **more))


def test_it_is_told_how_far_it_is_until_it_can_be_used() -> None:
    ec2 = Slow("pending", "pending", "available")
    told = [(one.state, one.progress) for one in baked(ec2)]
    assert told == [("pending", "30%"), ("pending", "60%"), ("available", "")]


def test_data_disks_are_no_part_of_the_image() -> None:
    ec2 = Slow("available")
    baked(ec2, reboot=False)
    assert ec2.asked["BlockDeviceMappings"] == [{"DeviceName": "/dev/sdf", "NoDevice": ""}]
    assert ec2.asked["NoReboot"] is True
    assert ec2.tagged == ["snap-1"]


def test_an_image_that_failed_is_an_error() -> None:
    with pytest.raises(ConfigError, match="failed"):
        baked(Slow("pending", "failed"))


def test_an_image_that_is_never_ready_is_not_waited_for_all_day() -> None:
    with pytest.raises(ConfigError, match="60 min"):
        baked(Slow(*["pending"] * 1000))
