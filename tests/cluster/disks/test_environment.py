"""The rendered setup commands keep a worker's environment on its data disk, whole or not at all."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from spotray.cluster.disks.mount import mount_command
from spotray.cluster.lint import lint
from spotray.cluster.markets import check_provider
from spotray.cluster.presets import preset
from spotray.cluster.render import render
from spotray.cluster.spec import ClusterSpec, data_disk


def spec_of(name: str = "aws-g5-spot", **more: Any) -> ClusterSpec:
    spec = preset(name)
    pools = [dataclasses.replace(one, data_disk_gb=200, **more) for one in spec.workers]
    return dataclasses.replace(spec, workers=tuple(pools))


def config_of(spec: ClusterSpec) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(render(spec, made_by="a test", file="x.yaml"))
    return config


def own_commands(mount: str) -> tuple[str, str]:
    """What is run before and after all is installed."""
    commands = config_of(spec_of(mount=mount))["setup_commands"]
    before, after = [one for one in commands if "mountpoint" in one]
    assert commands[0] == before
    assert "pip install" in commands[commands.index(after) - 1]
    return before, after


@pytest.mark.parametrize("name", ["aws-g5-spot", "gcp-l4-spot"])
def test_the_disk_stands_in_the_providers_markets(name: str) -> None:
    config = config_of(spec_of(name, mount="/scratch"))
    (pool,) = config["provider"]["markets"].values()
    assert pool["data_disk"] == {"size_gb": 200, "mount": "/scratch"}
    assert not [one for one in lint(config) if "data_disk" in one.path]


def test_the_type_is_written_where_it_is_chosen() -> None:
    (worker,) = spec_of(data_disk_type="gp2").workers
    assert data_disk(worker) == {"size_gb": 200, "type": "gp2", "mount": "/data"}


def test_nodes_that_are_started_again_stand_in_the_providers_markets() -> None:
    spec = preset("gcp-l4-spot")
    pools = tuple(dataclasses.replace(one, reuse="boot") for one in spec.workers)
    config = config_of(dataclasses.replace(spec, workers=pools))
    assert config["provider"]["markets"]["gpu"]["reuse"] == "boot"
    assert not list(check_provider(config["provider"], cloud="gcp"))


def test_without_a_disk_no_command_speaks_of_one() -> None:
    assert "mountpoint" not in str(config_of(preset("aws-g5-spot")))


class Nodes:
    """Nodes, one after the other, with one disk: each has a home and a namespace of its own."""

    def __init__(self, home: Path, device: str) -> None:
        self.home, self.device = home, device
        self.mount = home / "mnt"  # in a folder of ours: the namespace is one of mounts only
        self.before, self.after = own_commands("/data")
        sudo = home / "sudo"
        sudo.write_text('#!/bin/sh\nexec "$@"\n')
        sudo.chmod(0o755)
        self.count = 0

    def run(self, *commands: str, disk: bool = True) -> str:
        """What a new node prints; commands may say BEFORE and AFTER."""
        self.count += 1
        node = self.home / f"node{self.count}"
        node.mkdir()
        known = {"BEFORE": self.before, "AFTER": self.after}
        lines = [mount_command(str(self.mount), [self.device] if disk else [])]
        lines += [known.get(one, one).replace("/data", str(self.mount)) for one in commands]
        done = subprocess.run(
            ["unshare", "-m", "bash", "-e", "-c", "\n".join(lines)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={"PATH": f"{self.home}:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(node)},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    image = tmp_path / "disk.img"
    with image.open("wb") as file:
        file.truncate(64 * 2**20)
    made = subprocess.run(
        ["losetup", "-f", "--show", str(image)], check=True, capture_output=True, text=True
    )
    device = made.stdout.strip()
    yield Nodes(tmp_path, device)
    subprocess.run(["losetup", "-d", device], check=True)


INSTALL = "mkdir -p ~/venv && echo torch >> ~/venv/installed && mkdir -p ~/.cache/uv"
LOOK = "cat ~/venv/installed 2> /dev/null || echo nothing"


@pytest.mark.root
def test_the_next_node_finds_what_the_last_one_installed(nodes: Nodes) -> None:
    nodes.run("BEFORE", INSTALL, "AFTER")
    assert nodes.run("BEFORE", LOOK).splitlines()[-1] == "torch"


@pytest.mark.root
def test_what_a_node_left_unfinished_is_thrown_away(nodes: Nodes) -> None:
    nodes.run("BEFORE", INSTALL)
    assert nodes.run("BEFORE", LOOK).splitlines()[-1] == "nothing"


@pytest.mark.root
def test_an_update_that_was_cut_off_is_thrown_away_too(nodes: Nodes) -> None:
    nodes.run("BEFORE", INSTALL, "AFTER")
    nodes.run("BEFORE", INSTALL)
    assert nodes.run("BEFORE", LOOK).splitlines()[-1] == "nothing"


@pytest.mark.root
def test_rays_second_run_of_the_commands_changes_nothing(nodes: Nodes) -> None:
    out = nodes.run("BEFORE", INSTALL, "AFTER", "BEFORE", LOOK, "AFTER")
    assert out.splitlines()[-1] == "torch"
    assert nodes.run("BEFORE", LOOK).splitlines()[-1] == "torch"


@pytest.mark.root
def test_a_node_without_a_disk_installs_in_its_home(nodes: Nodes) -> None:
    out = nodes.run("BEFORE", INSTALL, "AFTER", "test -L ~/venv || echo own", disk=False)
    assert out.splitlines()[-1] == "own"
    assert nodes.run("BEFORE", LOOK).splitlines()[-1] == "nothing"


@pytest.mark.root
def test_the_environment_of_a_baked_image_is_left_where_it_is(nodes: Nodes) -> None:
    baked = "mkdir -p ~/venv && echo baked > ~/venv/installed"
    assert nodes.run(baked, "BEFORE", LOOK).splitlines()[-1] == "baked"
