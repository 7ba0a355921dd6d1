"""What a rendered cluster asks of EC2."""

from __future__ import annotations

from typing import Any

from spotray.cluster.spec import ClusterSpec, WorkerSpec, data_disk
from spotray.cluster.yamltext import flow, scalar

HEAD_PACKAGES = ("boto3",)  # where Ray's own provider launches
HEAD_PROFILE = "spotray-head"  # instance profiles that `spotray cluster prepare` makes
WORKER_PROFILE = "spotray-worker"

# Resolved by EC2 at each launch: the same in every region, and never an old driver.
_SSM = "resolve:ssm:/aws/service"
_HEAD_IMAGE = f"{_SSM}/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"
_GPU_IMAGE = f"{_SSM}/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"


def notes(spec: ClusterSpec, file: str) -> list[str]:
    """For the top of the file: how to use it, and its limits."""
    group = any(one.placement_group for one in spec.workers)
    made = "two instance profiles" + (" and the placement group" if group else "")
    lines = [
        f"  spotray cluster prepare {file}   # once: {made}",
        *usage(file),
    ]
    if spec.provider == "ray":
        lines += [
            "",
            "Ray's own provider, nothing of spotray's in the launch. Its limits: while spot is out",
            "it asks for the same spot nodes at every tick, never for the on-demand type, which",
            "serves only what does not fit into the spot type's max_workers; and it does not come",
            "back to spot.",
        ]
    return lines


def usage(file: str) -> list[str]:
    """The commands of a cluster's life."""
    return [
        f"  spotray cluster validate {file}",
        f"  ray up {file}",
        f"  ray submit {file} train.py",
        f"  ray down {file}",
    ]


def provider(spec: ClusterSpec) -> list[str]:
    """The lines under ``provider:``."""
    where = [
        f"region: {spec.region}",
        f"availability_zone: {','.join(spec.zones)}",
        "cache_stopped_nodes: false",
    ]
    if spec.provider == "ray":
        return ["type: aws", *where]
    return [
        "type: external",
        "module: spotray.cluster.aws.SpotNodeProvider"
        "  # spot or on-demand, and which zone, at every launch",
        *where,
        *markets(spec),
    ]


def markets(spec: ClusterSpec) -> list[str]:
    """Where the nodes of each pool may come from."""
    lines = ["markets:"]
    for one in spec.workers:
        which: dict[str, Any] = {"instance_types": list(one.instance_types)}
        which |= {"fallback": one.fallback} if one.purchase == "spot" else {"spot": False}
        if one.data_disk_gb:
            which["data_disk"] = data_disk(one)
        if one.reuse:
            which["reuse"] = one.reuse
        lines.append(f"  {one.name}: {flow(which)}")
    return lines


def resources(worker: WorkerSpec) -> dict[str, int]:
    """Nothing: Ray asks EC2."""
    return {}


def head(spec: ClusterSpec) -> list[str]:
    """The head's node_config."""
    lines = _node(spec.head.instance_type, spec.head.image or _HEAD_IMAGE, spec.head.disk_gib)
    if spec.head.security_group_id:
        lines.append(f"SecurityGroupIds: [{spec.head.security_group_id}]")
    comment = "  # may launch nodes, and hand the workers theirs"
    return [*lines, f"IamInstanceProfile: {{Name: {HEAD_PROFILE}}}{comment}"]


def worker(spec: ClusterSpec, worker: WorkerSpec) -> list[str]:
    """A pool's node_config."""
    lines = _node(worker.instance_types[0], worker.image or _GPU_IMAGE, worker.disk_gib)
    lines.append(f"IamInstanceProfile: {{Name: {WORKER_PROFILE}}}  # may write to the bucket")
    if spec.provider == "ray" and worker.purchase == "spot":
        lines.append("InstanceMarketOptions: {MarketType: spot}")
    if worker.placement_group:
        lines.append(f"Placement: {flow({'GroupName': worker.placement_group})}")
    if worker.efa:
        interface = {
            "DeviceIndex": 0,
            "InterfaceType": "efa",
            "AssociatePublicIpAddress": True,
            "SubnetId": worker.subnet_id,
            "Groups": [worker.security_group_id],
        }
        lines += [
            "NetworkInterfaces:  # the group lets all through to and from itself, and SSH",
            "  - DeviceIndex: 0",
            *(f"    {key}: {flow(value)}" for key, value in list(interface.items())[1:]),
        ]
    return lines


def _node(instance_type: str, image: str, disk_gib: int) -> list[str]:
    disk = {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": disk_gib, "VolumeType": "gp3"}}
    return [
        f"InstanceType: {instance_type}",
        f"ImageId: {scalar(image)}",
        f"BlockDeviceMappings: [{flow(disk)}]",
        "MetadataOptions: {HttpTokens: required, HttpPutResponseHopLimit: 2}",
    ]
