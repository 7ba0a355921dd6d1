"""EBS volumes as data disks: made with their tags, attached once, deleted only with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from spotray.clock import Clock, SystemClock, wait_until
from spotray.cloud.aws.errors import aws_errors
from spotray.cloud.disks import CLUSTER_TAG, SLOT_TAG, USED_TAG, Disk, DiskWish
from spotray.errors import ConfigError, DiskNotFree, ThrottledError

# "In use" is said of the volume; of a node that does not run yet EC2 says IncorrectState too.
_TAKEN = ("VolumeInUse", "IncorrectState", "IncorrectState.Volume", "InvalidVolume.ZoneMismatch")
_GONE = ("InvalidVolume.NotFound",)
_RUNNING_S = 120.0  # from RunInstances until "running": mostly 10
_READY_S = 30.0  # until a new volume is "available", or a given one "attached": mostly 3
_POLL_S = 1.0
_DEVICES = tuple(f"/dev/sd{letter}" for letter in "fghijklmnop")  # those that EC2 recommends
_BY_ID = "/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_"


class EbsDisks:
    """`Disks` in one region, through boto3."""

    def __init__(
        self, region: str, *, ec2: Any = None, session: Any = None, clock: Clock | None = None
    ) -> None:
        """Nothing is asked yet.

        Args:
            region: where.
            ec2: a boto3 client; None: one that gives up within seconds, since a node does
                not wait for a disk.
            session: a boto3 session for that; None: with the environment's credentials.
            clock: waits for volumes and nodes.
        """
        if ec2 is None:
            import boto3
            from botocore.config import Config

            quick = Config(connect_timeout=3, read_timeout=10, retries={"max_attempts": 2})
            ec2 = (session or boto3).client("ec2", region_name=region, config=quick)
        self._ec2, self._region = ec2, region
        self._clock = clock or SystemClock()

    def listed(self, cluster: str) -> list[Disk]:
        filters = [{"Name": f"tag:{CLUSTER_TAG}", "Values": [cluster]}]
        with aws_errors(f"aws/{self._region}/volumes"):
            pages = self._ec2.get_paginator("describe_volumes").paginate(Filters=filters)
            volumes = [one for page in pages for one in page["Volumes"]]
        return [_disk(one) for one in volumes if one["State"] not in ("deleting", "deleted")]

    def make(self, wish: DiskWish) -> Disk:
        now_s = self._clock.now_s()
        tags = {
            "Name": f"{wish.cluster}-{wish.slot}",
            CLUSTER_TAG: wish.cluster,
            SLOT_TAG: wish.slot,
            USED_TAG: f"{now_s:.0f}",
        }
        with self._about(wish.zone, wish.slot):
            made = self._ec2.create_volume(
                AvailabilityZone=wish.zone,
                Size=wish.size_gib,
                VolumeType=wish.type,
                TagSpecifications=[{"ResourceType": "volume", "Tags": _tag_list(tags)}],
            )
            self._wait(
                lambda: self._volume(made["VolumeId"])["State"] != "creating",
                f"{made['VolumeId']} is still being made",
                timeout_s=_READY_S,
            )
        return _disk(self._volume(made["VolumeId"]))

    def attach(self, disk: Disk, node: str) -> tuple[str, ...]:
        with self._about(disk.zone, disk.disk_id):
            instance = self._running(node)
            used = {one["DeviceName"] for one in instance.get("BlockDeviceMappings", [])}
            device = next(one for one in _DEVICES if one not in used)
            self._ec2.attach_volume(VolumeId=disk.disk_id, InstanceId=node, Device=device)
            self._wait(
                lambda: self._is_attached(disk.disk_id, node),
                f"{disk.disk_id} is still being attached to {node}",
                timeout_s=_READY_S,
            )
        return self._paths(disk.disk_id, device)

    def found_at(self, disk: Disk) -> tuple[str, ...]:
        with self._about(disk.zone, disk.disk_id):
            attachments = self._volume(disk.disk_id)["Attachments"]
        return self._paths(disk.disk_id, attachments[0]["Device"] if attachments else "")

    def mark_used(self, disk: Disk, *, now_s: float) -> None:
        with self._about(disk.zone, disk.disk_id):
            tags = _tag_list({USED_TAG: f"{now_s:.0f}"})
            self._ec2.create_tags(Resources=[disk.disk_id], Tags=tags)

    def end_with_node(self, disk: Disk) -> None:
        with self._about(disk.zone, disk.disk_id):
            for one in self._volume(disk.disk_id)["Attachments"]:
                self._ec2.modify_instance_attribute(
                    InstanceId=one["InstanceId"],
                    BlockDeviceMappings=[
                        {"DeviceName": one["Device"], "Ebs": {"DeleteOnTermination": True}}
                    ],
                )

    def delete(self, disk: Disk) -> None:
        try:
            with self._about(disk.zone, disk.disk_id):
                volume = self._volume(disk.disk_id)
                if _tags(volume).get(CLUSTER_TAG) != disk.cluster:
                    raise DiskNotFree(
                        f"{disk.disk_id} carries no tag {CLUSTER_TAG}={disk.cluster}",
                        market=_market(disk.zone, disk.disk_id),
                    )
                self._ec2.delete_volume(VolumeId=disk.disk_id)
        except DiskNotFree as exc:
            if not exc.is_gone:
                raise

    # -- what EC2 says -------------------------------------------------------

    def _volume(self, volume_id: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._ec2.describe_volumes(VolumeIds=[volume_id])["Volumes"][0]
        return found

    def _is_attached(self, volume_id: str, node: str) -> bool:
        attachments = self._volume(volume_id)["Attachments"]
        return any(one["InstanceId"] == node and one["State"] == "attached" for one in attachments)

    def _running(self, node: str) -> Mapping[str, Any]:
        """The instance, once it runs: before that nothing can be attached to it.

        Raises:
            ConfigError: it has ended.
            ThrottledError: it does not run after two minutes.
        """
        found: Mapping[str, Any] = {}

        def runs() -> bool:
            nonlocal found
            answer = self._ec2.describe_instances(InstanceIds=[node])
            found = answer["Reservations"][0]["Instances"][0]
            state = found["State"]["Name"]
            if state not in ("pending", "running"):
                raise ConfigError(f"{node} is {state}")
            return bool(state == "running")

        self._wait(runs, f"{node} does not run", timeout_s=_RUNNING_S)
        return found

    def _wait(self, ready: Any, what: str, *, timeout_s: float) -> None:
        if not wait_until(ready, timeout_s=timeout_s, clock=self._clock, poll_s=_POLL_S):
            raise ThrottledError(
                f"{what} after {timeout_s:.0f} s",
                market=f"aws/{self._region}/volumes",
                retry_after_s=timeout_s,
            )

    @contextmanager
    def _about(self, zone: str, what: str) -> Iterator[None]:
        """EC2's errors in our words, with those that mean: another disk."""
        from botocore.exceptions import ClientError

        market = _market(zone, what)
        with aws_errors(market):
            try:
                yield
            except ClientError as exc:
                code = str(exc.response.get("Error", {}).get("Code", ""))
                if code not in _TAKEN + _GONE:
                    raise
                raise DiskNotFree(
                    f"{market}: {exc}", market=market, code=code, is_gone=code in _GONE
                ) from exc

    def _paths(self, volume_id: str, device: str) -> tuple[str, ...]:
        """On Nitro the serial number of an NVMe device, on older types the device's name."""
        serial = volume_id.replace("-", "")
        xen = (device, device.replace("/dev/sd", "/dev/xvd")) if device else ()
        return f"{_BY_ID}{serial}", serial, *xen


def _disk(volume: Mapping[str, Any]) -> Disk:
    tags, attachments = _tags(volume), volume.get("Attachments") or []
    node = attachments[0]["InstanceId"] if attachments else ""
    used = tags.get(USED_TAG, "")
    # The tag is there from the start; where somebody wrote over it, the volume's age counts.
    used_s = float(used) if used.isdecimal() else volume["CreateTime"].timestamp()
    return Disk(
        disk_id=volume["VolumeId"],
        zone=volume["AvailabilityZone"],
        cluster=tags.get(CLUSTER_TAG, ""),
        slot=tags.get(SLOT_TAG, ""),
        size_gib=volume["Size"],
        type=volume["VolumeType"],
        used_s=used_s,
        node=node,
        is_free=volume["State"] == "available",
    )


def _tags(volume: Mapping[str, Any]) -> dict[str, str]:
    return {one["Key"]: one["Value"] for one in volume.get("Tags") or ()}


def _tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def _market(zone: str, what: str) -> str:
    return f"aws/{zone}/{what}"
