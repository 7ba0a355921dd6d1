"""Each mistake that Ray takes without a word is named, with its place and its cure."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from spotray.cluster.lint import lint
from spotray.cluster.presets import NAMES, preset
from spotray.cluster.problems import Problem
from spotray.cluster.render import RAY_VERSION, render

Config = dict[str, Any]


def config_of(name: str) -> Config:
    config: Config = yaml.safe_load(render(preset(name), made_by="a test", file="x.yaml"))
    config.pop("file_mounts", None)  # these depend on where one stands
    return config


BASES = {name: config_of(name) for name in NAMES}


def problems(config: Config) -> list[Problem]:
    return list(lint(config, ray_version=RAY_VERSION))


def node(config: Config, name: str = "gpu") -> Config:
    found: Config = config["available_node_types"][name]
    return found


def put(value: Any, *path: Any) -> Callable[[Config], None]:
    """A change that sets a value; None removes it."""

    def change(config: Config) -> None:
        inner: Any = config
        for key in path[:-1]:
            inner = inner[key]
        if value is None:
            inner.pop(path[-1])
        else:
            inner[path[-1]] = value

    return change


GPU = ("available_node_types", "gpu")
AWS_NODE = (*GPU, "node_config")
HEAD_NODE = ("available_node_types", "head", "node_config")
SPOT = {"MarketType": "spot"}
WIDE_OPEN = {
    "GroupName": "g",
    "IpPermissions": [{"FromPort": 8265, "ToPort": 8265, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}],
}

# base, change, path, words of the cure
WRONG: list[tuple[str, Callable[[Config], None], str, str]] = [
    # provider
    ("aws-g5-spot", put("x", "provider", "regoin"), "provider.regoin", "region"),
    ("aws-plain", put("x", "provider", "avail_zone"), "provider.avail_zone", "availability_zone"),
    ("gcp-l4-spot", put("x", "provider", "projectid"), "provider.projectid", "project_id"),
    ("azure-nc-t4-spot", put("x", "provider", "locatoin"), "provider.locatoin", "location"),
    (
        "aws-plain",
        put(True, "provider", "cache_stopped_nodes"),
        "provider.cache_stopped_nodes",
        "f",
    ),
    ("aws-g5-spot", put(None, "provider", "region"), "provider.region", "write"),
    ("aws-g5-spot", put(None, "provider", "module"), "provider.module", "SpotNodeProvider"),
    ("aws-g5-spot", put(None, "setup_commands"), "setup_commands", "write it"),
    ("aws-g5-spot", put(None, "provider"), "provider", "external"),
    (
        "aws-g5-spot",
        put({"gpu": {"falback": "wait"}}, "provider", "markets"),
        "provider.markets.gpu.falback",
        "fallback",
    ),
    (
        "aws-g5-spot",
        put({"gup": {}}, "provider", "markets"),
        "provider.markets.gup",
        "gpu",
    ),
    # zones
    (
        "aws-g5-spot",
        put("us-west-2a,us-east-1b", "provider", "availability_zone"),
        "provider.availability_zone",
        "us-west-2a",
    ),
    (
        "gcp-t4-preemptible",
        put("us-central1-a,us-central1-b", "provider", "availability_zone"),
        "provider.availability_zone",
        "external",
    ),
    # the head
    ("aws-g5-spot", put("haed", "head_node_type"), "head_node_type", "head"),
    (
        "aws-g5-spot",
        put(SPOT, *HEAD_NODE, "InstanceMarketOptions"),
        "available_node_types.head.node_config.InstanceMarketOptions",
        "leave it out",
    ),
    (
        "gcp-l4-spot",
        put({"provisioningModel": "SPOT"}, *HEAD_NODE, "scheduling"),
        "available_node_types.head.node_config.scheduling",
        "leave it out",
    ),
    (
        "gcp-l4-spot",
        put([{"preemptible": True}], *HEAD_NODE, "scheduling"),
        "available_node_types.head.node_config.scheduling",
        "leave it out",
    ),
    (
        "azure-nc-t4-spot",
        put("Spot", *HEAD_NODE, "azure_arm_parameters", "priority"),
        "available_node_types.head.node_config.azure_arm_parameters.priority",
        "leave it out",
    ),
    # labels
    (
        "aws-g5-spot",
        put({"ray.io/market-type": "spot"}, *GPU, "labels"),
        "available_node_types.gpu.labels.ray.io/market-type",
        "leave it out",
    ),
    (
        "aws-plain",
        put({"ray.io/market-type": "spot"}, "available_node_types", "gpu-on-demand", "labels"),
        "available_node_types.gpu-on-demand.labels.ray.io/market-type",
        "on-demand",
    ),
    # numbers
    ("aws-g5-spot", put(9, *GPU, "min_workers"), "available_node_types.gpu.min_workers", "lower"),
    ("aws-mixed", put(0, "max_workers"), "max_workers", "raise"),
    ("aws-g5-spot", put(0, "idle_timeout_minutes"), "idle_timeout_minutes", "5"),
    # GPUs
    (
        "aws-plain",
        put("m6i.large", "available_node_types", "gpu-spot", "node_config", "InstanceType"),
        "available_node_types.gpu-spot.node_config.InstanceType",
        "g5.xlarge",
    ),
    (
        "aws-g5-spot",
        put(["g5.xlarge", "m6i.large"], "provider", "markets", "gpu", "instance_types"),
        "provider.markets.gpu.instance_types",
        "g5.xlarge",
    ),
    (
        "aws-g5-spot",
        put(["g5.xlarge", "g5.12xlarge"], "provider", "markets", "gpu", "instance_types"),
        "provider.markets.gpu.instance_types",
        "same number",
    ),
    (
        "aws-g5-spot",
        put({"GPU": 2}, *GPU, "resources"),
        "available_node_types.gpu.resources.GPU",
        "1",
    ),
    (
        "gcp-l4-spot",
        put({"CPU": 4}, *GPU, "resources"),
        "available_node_types.gpu.resources.GPU",
        "1",
    ),
    (
        "gcp-t4-spot",
        put(None, *AWS_NODE, "guestAccelerators"),
        "available_node_types.gpu.node_config.machineType",
        "g2-standard-4",
    ),
    (
        "aws-g5-spot",
        put(None, *AWS_NODE, "InstanceType"),
        f"{'.'.join(AWS_NODE)}.InstanceType",
        "n",
    ),
    # network
    (
        "aws-g6-efa",
        put("g6.xlarge", *AWS_NODE, "InstanceType"),
        "available_node_types.gpu.node_config.InstanceType",
        "g6.8xlarge",
    ),
    (
        "aws-g6-efa",
        put(None, *AWS_NODE, "NetworkInterfaces", 0, "SubnetId"),
        "available_node_types.gpu.node_config.NetworkInterfaces[0].SubnetId",
        "subnet",
    ),
    (
        "aws-g6-efa",
        put(None, *AWS_NODE, "NetworkInterfaces", 0, "Groups"),
        "available_node_types.gpu.node_config.NetworkInterfaces[0].Groups",
        "group",
    ),
    (
        "aws-g6-efa",
        put(["sg-1"], *AWS_NODE, "SecurityGroupIds"),
        "available_node_types.gpu.node_config.SecurityGroupIds",
        "leave it out",
    ),
    (
        "aws-g5-spot",
        put({"GroupName": "close"}, *AWS_NODE, "Placement"),
        "available_node_types.gpu.node_config.Placement",
        "one zone",
    ),
    (
        "aws-g5-spot",
        put(WIDE_OPEN, "provider", "security_group"),
        "provider.security_group.IpPermissions[0]",
        "ray dashboard",
    ),
    # images and rights
    ("aws-g5-spot", put(None, *AWS_NODE, "ImageId"), f"{'.'.join(AWS_NODE)}.ImageId", "image"),
    (
        "aws-g5-spot",
        put(None, *AWS_NODE, "IamInstanceProfile"),
        "available_node_types.gpu.node_config.IamInstanceProfile",
        "spotray-worker",
    ),
    (
        "aws-g5-spot",
        put(None, *HEAD_NODE, "IamInstanceProfile"),
        "available_node_types.head.node_config.IamInstanceProfile",
        "spotray-head",
    ),
    (
        "gcp-l4-spot",
        put(None, *AWS_NODE, "serviceAccounts"),
        "available_node_types.gpu.node_config.serviceAccounts",
        "ray-autoscaler-sa-v1",
    ),
    (
        "gcp-l4-spot",
        put(None, *AWS_NODE, "scheduling"),
        "available_node_types.gpu.node_config.scheduling",
        "TERMINATE",
    ),
    # commands
    (
        "aws-g5-spot",
        put(["ray get-auth-token --generate"], "head_setup_commands"),
        "head_setup_commands",
        "import spotray.cluster.aws",
    ),
    (
        "aws-g5-spot",
        put(["pip install 'ray[default]==2.9.0'"], "setup_commands"),
        "setup_commands[0]",
        RAY_VERSION,
    ),
    (
        "aws-g5-spot",
        put(["git clone https://example.org/x"], "worker_setup_commands"),
        "worker_setup_commands[0]",
        "test -e",
    ),
    (
        "aws-g5-spot",
        put(["python -m spotray.agent --cloud gcp"], "worker_start_ray_commands"),
        "worker_start_ray_commands[0]",
        "--cloud aws",
    ),
    ("aws-g5-spot", put({"~/x": "/no/such/file"}, "file_mounts"), "file_mounts.~/x", "path"),
]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_rendered_has_nothing_but_placeholders(name: str) -> None:
    found = problems(BASES[name])
    assert found
    assert all(one.is_warning and "stands for" in one.what for one in found), found


@pytest.mark.parametrize(
    ("base", "change", "path", "cure"), WRONG, ids=[f"{one[0]}-{one[2]}" for one in WRONG]
)
def test_a_mistake_is_named_with_its_cure(
    base: str, change: Callable[[Config], None], path: str, cure: str
) -> None:
    config = copy.deepcopy(BASES[base])
    change(config)
    wrong = [one for one in problems(config) if not one.is_warning]
    assert [one for one in wrong if one.path == path and cure in one.cure], wrong


WARNED: list[tuple[str, Callable[[Config], None], str]] = [
    ("aws-g5-spot", put("g5.xlarge", *HEAD_NODE, "InstanceType"), "InstanceType"),
    ("aws-plain", put(None, "available_node_types", "gpu-spot", "labels"), "labels"),
    ("aws-g5-spot", put(2, "max_workers"), "max_workers"),
    ("aws-g5-spot", put(0.1, "upscaling_speed"), "upscaling_speed"),
    ("aws-g5-spot", put(None, *AWS_NODE, "MetadataOptions"), "MetadataOptions"),
    (
        "aws-g5-spot",
        put({"HttpTokens": "required"}, *AWS_NODE, "MetadataOptions"),
        "HttpPutResponseHopLimit",
    ),
    ("aws-g5-spot", put(["ray stop"], "worker_start_ray_commands"), "worker_start_ray_commands"),
    ("aws-g5-spot", put(["pip install 'ray[default]'"], "setup_commands"), "setup_commands"),
]


@pytest.mark.parametrize(("base", "change", "end"), WARNED, ids=[one[2] for one in WARNED])
def test_what_may_work_all_the_same_is_a_warning(
    base: str, change: Callable[[Config], None], end: str
) -> None:
    config = copy.deepcopy(BASES[base])
    change(config)
    found = problems(config)
    assert [one for one in found if one.path.endswith(end)], found
    assert all(one.is_warning for one in found if one.path.endswith(end)), found


def test_all_mistakes_are_told_at_once() -> None:
    config = copy.deepcopy(BASES["aws-g5-spot"])
    changes = [change for base, change, _, _ in WRONG if base == "aws-g5-spot"]
    node(config)["labels"] = {"ray.io/market-type": "spot"}
    node(config)["min_workers"] = 9
    config["head_node_type"] = "haed"
    config["provider"]["regoin"] = "x"
    assert len(changes) > 10
    paths = {one.path for one in problems(config) if not one.is_warning}
    assert {
        "provider.regoin",
        "head_node_type",
        "available_node_types.gpu.min_workers",
        "available_node_types.gpu.labels.ray.io/market-type",
    } <= paths


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"provider": []},
        {"provider": {"type": "aws"}, "available_node_types": {"a": None, "b": {"node_config": 3}}},
        {"provider": {"type": "gcp", "region": 3}, "available_node_types": []},
        {"provider": {"type": "external", "module": 3, "markets": 3}, "setup_commands": "x"},
        {"provider": {"type": "local"}, "file_mounts": [], "max_workers": "many"},
        {"provider": {"type": "azure"}, "available_node_types": {"a": {"node_config": {}}}},
    ],
    ids=str,
)
def test_no_shape_of_a_file_breaks_the_lint(config: Config) -> None:
    for one in problems(config):
        assert re.fullmatch(r"[^:]+: .+: .+", str(one), re.DOTALL)


def test_a_provider_of_somebody_else_is_not_judged() -> None:
    config = copy.deepcopy(BASES["aws-g5-spot"])
    config["provider"] = {"type": "external", "module": "theirs.nodes.Provider", "any": "key"}
    found = [one for one in problems(config) if not one.is_warning]
    assert [one.path for one in found] == ["head_setup_commands"]  # the guard is for all


MARKET = ("provider", "markets", "gpu")


def about_disks(config: Config) -> list[Problem]:
    return [one for one in problems(config) if re.search("data_disk|docker", one.path)]


def test_a_data_disk_that_nothing_is_kept_on_is_warned_of() -> None:
    config = copy.deepcopy(BASES["aws-g5-spot"])
    put({"size_gb": 200}, *MARKET, "data_disk")(config)
    (warned,) = about_disks(config)
    assert warned.path == "provider.markets.gpu.data_disk"
    assert warned.is_warning
    assert "UV_CACHE_DIR=/data/uv" in warned.cure
    config["setup_commands"].append("export UV_CACHE_DIR=/data/uv; uv pip install x")
    assert about_disks(config) == []


def test_a_container_that_cannot_see_the_data_disk_is_told() -> None:
    config = copy.deepcopy(BASES["aws-g5-spot"])
    put({"size_gb": 200}, *MARKET, "data_disk")(config)
    config["setup_commands"].append("pip download -d /data/wheels x")
    config["docker"] = {"image": "i", "container_name": "c", "run_options": ["-v /database:/d"]}
    (problem,) = about_disks(config)
    assert problem.path == "docker.run_options"
    assert problem.cure == "add -v /data:/data"
    config["docker"]["run_options"] = ["-v /data:/data"]
    assert about_disks(config) == []
