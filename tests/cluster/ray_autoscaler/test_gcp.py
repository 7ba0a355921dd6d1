"""Fails when a new Ray changes what `spotray.cluster.ray_autoscaler.gcp` leans on."""

from __future__ import annotations

import inspect

from ray.autoscaler._private.gcp import config
from ray.autoscaler._private.gcp.node import GCPCompute
from ray.autoscaler._private.gcp.node_provider import GCPNodeProvider


def test_a_compute_resource_is_one_zone() -> None:
    assert list(inspect.signature(GCPCompute.__init__).parameters)[1:] == [
        "resource",
        "project_id",
        "availability_zone",
        "cluster_name",
    ]


def test_an_instance_can_be_begun_without_waiting_for_it() -> None:
    parameters = inspect.signature(GCPCompute.create_instance).parameters
    assert list(parameters)[1:] == ["base_config", "labels", "wait_for_operation"]
    assert inspect.signature(GCPCompute.delete_instance).parameters["wait_for_operation"]


def test_ray_lists_all_resources_and_looks_nodes_up_where_we_answer() -> None:
    source = inspect.getsource(GCPNodeProvider)
    assert "for resource in self.resources.values():" in source
    assert source.count("self._get_resource_depending_on_node_name(node_id)") >= 3
    assert "self._construct_clients()" in inspect.getsource(GCPNodeProvider.__init__)


def test_the_third_client_is_computes() -> None:
    source = inspect.getsource(GCPNodeProvider._construct_clients)
    assert "_, _, compute, tpu = construct_clients_from_provider_config(" in source
    assert "_create_compute(" in inspect.getsource(config.construct_clients_from_provider_config)
