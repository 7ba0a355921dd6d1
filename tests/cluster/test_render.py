"""What a rendered file holds, and that those in cluster-configs/ are what is rendered."""

from __future__ import annotations

import dataclasses
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from spotray.agent.__main__ import _parser as agent_parser
from spotray.cluster.presets import NAMES, preset, presets
from spotray.cluster.render import RAY_VERSION, agent_command, environment, render
from spotray.cluster.spec import ClusterSpec
from spotray.controller.__main__ import _parser as controller_parser

CONFIGS = Path(__file__).parents[2] / "cluster-configs"
OURS = [name for name, spec in presets().items() if spec.provider == "spotray"]


def rendered(spec: ClusterSpec) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(render(spec, made_by="a test", file="x.yaml"))
    return config


def workers(config: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in config["available_node_types"].items() if k != "head"}


@pytest.mark.parametrize("name", NAMES)
def test_the_file_in_cluster_configs_is_what_its_first_line_makes(name: str) -> None:
    file = f"cluster-configs/{name}.yaml"
    text = (CONFIGS / f"{name}.yaml").read_text(encoding="utf-8")
    made_by = f"spotray cluster new {name} -o {file}"
    assert text.splitlines()[0] == f"# Rendered by: {made_by}"
    assert text == render(preset(name), made_by=made_by, file=file)


def test_cluster_configs_holds_nothing_else() -> None:
    assert {path.stem for path in CONFIGS.glob("*.yaml")} == set(NAMES) == set(presets())


@pytest.mark.parametrize("name", NAMES)
def test_ray_is_the_version_that_this_project_is_tested_with(name: str) -> None:
    import ray

    assert ray.__version__ == RAY_VERSION
    setup = " ".join(rendered(preset(name))["setup_commands"])
    assert f"'ray[default]=={RAY_VERSION}'" in setup


@pytest.mark.parametrize("name", NAMES)
def test_every_command_is_one_that_bash_reads(name: str) -> None:
    config = rendered(preset(name))
    for key in config:
        for text in config[key] if key.endswith("commands") else ():
            # As Ray wraps it.
            whole = f"source ~/.bashrc; export OMP_NUM_THREADS=1 && ({text})"
            subprocess.run(["bash", "-n", "-c", whole], check=True)


def test_setting_the_environment_up_twice_leaves_one_of_each(tmp_path: Path) -> None:
    spec = preset("aws-g5-spot")
    (tmp_path / ".bashrc").touch()
    writes = [one for one in rendered(spec)["setup_commands"] if "spotray_environment" in one]
    for text in writes * 2:
        subprocess.run(["bash", "-c", text], check=True, env={"HOME": str(tmp_path)})
    assert (tmp_path / ".bashrc").read_text().count("spotray_environment") == 1
    shown = subprocess.run(
        ["bash", "-c", ". ~/.bashrc; env"],
        check=True,
        capture_output=True,
        text=True,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    ).stdout.splitlines()
    expected = environment(spec) | {"PATH": f"{tmp_path}/venv/bin:/usr/bin:/bin"}
    assert {f"{key}={value}" for key, value in expected.items()} <= set(shown)


@pytest.mark.parametrize("name", [one for one, spec in presets().items() if spec.cloud == "aws"])
def test_the_agent_takes_the_arguments_that_it_is_started_with(name: str) -> None:
    spec = preset(name)
    (start,) = [
        text for text in rendered(spec)["worker_start_ray_commands"] if "-m spotray.agent" in text
    ]
    assert " ".join(agent_command(spec).split()) in start
    arguments = shlex.split(start[start.index("-m spotray.agent") :].partition(";")[0])[2:]
    args = agent_parser().parse_args(arguments)
    assert (args.cloud, args.ray_address) == (spec.cloud, "$RAY_HEAD_IP:6379")


@pytest.mark.parametrize("name", NAMES)
def test_the_head_runs_the_controller(name: str) -> None:
    config = rendered(preset(name))
    commands = config["head_start_ray_commands"]
    (start,) = [text for text in commands if "-m spotray.controller" in text]
    assert config["head_start_ray_commands"][-1] == start
    arguments = shlex.split(start[start.index("-m spotray.controller") :].partition(";")[0])[2:]
    args = controller_parser().parse_args(arguments)
    assert (args.ray_address, args.journal) == ("127.0.0.1:6379", "$SPOTRAY_JOURNAL")
    subprocess.run(["bash", "-n", "-c", start], check=True)


def test_there_is_room_for_a_worker_that_takes_anothers_place() -> None:
    config = rendered(preset("aws-mixed"))
    most = {one.name: one.max_workers for one in preset("aws-mixed").workers}
    assert workers(config)["spot"]["max_workers"] == most["spot"] + 1
    assert workers(config)["steady"]["max_workers"] == most["steady"]
    assert config["max_workers"] == sum(most.values()) + 1
    plain = rendered(preset("aws-plain"))
    assert plain["max_workers"] == preset("aws-plain").max_workers


def test_the_agent_is_started_anew_until_it_ends_in_order_or_cannot_be(tmp_path: Path) -> None:
    spec = preset("aws-g5-spot")
    (start,) = [
        text for text in rendered(spec)["worker_start_ray_commands"] if "-m spotray.agent" in text
    ]
    calls, python = tmp_path / "calls", tmp_path / "python"
    for codes, expected in (("1 0", 2), ("2", 1)):
        calls.write_text("")
        python.write_text(
            f"#!/bin/bash\necho >> {calls}\nset -- {codes}\n"
            f"shift $(( $(wc -l < {calls}) - 1 ))\nexit $1\n"
        )
        python.chmod(0o755)
        loop = shlex.split(start)[4]  # of: nohup setsid bash -c LOOP
        subprocess.run(
            ["bash", "-c", loop.replace("sleep 2", "true")],
            check=False,
            timeout=20,
            env={"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)},
        )
        assert len(calls.read_text().splitlines()) == expected


def test_ending_the_old_agent_does_not_end_the_shell_that_does_it() -> None:
    commands = rendered(preset("aws-g5-spot"))["worker_start_ray_commands"]
    (end,) = [text for text in commands if "pkill" in text]
    pattern = shlex.split(end)[2]
    assert subprocess.run(["grep", "-q", pattern], input=end, text=True, check=False).returncode
    agent = "python -m spotray.agent --cloud aws"
    assert not subprocess.run(["grep", "-q", pattern], input=agent, text=True).returncode


@pytest.mark.parametrize("name", OURS)
def test_the_head_makes_sure_that_it_has_the_module_of_its_provider(name: str) -> None:
    config = rendered(preset(name))
    module = config["provider"]["module"].rpartition(".")[0]
    assert config["head_setup_commands"][-1] == f"python -c 'import {module}'"


@pytest.mark.parametrize("name", OURS)
def test_no_label_says_what_the_provider_decides(name: str) -> None:
    assert not any(
        "labels" in one for one in rendered(preset(name))["available_node_types"].values()
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_head_takes_no_work_and_workers_reach_the_bucket(name: str) -> None:
    spec, config = preset(name), rendered(preset(name))
    assert config["available_node_types"]["head"]["resources"] == {"CPU": 0}
    role = {"aws": "IamInstanceProfile", "gcp": "serviceAccounts"}.get(spec.cloud)
    assert role is None or all(role in one["node_config"] for one in workers(config).values())
    assert f"SPOTRAY_JOURNAL={spec.storage}/clusters/{spec.name}" in str(config["setup_commands"])


def test_mixed_holds_its_on_demand_workers_beside_the_spot_ones() -> None:
    config = rendered(preset("aws-mixed"))
    assert config["provider"]["markets"] == {
        "steady": {"instance_types": ["g5.xlarge"], "spot": False},
        "spot": {"instance_types": ["g5.xlarge", "g6.xlarge"], "fallback": "on-demand"},
    }
    assert config["available_node_types"]["steady"]["min_workers"] == 1


def test_plain_has_a_pool_of_each_kind_and_says_its_limits() -> None:
    text = render(preset("aws-plain"), made_by="a test", file="x.yaml")
    config = yaml.safe_load(text)
    assert config["provider"]["type"] == "aws"
    spot, on_demand = workers(config).values()
    assert spot["node_config"]["InstanceMarketOptions"] == {"MarketType": "spot"}
    assert spot["labels"] == {"ray.io/market-type": "spot"}
    assert "InstanceMarketOptions" not in on_demand["node_config"]
    assert spot["priority"] > on_demand["priority"]
    assert "never for the on-demand type" in text


def test_preemptible_says_that_a_day_is_the_most() -> None:
    text = render(preset("gcp-t4-preemptible"), made_by="a test", file="x.yaml")
    scheduling = workers(yaml.safe_load(text))["gpu"]["node_config"]["scheduling"]
    assert scheduling["preemptible"] is True
    assert "provisioningModel" not in scheduling
    assert "24" in text.partition("cluster_name")[0]


def test_a_requirement_needs_no_checkout() -> None:
    spec = dataclasses.replace(preset("aws-g5-spot"), package="spotray[aws]==9.9")
    config = rendered(spec)
    assert "file_mounts" not in config
    assert "'spotray[aws]==9.9'" in " ".join(config["setup_commands"])


def test_a_checkout_is_mounted_with_all_that_pip_needs() -> None:
    mounts = rendered(preset("aws-g5-spot"))["file_mounts"]
    root = CONFIGS.parent
    assert all((root / local).exists() for local in mounts.values())
    assert "/home/ubuntu/spotray/spotray" in mounts
