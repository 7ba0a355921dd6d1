"""What Ray's provider for Azure must still be like for its nodes to be checked offline."""

from __future__ import annotations

import json
import tomllib
from importlib.resources import files
from pathlib import Path

from spotray.cluster.ray_autoscaler import azure
from spotray.cluster.render_azure import HEAD_PACKAGES

FOLDER = files("ray.autoscaler").joinpath("_private").joinpath("_azure")


def test_what_ray_gives_itself_is_in_its_template() -> None:
    template = json.loads(FOLDER.joinpath("azure-vm-template.json").read_text("utf-8"))
    assert template["parameters"].keys() >= azure._OF_RAY
    needed = {name for name, one in template["parameters"].items() if "defaultValue" not in one}
    assert needed - azure._OF_RAY == {"vmSize"}
    assert set(azure.parameters().values()) <= azure._TYPES.keys()


def test_ray_passes_on_a_nodes_parameters_as_they_are() -> None:
    code = FOLDER.joinpath("node_provider.py").read_text("utf-8")
    assert 'template_params = node_config["azure_arm_parameters"].copy()' in code
    assert 'template_params.pop("availability_zone", None)' in code
    given = {*azure._OF_RAY} - {"adminUsername", "publicKey"}  # these two by its bootstrap
    assert all(f'template_params["{name}"]' in code for name in given)
    bootstrap = FOLDER.joinpath("config.py").read_text("utf-8")
    assert all(f'azure_arm_parameters["{n}"]' in bootstrap for n in ("adminUsername", "publicKey"))


def test_the_extra_is_what_the_head_installs_and_is_pinned() -> None:
    root = Path(__file__).parents[3]
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    assert tuple(project["optional-dependencies"]["azure"]) == HEAD_PACKAGES
    pins = (root / "constraints.txt").read_text("utf-8").splitlines()
    assert set(HEAD_PACKAGES) <= set(pins)
