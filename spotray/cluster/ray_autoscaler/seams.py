"""What the providers of all clouds need of Ray's autoscaler."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import yaml
from ray._private.ray_constants import LABELS_ENVIRONMENT_VARIABLE
from ray.autoscaler._private.subprocess_output_util import ProcessRunnerError
from ray.autoscaler.node_launch_exception import NodeLaunchException
from ray.autoscaler.tags import (
    NODE_KIND_HEAD,
    NODE_KIND_WORKER,
    TAG_RAY_NODE_KIND,
    TAG_RAY_NODE_NAME,
    TAG_RAY_USER_NODE_TYPE,
)

from spotray.market.offer import Market

__all__ = ["TAG_RAY_NODE_NAME", "TAG_RAY_USER_NODE_TYPE"]

MARKET_TYPE_LABEL = "ray.io/market-type"
ZONE_LABEL = "ray.io/availability-zone"
REGION_LABEL = "ray.io/availability-region"
INSTANCE_TYPE_LABEL = "spotray/instance-type"  # Ray has no label of its own for it

_CATEGORY_CHARS = 40  # Ray prints it in a column of `ray status`


class UpRefused(SystemExit):
    """Ends `ray up` with its words alone, and exit code 1.

    While a provider fills a config out, Ray catches every `Exception`, prints where it was
    raised and goes on, to fail at what is missing then, in a hundred lines.
    """


def is_head(tags: Mapping[str, str]) -> bool:
    """Whether a launch with these tags is of the cluster's head."""
    return tags.get(TAG_RAY_NODE_KIND) == NODE_KIND_HEAD


def node_type_of(tags: Mapping[str, str]) -> str:
    """The entry of ``available_node_types`` that a launch with these tags is of."""
    return tags.get(TAG_RAY_USER_NODE_TYPE, "")


def of_type(node_type: str) -> dict[str, str]:
    """The tags by which the workers of an entry of ``available_node_types`` are listed."""
    return {TAG_RAY_NODE_KIND: NODE_KIND_WORKER, TAG_RAY_USER_NODE_TYPE: node_type}


def launch_failed(word: str, why: str) -> Exception:
    """The error by which a provider tells Ray that no node came up, for `ray status`."""
    failed: Exception = NodeLaunchException(word[:_CATEGORY_CHARS], why, sys.exc_info())
    return failed


def labels_of(market: Market) -> dict[str, str]:
    """What a node in this market is, in Ray's labels."""
    return {
        MARKET_TYPE_LABEL: "spot" if market.spot else "on-demand",
        ZONE_LABEL: market.zone,
        REGION_LABEL: market.region,
        INSTANCE_TYPE_LABEL: market.instance_type,
    }


def with_true_labels(runner: Any, labels: Callable[[], Mapping[str, str]]) -> Any:
    """A command runner that tells ``ray start`` what the node is.

    The labels travel in the variable that carries the YAML's own ``labels:``, which beats
    all other ways in; where the YAML says something else, the truth wins.
    """
    run = runner.run

    def run_with_labels(
        cmd: str | None = None,
        *args: Any,
        environment_variables: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        if cmd and "ray start" in cmd and environment_variables is not None:
            told = {**(environment_variables.get(LABELS_ENVIRONMENT_VARIABLE) or {}), **labels()}
            environment_variables = {**environment_variables, LABELS_ENVIRONMENT_VARIABLE: told}
        if environment_variables is not None:
            kwargs["environment_variables"] = environment_variables
        return run(cmd, *args, **kwargs)

    runner.run = run_with_labels
    return runner


def with_first_words(
    runner: Any, *, before: Callable[[], None], after: Callable[[Callable[[str], str]], None]
) -> Any:
    """A command runner that does something of ours around the first command of a node.

    Ray's updater asks a new node for its uptime until it answers, then sends files, then
    runs the setup commands.

    Args:
        runner: Ray's.
        before: called once, before the first command is tried.
        after: called once, after the first that the node answered; it gets a way to run
            commands on the node itself, beside a container, which returns what they print,
            or Ray's words for why nothing came back.
    """
    run = runner.run
    is_begun = is_done = False

    def run_with_ours(*args: Any, **kwargs: Any) -> Any:
        nonlocal is_begun, is_done
        if not is_begun:
            is_begun = True
            before()
        answer = run(*args, **kwargs)
        if not is_done:
            is_done = True
            after(lambda cmd: _output_of(run, cmd))
        return answer

    runner.run = run_with_ours
    return runner


def _output_of(run: Any, cmd: str) -> str:
    try:
        printed = run(cmd, with_output=True, run_env="host")
    except (click.ClickException, ProcessRunnerError, subprocess.SubprocessError, OSError) as exc:
        return f"{type(exc).__name__}: {exc}"
    return printed.decode(errors="replace") if isinstance(printed, bytes) else str(printed)


def with_defaults(config: Mapping[str, Any], defaults_file: str | Path) -> dict[str, Any]:
    """A cluster config with what Ray would add for a provider of its own.

    To an external provider Ray gives no defaults, and then misses them. Not given back:
    what says which nodes there are, and the setup commands, which install a Ray nightly.
    """
    with open(defaults_file, encoding="utf-8") as file:
        defaults = yaml.safe_load(file)
    kept = {"available_node_types", "head_node_type", "cluster_name", "provider", "setup_commands"}
    given = {key: value for key, value in config.items() if value is not None}
    return {**{key: value for key, value in defaults.items() if key not in kept}, **given}
