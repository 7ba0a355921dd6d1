"""Fails when a new Ray changes what the node providers of all clouds lean on."""

from __future__ import annotations

import inspect
from typing import Any

import click
import pytest
import yaml
from ray._private.label_utils import validate_label_key, validate_label_value
from ray.autoscaler._private import command_runner, commands, updater
from ray.autoscaler._private.constants import AUTOSCALER_UPDATE_INTERVAL_S
from ray.autoscaler._private.providers import _load_aws_defaults_config
from ray.autoscaler.node_launch_exception import NodeLaunchException

from spotray.cluster.ray_autoscaler.seams import (
    is_head,
    labels_of,
    launch_failed,
    node_type_of,
    with_defaults,
    with_first_words,
)
from spotray.market.offer import Market

SPOT = Market.parse("aws/us-west-2a/g5.xlarge/spot")


def test_the_tags_of_a_launch_are_those_that_ray_sends() -> None:
    assert is_head({"ray-node-type": "head"})
    assert not is_head({"ray-node-type": "worker"})
    assert node_type_of({"ray-user-node-type": "gpu"}) == "gpu"


def test_ray_takes_our_labels() -> None:
    for key, value in labels_of(SPOT).items():
        assert validate_label_key(key) is None
        assert validate_label_value(value) is None
    assert labels_of(SPOT.on_demand())["ray.io/market-type"] == "on-demand"


def test_ray_sends_the_labels_of_the_yaml_in_the_variable_that_we_add_to() -> None:
    source = inspect.getsource(updater.NodeUpdater)
    assert "env_vars[LABELS_ENVIRONMENT_VARIABLE] = self.node_labels" in source
    assert "cmd, environment_variables=env_vars" in source


def test_a_failed_launch_is_rays_own_error_in_rays_own_form() -> None:
    failed = launch_failed("InsufficientInstanceCapacity", "no spot")
    assert isinstance(failed, NodeLaunchException)
    assert failed.category == "InsufficientInstanceCapacity"
    assert failed.description == "no spot"


def test_ray_fills_out_before_it_validates_and_makes_the_head_through_the_provider() -> None:
    source = inspect.getsource(commands._bootstrap_config)
    filled = source.index("fillout_available_node_types_resources")
    assert filled < source.index("validate_config(config)")
    assert "provider.create_node(head_node_config, head_node_tags, 1)" in inspect.getsource(
        commands.get_or_create_head_node
    )


def test_ray_asks_again_every_few_seconds() -> None:
    assert AUTOSCALER_UPDATE_INTERVAL_S == 5, "the cool-downs are made for that"


def test_the_defaults_fill_what_is_missing_and_nothing_else() -> None:
    given: dict[str, Any] = {"auth": {"ssh_user": "me"}, "file_mounts": None, "setup_commands": []}
    config = with_defaults(given, _load_aws_defaults_config())
    assert config["auth"] == {"ssh_user": "me"}
    assert config["file_mounts"] == {}
    assert config["setup_commands"] == []
    with open(_load_aws_defaults_config(), encoding="utf-8") as file:
        missing = set(yaml.safe_load(file)) - set(config)
    assert missing == {"available_node_types", "head_node_type", "cluster_name", "provider"}


@pytest.mark.parametrize("word", ["x" * 300, ""])
def test_a_long_word_does_not_fill_rays_status(word: str) -> None:
    failed = launch_failed(word, "why")
    assert isinstance(failed, NodeLaunchException)
    assert len(failed.category) <= 40


class Runner:
    """Ray's interface of a command runner, on a node that is silent at first."""

    def __init__(self, *, fails: int = 0) -> None:
        self.said: list[str] = []
        self.fails = fails

    def run(self, cmd: str, with_output: bool = False, run_env: str = "auto") -> Any:
        self.said.append(cmd)
        if self.fails > 0:
            self.fails -= 1
            raise click.ClickException("SSH command failed.")
        return f"{cmd} {run_env}".encode() if with_output else None


def test_our_words_stand_around_the_first_command_that_a_node_answers() -> None:
    runner, heard = Runner(fails=2), []
    ours = with_first_words(
        runner,
        before=lambda: runner.said.append("before"),
        after=lambda run: heard.append(run("ours")),
    )
    for _ in range(2):
        with pytest.raises(click.ClickException):
            ours.run("uptime")
    for cmd in ("uptime", "setup"):
        ours.run(cmd)
    assert runner.said == ["before", "uptime", "uptime", "uptime", "ours", "setup"]
    assert heard == ["ours host"]


def test_a_command_of_ours_that_fails_is_told_and_fails_nobody_else() -> None:
    runner, heard = Runner(), []

    def after(run: Any) -> None:
        runner.fails = 1
        heard.append(run("ours"))

    ours = with_first_words(runner, before=lambda: None, after=after)
    ours.run("uptime")
    assert heard == ["ClickException: SSH command failed."]
    ours.run("setup")
    assert runner.said == ["uptime", "ours", "setup"]


def test_both_of_rays_command_runners_take_what_we_ask_of_them() -> None:
    for runner in (command_runner.SSHCommandRunner, command_runner.DockerCommandRunner):
        parameters = inspect.signature(runner.run).parameters
        assert {"cmd", "with_output", "run_env"} <= set(parameters)


def test_ray_asks_a_new_node_for_its_uptime_before_all_else() -> None:
    source = inspect.getsource(updater.NodeUpdater.do_update)
    assert source.index("self.wait_ready(deadline)") < source.index("self.sync_file_mounts")
    assert 'self.cmd_runner.run("uptime"' in inspect.getsource(updater.NodeUpdater.wait_ready)
