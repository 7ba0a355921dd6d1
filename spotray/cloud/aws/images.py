"""An AMI of a node that is set up: the next one has all installed when it boots."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from spotray.clock import Clock, SystemClock
from spotray.cloud.aws.errors import boto_errors
from spotray.cloud.disks import CLUSTER_TAG
from spotray.errors import ConfigError

_POLL_S = 15.0
_MOST_S = 3600.0  # a first snapshot of 150 GiB takes some 10 minutes


@dataclass(frozen=True, kw_only=True)
class Baking:
    """How far it is."""

    image_id: str
    state: str  # EC2's: "pending", "available"
    progress: str = ""  # of its snapshot: "42%"


def node_to_bake(cluster: str, node_type: str, *, region: str, ec2: Any = None) -> str:
    """The id of a node of this type that Ray has set up.

    Raises:
        ConfigError: there is none, or EC2 refuses.
    """
    filters = {
        "tag:ray-cluster-name": cluster,
        "tag:ray-user-node-type": node_type,
        "instance-state-name": "running",
    }
    asked = [{"Name": name, "Values": [value]} for name, value in filters.items()]
    try:
        answer = _client(region, ec2).describe_instances(Filters=asked)
    except boto_errors() as exc:
        raise ConfigError(f"nodes of {cluster} in {region}: {exc}") from exc
    found = [one for group in answer["Reservations"] for one in group["Instances"]]
    is_ready = [one for one in found if _tags(one).get("ray-node-status") == "up-to-date"]
    if not is_ready:
        others = f"; {len(found)} run, and none is set up yet" if found else ""
        raise ConfigError(
            f"no {node_type} of {cluster} is ready in {region}{others}: start a job that needs "
            "one, or give the id of a node with --node"
        )
    return str(min(is_ready, key=lambda one: one["LaunchTime"])["InstanceId"])


def bake(
    node: str,
    *,
    cluster: str,
    node_type: str,
    region: str,
    reboot: bool = True,
    ec2: Any = None,
    clock: Clock | None = None,
) -> Iterator[Baking]:
    """Make an image of a node's boot disk, and tell how far it is until it can be used.

    Args:
        node: instance id.
        cluster: whose it is; a tag of the image.
        node_type: its entry in the YAML.
        region: where.
        reboot: stop the node for the moment of the snapshot; else what it writes just then may
            be missing or torn.
        ec2: a boto3 client; None: that of the environment.
        clock: waits.

    Raises:
        ConfigError: EC2 refuses, or the image failed.
    """
    ec2, clock = _client(region, ec2), clock or SystemClock()
    now = datetime.fromtimestamp(clock.now_s(), UTC)
    name = f"spotray-{cluster}-{node_type}-{now:%Y%m%d-%H%M%S}"
    tags = [{"Key": CLUSTER_TAG, "Value": cluster}, {"Key": "Name", "Value": name}]
    try:
        found = ec2.describe_instances(InstanceIds=[node])["Reservations"][0]["Instances"][0]
        others = [
            {"DeviceName": one["DeviceName"], "NoDevice": ""}
            for one in found["BlockDeviceMappings"]
            if one["DeviceName"] != found["RootDeviceName"]
        ]
        image_id = ec2.create_image(
            InstanceId=node,
            Name=name,
            Description=f"{node_type} of {cluster}, set up",
            NoReboot=not reboot,
            BlockDeviceMappings=others,  # data disks are no part of it
            TagSpecifications=[{"ResourceType": "image", "Tags": tags}],
        )["ImageId"]
        until_s = clock.now_s() + _MOST_S
        while (baking := _baking(ec2, image_id)).state == "pending":
            yield baking
            if clock.now_s() >= until_s:
                raise ConfigError(f"{image_id} is not ready after {_MOST_S / 60:.0f} min: {baking}")
            clock.sleep(_POLL_S)
        if snapshots := _snapshots(ec2.describe_images(ImageIds=[image_id])["Images"][0]):
            ec2.create_tags(Resources=snapshots, Tags=tags)  # they cost, and outlive the image
    except boto_errors() as exc:
        raise ConfigError(f"no image of {node}: {exc}") from exc
    yield baking
    if baking.state != "available":
        raise ConfigError(f"{image_id} of {node} is {baking.state}: delete it and try again")


def _baking(ec2: Any, image_id: str) -> Baking:
    image = ec2.describe_images(ImageIds=[image_id])["Images"][0]
    state, progress = str(image["State"]), ""
    snapshots = _snapshots(image)
    if state == "pending" and snapshots:
        told = ec2.describe_snapshots(SnapshotIds=snapshots)["Snapshots"]
        progress = str(told[0].get("Progress", "")) if told else ""
    return Baking(image_id=str(image_id), state=state, progress=progress)


def _snapshots(image: Any) -> list[str]:
    return [
        one["Ebs"]["SnapshotId"]
        for one in image.get("BlockDeviceMappings", [])
        if "SnapshotId" in one.get("Ebs", {})
    ]


def _client(region: str, ec2: Any) -> Any:
    if ec2 is not None:
        return ec2
    import boto3

    try:
        return boto3.client("ec2", region_name=region)
    except boto_errors() as exc:
        raise ConfigError(f"EC2 in {region}: {exc}") from exc


def _tags(instance: Any) -> dict[str, str]:
    return {one["Key"]: one["Value"] for one in instance.get("Tags", [])}
