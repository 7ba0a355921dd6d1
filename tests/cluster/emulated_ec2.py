"""EC2 inside this process (moto), with markets that refuse, and a count of the calls."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ray.autoscaler.tags import (
    TAG_RAY_LAUNCH_CONFIG,
    TAG_RAY_NODE_KIND,
    TAG_RAY_NODE_NAME,
    TAG_RAY_USER_NODE_TYPE,
)

from spotray.clock import FakeClock
from spotray.market.offer import Market

REGION = "us-west-2"
ZONES = ("us-west-2a", "us-west-2b", "us-west-2c")


def worker_tags(node_type: str = "gpu") -> dict[str, str]:
    return {
        TAG_RAY_NODE_KIND: "worker",
        TAG_RAY_USER_NODE_TYPE: node_type,
        TAG_RAY_NODE_NAME: "ray-test-worker",
        TAG_RAY_LAUNCH_CONFIG: "hash",
    }


def head_tags() -> dict[str, str]:
    return {**worker_tags("head"), TAG_RAY_NODE_KIND: "head", TAG_RAY_NODE_NAME: "ray-test-head"}


class EmulatedEC2:
    """Answers RunInstances as the test says; all else is moto's."""

    def __init__(self) -> None:
        import boto3

        self.clock = FakeClock()
        self.calls: list[Market] = []
        self.refuses: dict[Market, str] = {}  # market -> EC2's error code
        self.refuses_all_but: set[Market] | None = None
        self.holds: dict[Market, int] = {}  # at most so many by one call
        client = boto3.client("ec2", REGION)
        subnets = client.describe_subnets()["Subnets"]
        self.zone_of = {one["SubnetId"]: one["AvailabilityZone"] for one in subnets}
        self.subnet_of = {zone: subnet for subnet, zone in self.zone_of.items()}
        self.sent: list[dict[str, Any]] = []

    def market(self, zone: str, *, spot: bool = True, kind: str = "g5.xlarge") -> Market:
        return Market(cloud="aws", zone=f"{REGION}{zone}", instance_type=kind, spot=spot)

    def node_config(self, *, zones: tuple[str, ...] = ZONES, **more: Any) -> dict[str, Any]:
        return {
            "InstanceType": "g5.xlarge",
            "ImageId": "ami-12345678",
            "SubnetIds": [self.subnet_of[zone] for zone in zones],
            **more,
        }

    def asked(self) -> list[Market]:
        """The markets asked since the last look."""
        calls, self.calls = self.calls, []
        return calls

    def listen_to(self, client: Any) -> None:
        """See each RunInstances of a boto client, and answer some."""
        client.meta.events.register("provide-client-params.ec2.RunInstances", self._limit)
        client.meta.events.register("before-call.ec2.RunInstances", self._answer)

    def _limit(self, params: dict[str, Any], **_: Any) -> dict[str, Any]:
        market = self._of(params)
        # moto makes as few instances as it may: say how many those are.
        count = min(params["MaxCount"], self.holds.get(market, params["MaxCount"]))
        self.calls.append(market)
        self.sent.append(params)
        self._asked = market
        return {**params, "MinCount": count, "MaxCount": count}

    def _answer(self, **_: Any) -> Any:
        market, code = self._asked, None
        if self.refuses_all_but is not None and market not in self.refuses_all_but:
            code = "InsufficientInstanceCapacity"
        code = self.refuses.get(market, code)
        if code is None:
            return None

        class Response:
            status_code = 500

        error = {"Code": code, "Message": f"no {market}"}
        return Response(), {"Error": error, "ResponseMetadata": {"HTTPStatusCode": 500}}

    def _of(self, params: dict[str, Any]) -> Market:
        subnet = params.get("SubnetId") or params["NetworkInterfaces"][0]["SubnetId"]
        return Market(
            cloud="aws",
            zone=self.zone_of[subnet],
            instance_type=params["InstanceType"],
            spot=params.get("InstanceMarketOptions", {}).get("MarketType") == "spot",
        )

    def take(self, name: str, reason: str = "Server.SpotInstanceTermination") -> None:
        """The cloud ends an instance, for EC2's reason."""
        from moto.core import DEFAULT_ACCOUNT_ID
        from moto.ec2.models import ec2_backends

        instance = ec2_backends[DEFAULT_ACCOUNT_ID][REGION].get_instance(name)
        instance.terminate()
        instance.state_reason.code = reason


@contextmanager
def _strict_volumes() -> Iterator[None]:
    """EC2 attaches a volume once, in its zone, to a node that runs; moto attaches any to any."""
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.ec2.exceptions import EC2ClientError, VolumeInUseError
    from moto.ec2.models import ec2_backends

    backend: Any = ec2_backends[DEFAULT_ACCOUNT_ID][REGION]
    attach, one_at_a_time = backend.attach_volume, threading.Lock()

    def strict(volume_id: str, instance_id: str, *args: Any, **kwargs: Any) -> Any:
        with one_at_a_time:
            volume, instance = backend.get_volume(volume_id), backend.get_instance(instance_id)
            if volume.attachment:
                raise VolumeInUseError(volume_id, volume.attachment.instance.id)
            if volume.zone.name != instance._placement.zone:
                raise EC2ClientError("InvalidVolume.ZoneMismatch", "another zone")
            return attach(volume_id, instance_id, *args, **kwargs)

    backend.attach_volume = strict
    try:
        yield
    finally:
        del backend.attach_volume


@contextmanager
def emulated_ec2(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedEC2]:
    from moto import mock_aws
    from ray.autoscaler._private.aws import utils

    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    with mock_aws(), _strict_volumes():
        # Ray keeps its clients for the process; these must be of this emulation.
        utils.resource_cache.cache_clear()
        utils.client_cache.cache_clear()
        yield EmulatedEC2()
    utils.resource_cache.cache_clear()
    utils.client_cache.cache_clear()


def provider_config(memory: Path, **more: Any) -> dict[str, Any]:
    return {
        "type": "external",
        "module": "spotray.cluster.aws.SpotNodeProvider",
        "region": REGION,
        "availability_zone": ",".join(ZONES),
        "launch_memory": str(memory),
        **more,
    }
