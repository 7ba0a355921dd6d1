"""A spec against what `ray up` would leave on the head, by Ray's own code."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from spotray.launch.running import differences

CONFIGS = sorted((Path(__file__).parents[2] / "cluster-configs").glob("*.yaml"))


def config(name: str = "aws-g5-spot") -> dict[str, Any]:
    (file,) = [one for one in CONFIGS if one.stem == name]
    read: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return read


def left_on_the_head(spec: dict[str, Any]) -> dict[str, Any]:
    """As `ray up` prepares it, with what its bootstrap adds and rewrites."""
    from ray.autoscaler._private.util import fill_node_type_min_max_workers, merge_setup_commands

    made = copy.deepcopy(spec)
    for key in ("setup_commands", "head_setup_commands", "worker_setup_commands"):
        made[key] = made.get(key) or []
    merge_setup_commands(made)
    fill_node_type_min_max_workers(made)
    made["auth"]["ssh_private_key"] = "~/ray_bootstrap_key.pem"
    made["file_mounts"] = {there: there for there in made.get("file_mounts") or {}}
    made["provider"]["_config_cache_path"] = "/tmp/ray-config"
    for one in made["available_node_types"].values():
        one["node_config"] |= {"KeyName": "ray-autoscaler", "SubnetIds": ["subnet-1"]}
        one.setdefault("resources", {}).update({"memory": 1})
    return made


@pytest.mark.parametrize("file", CONFIGS, ids=lambda one: one.stem)
def test_a_cluster_of_the_very_spec_differs_in_nothing(file: Path) -> None:
    spec = config(file.stem)
    assert differences(left_on_the_head(spec), spec) == []


def changed(path: str, value: object) -> tuple[dict[str, Any], dict[str, Any]]:
    spec = config()
    running = left_on_the_head(spec)
    *way, last = path.split(".")
    place: Any = spec
    for key in way:
        place = place[key]
    place[last] = value
    return running, spec


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("max_workers", 9, "max_workers is 5 there and 9 in yours"),
        ("provider.region", "us-east-1", "provider.region is us-west-2 there and us-east-1"),
        (
            "available_node_types.gpu.node_config.InstanceType",
            "g6.xlarge",
            "available_node_types.gpu.node_config.InstanceType is g5.xlarge there and g6.xlarge",
        ),
        (
            "available_node_types.gpu.node_config.Placement",
            {"GroupName": "mine"},
            "Placement is nothing there and {'GroupName': 'mine'} in yours",
        ),
        ("head_setup_commands", [], "head_setup_commands is a list of"),
        ("idle_timeout_minutes", 30, "idle_timeout_minutes is"),
    ],
)
def test_what_a_user_changed_is_told_with_its_place(path: str, value: object, said: str) -> None:
    (told,) = differences(*changed(path, value))
    assert said in told


def test_a_command_for_all_nodes_is_found_wherever_ray_put_it() -> None:
    running, spec = changed("setup_commands", ["echo other"])
    told = differences(running, spec)
    assert [one.split(" ")[0] for one in told] == [
        "setup_commands",
        "head_setup_commands",
        "worker_setup_commands",
    ]


def test_a_node_type_that_only_the_head_knows_is_a_difference() -> None:
    spec = config()
    running = left_on_the_head(spec)
    running["available_node_types"]["more"] = {"node_config": {}}
    assert differences(running, spec) == ["available_node_types.more is there and not in yours"]


def test_what_ray_looks_up_by_itself_is_no_difference() -> None:
    spec = config()
    running = left_on_the_head(spec)
    spec["available_node_types"]["gpu"]["node_config"]["ImageId"] = "latest_dlami"
    assert differences(running, spec) == []
