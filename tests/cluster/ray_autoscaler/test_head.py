"""Fails when a new Ray changes what the controller reads of the head, or how it asks for nodes."""

from __future__ import annotations

import inspect

import pytest
from ray._raylet import InnerGcsClient  # type: ignore[attr-defined]
from ray.autoscaler._private import commands, providers
from ray.autoscaler.v2 import sdk
from ray.autoscaler.v2.instance_manager import ray_installer
from ray.autoscaler.v2.instance_manager.subscribers import ray_stopper
from ray.core.generated.autoscaler_pb2 import (  # type: ignore[attr-defined]
    ClusterResourceState,
    ResourceRequest,
    ResourceRequestByCount,
)
from ray.core.generated.gcs_pb2 import (  # type: ignore[attr-defined]
    GcsNodeInfo,
    JobTableData,
    NodeSnapshot,
)
from ray.dashboard.modules.job import utils as job_utils
from ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator import (
    _AutoscalingCoordinatorActor,
)

from spotray.cluster.ray_autoscaler.head import DRAINED, EXPECTED, INTERNAL
from spotray.cluster.ray_autoscaler.instances import Instances
from spotray.errors import ClusterUnreachable


def fields(message: object) -> set[str]:
    return {field.name for field in message.DESCRIPTOR.fields}  # type: ignore[attr-defined]


def test_a_node_is_listed_with_all_that_is_read_of_it() -> None:
    needed = {"node_id", "instance_id", "node_type_name", "is_head_node", "labels", "state"}
    needed |= {"resources_total", "start_time_ms", "state_snapshot", "death_info"}
    assert needed <= fields(GcsNodeInfo)
    assert NodeSnapshot.IDLE != NodeSnapshot.ACTIVE
    reasons = GcsNodeInfo.DESCRIPTOR.fields_by_name["death_info"].message_type.enum_types[0]
    numbers = {value.name: value.number for value in reasons.values}
    assert numbers["AUTOSCALER_DRAIN_PREEMPTED"] == DRAINED
    expected = (numbers["EXPECTED_TERMINATION"], numbers["AUTOSCALER_DRAIN_IDLE"])
    assert expected == EXPECTED
    names = ("get_all_node_info", "get_draining_nodes", "get_all_job_info")
    assert all(hasattr(InnerGcsClient, name) for name in names)


def test_what_is_asked_for_is_where_it_is_read() -> None:
    needed = {"cluster_resource_constraints", "pending_resource_requests"}
    assert needed | {"pending_gang_resource_requests"} <= fields(ClusterResourceState)
    assert {"request", "count"} <= fields(ResourceRequestByCount)
    assert "resources_bundle" in fields(ResourceRequest)
    assert list(inspect.signature(sdk.get_cluster_resource_state).parameters) == ["gcs_client"]
    assert "request_cluster_resources(" in inspect.getsource(commands.request_resources)


def test_the_actor_that_adds_requests_up_still_takes_ours() -> None:
    taken = inspect.signature(_AutoscalingCoordinatorActor.request_resources).parameters
    assert {"requester_id", "resources", "expire_after_s", "priority"} <= taken.keys()
    given = inspect.signature(_AutoscalingCoordinatorActor.cancel_request).parameters
    assert "requester_id" in given
    source = inspect.getsource(_AutoscalingCoordinatorActor._merge_and_send_requests)
    assert "merged_req.extend(requested_resources)" in source


def test_the_autoscaler_drains_idle_nodes_without_a_deadline_and_names_instances() -> None:
    # By that they are told from those under notice.
    assert "deadline_timestamp_ms=0" in inspect.getsource(ray_stopper)
    assert '"RAY_CLOUD_INSTANCE_ID": instance.cloud_instance_id' in inspect.getsource(ray_installer)


def test_drivers_of_rays_own_namespaces_are_no_applications() -> None:
    assert INTERNAL in inspect.getsource(job_utils)
    config = JobTableData.DESCRIPTOR.fields_by_name["config"].message_type
    assert "ray_namespace" in {field.name for field in config.fields}


class Provider:
    """A node provider with a head and two workers."""

    def __init__(self, provider_config: dict[str, object], cluster_name: str) -> None:
        assert (provider_config["region"], cluster_name) == ("somewhere", "test")
        self.nodes = {"i-head": "head", "i-1": "worker", "i-2": "worker"}
        Provider.made = self

    made: Provider

    def non_terminated_nodes(self, tags: dict[str, str]) -> list[str]:
        return [name for name, kind in self.nodes.items() if kind == tags["ray-node-type"]]

    def terminate_node(self, name: str) -> None:
        del self.nodes[name]

    def terminate_nodes(self, names: list[str]) -> None:
        for name in names:
            del self.nodes[name]


def test_instances_are_ended_through_the_provider_of_the_yaml() -> None:
    module = f"{Provider.__module__}.{Provider.__name__}"
    config = {
        "cluster_name": "test",
        "provider": {"type": "external", "module": module, "region": "somewhere"},
    }
    assert "use_cache" in inspect.signature(providers._get_node_provider).parameters
    instances = Instances(config)
    instances.end("i-2")
    assert instances.end_workers() == ("i-1",)
    assert instances.end_workers() == ()
    assert instances.end_head() == ("i-head",)
    assert not Provider.made.nodes


def test_a_head_that_does_not_answer_is_told() -> None:
    from spotray.cluster.ray_autoscaler.head import RayHead

    head = RayHead("127.0.0.1:9")
    for ask in (head.nodes, head.asked, head.drivers):
        with pytest.raises(ClusterUnreachable, match="127.0.0.1:9"):
            ask()
