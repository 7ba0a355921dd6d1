"""Fails when a new Ray changes what `spotray.cluster.ray_autoscaler.aws` leans on."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import click
import pytest
from ray.autoscaler._private.aws.node_provider import AWSNodeProvider
from ray.autoscaler.node_launch_exception import NodeLaunchException

from spotray.cloud.aws.errors import boto_errors
from spotray.cluster.ray_autoscaler.aws import OpenAWSNodeProvider
from tests.cluster.emulated_ec2 import REGION, EmulatedEC2, emulated_ec2, worker_tags


@pytest.fixture
def ec2(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedEC2]:
    with emulated_ec2(monkeypatch) as emulated:
        yield emulated


def provider_of(ec2: EmulatedEC2, cls: type[Any]) -> Any:
    provider = cls({"region": REGION, "cache_stopped_nodes": False}, "test")
    ec2.listen_to(provider.ec2_fail_fast.meta.client)
    return provider


def test_one_request_is_one_call_where_ray_makes_five(ec2: EmulatedEC2) -> None:
    ec2.refuses_all_but = set()
    ours = provider_of(ec2, OpenAWSNodeProvider)
    with pytest.raises(boto_errors(), match="InsufficientInstanceCapacity"):
        ours.run_instances(ec2.node_config(), worker_tags(), 1)
    assert len(ec2.asked()) == 1
    rays = AWSNodeProvider({"region": REGION, "cache_stopped_nodes": False}, "test")
    with pytest.raises((click.ClickException, NodeLaunchException)):
        rays.create_node(ec2.node_config(), worker_tags(), 1)
    assert len(ec2.asked()) >= 5, "Ray retries no more: the detour can go"


def test_the_instances_carry_rays_tags_and_ours(ec2: EmulatedEC2) -> None:
    provider = provider_of(ec2, OpenAWSNodeProvider)
    tags = {**worker_tags(), "spotray-market": "m"}
    made = provider.run_instances(ec2.node_config(), tags, 2)
    assert tags == {**worker_tags(), "spotray-market": "m"}, "the caller's tags stay as they were"
    listed = provider.list_nodes({})
    assert set(listed) == set(made)
    for name, instance in listed.items():
        assert provider.tags_of(name)["spotray-market"] == "m"
        assert provider.tags_of(name)["ray-user-node-type"] == "gpu"
        assert instance.placement["AvailabilityZone"] == "us-west-2a"
        assert provider.instance(name).instance_type == "g5.xlarge"
    assert set(provider.list_nodes({"ray-user-node-type": "other"})) == set()


def test_ray_calls_what_we_override_with_what_we_take() -> None:
    assert list(inspect.signature(AWSNodeProvider._create_node).parameters) == [
        "self",
        "node_config",
        "tags",
        "count",
    ]
    assert "self._create_node(node_config, tags, count)" in inspect.getsource(
        AWSNodeProvider.create_node
    )
    source = inspect.getsource(AWSNodeProvider._create_node)
    assert "self.ec2_fail_fast.create_instances(**conf)" in source
    assert "except botocore.exceptions.ClientError" in source
    assert "self.cached_nodes = {node.id: node for node in nodes}" in inspect.getsource(
        AWSNodeProvider.non_terminated_nodes
    )
