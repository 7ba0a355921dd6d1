"""What the emulated cloud promises to those who stand on it; without Ray."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.emulated.cloud import Cloud, emulated_cloud, wait_for

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(120)]

_LAUNCH = """
import boto3, json, sys
asked = json.loads(sys.argv[1])
ec2 = boto3.client("ec2")
if "key" not in [one["KeyName"] for one in ec2.describe_key_pairs()["KeyPairs"]]:
    print(ec2.create_key_pair(KeyName="key")["KeyMaterial"], file=open("/root/key", "w"))
zone = [{"Name": "availability-zone", "Values": [asked.pop("zone")]}]
subnet = ec2.describe_subnets(Filters=zone)["Subnets"][0]["SubnetId"]
try:
    made = ec2.run_instances(ImageId="ami-12345678", KeyName="key", SubnetId=subnet, **asked)
except ec2.exceptions.ClientError as exc:
    print(json.dumps(exc.response["Error"]["Code"]))
else:
    print(json.dumps([one["InstanceId"] for one in made["Instances"]]))
"""
_VOLUME = """
import boto3, sys
ec2, (name, zone, volume) = boto3.client("ec2"), sys.argv[1:]
if not volume:
    tags = [{"ResourceType": "volume", "Tags": [{"Key": "of", "Value": "test"}]}]
    made = ec2.create_volume(AvailabilityZone=zone, Size=20, TagSpecifications=tags)
    volume = made["VolumeId"]
try:
    ec2.attach_volume(VolumeId=volume, InstanceId=name, Device="/dev/sdf")
except ec2.exceptions.ClientError as exc:
    print(exc.response["Error"]["Code"])
else:
    print(volume)
"""
SPOT = {"InstanceMarketOptions": {"MarketType": "spot"}}


def launch(cloud: Cloud, *, zone: str = "us-west-2a", count: int = 1, **asked: Any) -> Any:
    """Ids of new instances, or EC2's code."""
    counts = {"MinCount": 1, "MaxCount": count, "InstanceType": "g4dn.xlarge"}
    told = json.dumps({"zone": zone, **counts, **asked})
    once = {"AWS_MAX_ATTEMPTS": "1"}
    return json.loads(cloud.run("python", "-c", _LAUNCH, told, environment=once))


def attach(cloud: Cloud, name: str, volume: str = "", *, zone: str = "us-west-2a") -> str:
    """The id of the volume, a new one if none is given, or EC2's code."""
    wait_for(lambda: cloud.instances(name=name, runs=True), "the machine")
    once = {"AWS_MAX_ATTEMPTS": "1"}
    return cloud.run("python", "-c", _VOLUME, name, zone, volume, environment=once).strip()


def device(volume: str) -> str:
    return f"/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_{volume.replace('-', '')}"


def has(cloud: Cloud, name: str, block_device: str) -> bool:
    return ssh(cloud, name, f"test -b {block_device} && echo yes || echo no") == "yes"


def ssh(cloud: Cloud, name: str, command: str) -> str:
    (instance,) = cloud.instances(name=name)
    options = "-o StrictHostKeyChecking=no -o LogLevel=ERROR -i /root/key"
    words = (
        "bash",
        "-c",
        f"chmod 600 /root/key; ssh {options} ubuntu@{instance['ip']} '{command}'",
    )
    wait_for(lambda: cloud.instances(name=name, runs=True), "the machine")
    return cloud.run(*words).strip()


def metadata(path: str) -> str:
    """A command that prints what the metadata service says, and the status it says it with."""
    there = "http://169.254.169.254/latest"
    token = f'$(curl -s -X PUT -H "X-aws-ec2-metadata-token-ttl-seconds: 60" {there}/api/token)'
    return f'curl -s -w " %{{http_code}}" -H "X-aws-ec2-metadata-token: {token}" {there}/{path}'


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture(scope="module")
def instance(cloud: Cloud) -> Iterator[str]:
    """A spot instance for those who do it no harm."""
    (name,) = launch(cloud, **SPOT)
    yield name
    cloud.do("kill", name=name)


def test_an_instance_is_a_machine_of_its_own(cloud: Cloud, instance: str) -> None:
    (other,) = launch(cloud)
    ssh(cloud, other, "touch /tmp/mine ~/mine /dev/shm/mine; sleep 100 >/dev/null 2>&1 &")
    seen = ssh(cloud, instance, "ls /tmp ~ /dev/shm /root; hostname; pgrep -c sleep; id -un")
    assert "mine" not in seen
    (me,) = cloud.instances(name=instance)
    assert seen.splitlines()[-3:] == [f"ip-{me['ip'].replace('.', '-')}", "1", "ubuntu"]
    cloud.do("kill", name=other)


def test_an_instance_has_terminals_of_its_own(cloud: Cloud, instance: str) -> None:
    assert ssh(cloud, instance, "script -qec tty /dev/null") == "/dev/pts/0"


def test_an_instance_reaches_the_cloud_and_nothing_else(cloud: Cloud, instance: str) -> None:
    there = ssh(cloud, instance, "curl -s -o /dev/null -w %{http_code} $AWS_ENDPOINT_URL/moto-api/")
    assert there == "200"
    out = ssh(
        cloud, instance, "curl -sS -m 3 http://8.8.8.8/ 2>&1; curl -sS http://a.invalid 2>&1; :"
    )
    assert "Failed to connect" in out.splitlines()[0]
    assert "Could not resolve" in out.splitlines()[1]


def test_metadata_is_given_for_a_token_only(cloud: Cloud, instance: str) -> None:
    assert ssh(cloud, instance, metadata("meta-data/instance-id")) == f"{instance} 200"
    assert ssh(cloud, instance, metadata("meta-data/spot/instance-action")).endswith("404")
    plain = (
        "curl -s -o /dev/null -w %{http_code} http://169.254.169.254/latest/meta-data/instance-id"
    )
    assert ssh(cloud, instance, plain) == "401"


def test_a_hint_is_seen_by_the_instance_alone(cloud: Cloud, instance: str) -> None:
    (other,) = launch(cloud, **SPOT)
    cloud.do("hint", name=instance)
    path = metadata("meta-data/events/recommendations/rebalance")
    assert "noticeTime" in ssh(cloud, instance, path)
    assert ssh(cloud, other, path).endswith("404")
    cloud.do("kill", name=other)


def test_a_noticed_instance_is_shut_down_at_its_deadline(cloud: Cloud) -> None:
    (name,) = launch(cloud, **SPOT)
    ssh(
        cloud,
        name,
        '(trap "echo told > ~/told; exit" TERM; while :; do sleep 0.1; done) >/dev/null 2>&1 &',
    )
    deadline_s = cloud.do("notice", name=name, seconds=3)
    said = json.loads(ssh(cloud, name, metadata("meta-data/spot/instance-action"))[: -len(" 200")])
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(deadline_s))
    assert said == {"action": "terminate", "time": at}
    (gone,) = wait_for(lambda: cloud.instances(name=name, runs=False), "its end")
    assert 0.0 <= time.time() - deadline_s < 3.0
    assert (gone["state"], gone["why"]) == ("terminated", "Server.SpotInstanceTermination")
    assert cloud.do("read", name=name, path="/home/ubuntu/told") == "told\n"


def test_a_killed_instance_is_silent_at_once(cloud: Cloud) -> None:
    (name,) = launch(cloud)
    ssh(
        cloud,
        name,
        '(trap "echo told > ~/told; exit" TERM; while :; do sleep 0.1; done) >/dev/null 2>&1 &',
    )
    cloud.do("kill", name=name)
    (gone,) = cloud.instances(name=name)
    assert (gone["runs"], gone["state"], gone["why"]) == (
        False,
        "terminated",
        "Server.InternalError",
    )
    assert cloud.do("read", name=name, path="/home/ubuntu/told") is None


def test_only_what_a_rule_names_is_refused_and_every_call_is_in_the_log(cloud: Cloud) -> None:
    since = len(cloud.launches())
    cloud.do("refuse", code="InsufficientInstanceCapacity", spot=True, zone="us-west-2b")
    assert launch(cloud, zone="us-west-2b", **SPOT) == "InsufficientInstanceCapacity"
    made = [
        launch(cloud, zone="us-west-2b")[0],
        launch(cloud, zone="us-west-2a", **SPOT)[0],
    ]
    cloud.do("allow")
    made += launch(cloud, zone="us-west-2b", count=2, **SPOT)
    assert len(made) == 4
    told = [(one["zone"], one["spot"], one["error"], len(one["names"])) for one in cloud.launches()]
    assert told[since:] == [
        ("us-west-2b", True, "InsufficientInstanceCapacity", 0),
        ("us-west-2b", False, "", 1),
        ("us-west-2a", True, "", 1),
        ("us-west-2b", True, "", 2),
    ]
    for name in made:
        wait_for(lambda name=name: cloud.instances(name=name, runs=True), "the machine")
        cloud.do("kill", name=name)


def test_a_volume_is_on_one_instance_at_a_time_and_keeps_what_is_written(
    volumes: None, cloud: Cloud
) -> None:
    first, second = launch(cloud, count=2)
    volume = attach(cloud, first)
    sudo = "~/.local/bin/sudo"
    wait_for(lambda: has(cloud, first, device(volume)), "the device")
    format_it = f"{sudo} mkfs.ext4 -q {device(volume)}"
    mount = f"{sudo} mkdir -p /data && {sudo} mount {device(volume)} /data"
    ssh(cloud, first, f"{format_it} && {mount} && echo kept | {sudo} tee /data/file")
    assert not has(cloud, second, device(volume))
    assert attach(cloud, second, volume) == "VolumeInUse"
    (elsewhere,) = launch(cloud, zone="us-west-2b")
    cloud.do("kill", name=first)
    assert attach(cloud, elsewhere, volume) == "InvalidVolume.ZoneMismatch"
    assert attach(cloud, second, volume) == volume
    wait_for(lambda: has(cloud, second, device(volume)), "the device")
    assert ssh(cloud, second, f"{mount} && cat /data/file") == "kept"
    for name in (second, elsewhere):
        cloud.do("kill", name=name)


def test_clouds_at_the_same_time_know_nothing_of_each_other(cloud: Cloud, instance: str) -> None:
    (mine,) = cloud.instances(name=instance)
    with emulated_cloud() as other:
        assert other.instances() == []
        (name,) = launch(other, **SPOT)
        (theirs,) = other.instances(name=name)
        # The same address, in another network.
        assert theirs["ip"].rpartition(".")[0] == mine["ip"].rpartition(".")[0]
        assert ssh(other, name, metadata("meta-data/instance-id")) == f"{name} 200"
        assert ssh(cloud, instance, metadata("meta-data/instance-id")) == f"{instance} 200"
