"""What is wrong with a cluster's YAML by itself: no Ray, no cloud, no account is asked.

Each rule stands for something that happened to somebody: Ray takes the file, and the
cluster then costs more, scales nowhere, or ends with its head. Rules on what a node is
asked of its cloud are in `spotray.cluster.lint_nodes`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from spotray.cluster.lint_nodes import check_nodes
from spotray.cluster.markets import CLOUD_KEYS, RAY_KEYS, check_node_types, check_provider
from spotray.cluster.node_types import (
    OUR_MODULES,
    cloud_of,
    commands,
    mapping,
    node_types,
    zone_pattern,
    zones,
)
from spotray.cluster.presets import PLACEHOLDERS
from spotray.cluster.problems import Problem, unknown_key

_STOCK_KEYS = {  # what Ray's own providers read
    **CLOUD_KEYS,
    "azure": (
        "location",
        "resource_group",
        "subscription_id",
        "availability_zone",
        "cache_stopped_nodes",
        "tags",
        "msi_name",
        "msi_resource_group",
        "subnet_mask",
        "unique_id",
    ),
}
_NO_DEFAULT = (  # Ray fills these in for its own providers only
    "head_node_type",
    "available_node_types",
    "max_workers",
    "setup_commands",
    "head_setup_commands",
    "worker_setup_commands",
)
_MARKET = "ray.io/market-type"
_SETUP = ("setup_commands", "head_setup_commands", "worker_setup_commands")
_START = ("head_start_ray_commands", "worker_start_ray_commands")
_PIN = re.compile(r"ray\[[^\]]*\]\s*==\s*([\w.]+)")


def lint(config: Mapping[str, Any], *, ray_version: str = "") -> Iterator[Problem]:
    """All that is wrong, in the order of the file's usual parts.

    Args:
        config: the YAML, read.
        ray_version: of the machine that will say ``ray up``; empty: not compared.
    """
    yield from _check_provider(config)
    yield from _check_zones(config)
    yield from _check_head(config)
    yield from _check_labels(config)
    yield from _check_counts(config)
    yield from check_nodes(config)
    yield from _check_setup(config, ray_version)
    yield from _check_start(config)
    yield from _check_files(config)
    yield from _check_placeholders(config)


# -- provider -----------------------------------------------------------------


def _check_provider(config: Mapping[str, Any]) -> Iterator[Problem]:
    provider = mapping(config, "provider")
    kind, cloud = provider.get("type"), cloud_of(config)
    if not provider:
        cure = "write {type: external, module: spotray.cluster.aws.SpotNodeProvider, ...}"
        yield Problem(path="provider", what="is missing or no map", cure=cure)
    elif kind == "external":
        if not provider.get("module"):
            cure = f"name one such as {next(iter(OUR_MODULES))}"
            yield Problem(path="provider.module", what="is missing", cure=cure)
        for key in _NO_DEFAULT:
            if key not in config:
                empty = ", an empty list if there are none" if key.endswith("commands") else ""
                yield Problem(
                    path=key,
                    what="is missing, and Ray has no default for it beside type: external",
                    cure=f"write it{empty}",
                )
        if cloud:
            yield from check_provider(provider, cloud=cloud)
            own = "InstanceType" if cloud == "aws" else "machineType"
            yield from check_node_types(
                provider,
                mapping(config, "available_node_types"),
                head_node_type=str(config.get("head_node_type")),
                own_type=lambda one: one.get(own),
            )
    elif cloud:
        known = (*RAY_KEYS, *_STOCK_KEYS[cloud])
        yield from (unknown_key("provider", str(k), known) for k in provider if k not in known)
        if provider.get("cache_stopped_nodes", True) and _asks_for_spot(config):
            yield Problem(
                path="provider.cache_stopped_nodes",
                what="is true, as it is by default: spot nodes would be stopped, kept and paid for",
                cure="write false",
            )
    needed = {"aws": ["region"], "gcp": ["region", "project_id"]}.get(cloud, [])
    needed += ["location", "resource_group"] if cloud == "azure" else []
    for key in needed:
        if not provider.get(key):
            yield Problem(path=f"provider.{key}", what="is missing", cure="write it")


def _asks_for_spot(config: Mapping[str, Any]) -> bool:
    return any(one.spot_path for one in node_types(config))


def _check_zones(config: Mapping[str, Any]) -> Iterator[Problem]:
    provider, cloud = mapping(config, "provider"), cloud_of(config)
    region, path = provider.get("region"), "provider.availability_zone"
    if cloud not in ("aws", "gcp") or not isinstance(region, str):
        return
    for zone in zones(config):
        if not zone_pattern(cloud, region).fullmatch(zone):
            yield Problem(
                path=path,
                what=f"{zone!r} is not a zone of {region}",
                cure=f"name zones such as {region}{'' if cloud == 'aws' else '-'}a, by commas",
            )
    if cloud == "gcp" and provider.get("type") == "gcp" and len(zones(config)) > 1:
        yield Problem(
            path=path,
            what="Ray's own provider for GCP works in one zone",
            cure="name one, or take type: external with spotray.cluster.gcp.SpotNodeProvider",
        )


# -- node types ---------------------------------------------------------------


def _check_head(config: Mapping[str, Any]) -> Iterator[Problem]:
    names = [one.name for one in node_types(config)]
    head = config.get("head_node_type")
    if names and head not in names:
        yield Problem(
            path="head_node_type",
            what=f"{head!r} is none of available_node_types",
            cure=f"write one of {', '.join(names)}",
        )
    for one in node_types(config):
        if one.is_head and one.spot_path:
            yield Problem(
                path=one.spot_path,
                what="asks for a head on spot: the cluster ends when it is taken",
                cure="leave it out",
            )
        if one.is_head and one.gpus:
            yield Problem(
                path=one.instance_type_path,
                what=f"the head's {one.instance_type} has a GPU that is paid for all the time",
                cure="take a type without",
                is_warning=True,
            )


def _check_labels(config: Mapping[str, Any]) -> Iterator[Problem]:
    is_ours = mapping(config, "provider").get("type") == "external"
    for one in node_types(config):
        if not one.cloud:
            continue
        path = f"{one.path}.labels"
        labels = mapping(one.given, "labels")
        label, fact = labels.get(_MARKET), "spot" if one.spot_path else "on-demand"
        if is_ours:
            told = ("ray.io/availability-zone", "ray.io/availability-region", _MARKET)
            for key in told:
                if key in labels and not one.is_head:
                    yield Problem(
                        path=f"{path}.{key}",
                        what="is decided at every launch: this label would ask for nodes for ever "
                        "when another kind comes",
                        cure="leave it out; the provider labels each node with what it is",
                    )
        elif label is None:
            yield Problem(
                path=path,
                what=f"{_MARKET} is missing: nobody can tell what this node is",
                cure=f"write {{{_MARKET}: {fact}}}",
                is_warning=True,
            )
        elif label != fact:
            yield Problem(
                path=f"{path}.{_MARKET}",
                what=f"says {label}, but the nodes will be {fact}",
                cure=f"write {fact}",
            )


def _check_counts(config: Mapping[str, Any]) -> Iterator[Problem]:
    most = config.get("max_workers")
    workers = [one for one in node_types(config) if not one.is_head]
    for one in workers:
        low, high = one.given.get("min_workers", 0), one.given.get("max_workers", most)
        if not isinstance(low, int) or not isinstance(high, int):
            continue
        if low > high:
            yield Problem(
                path=f"{one.path}.min_workers",
                what=f"is {low}, max_workers is {high}",
                cure="raise max_workers or lower min_workers",
            )
        if isinstance(most, int) and high > most:
            yield Problem(
                path=f"{one.path}.max_workers",
                what=f"is {high}, but the whole cluster's is {most}",
                cure="raise max_workers of the cluster",
                is_warning=True,
            )
    least = sum(n for one in workers if isinstance(n := one.given.get("min_workers", 0), int))
    if isinstance(most, int) and least > most:
        yield Problem(
            path="max_workers",
            what=f"is {most}, but the node types' min_workers are {least} together",
            cure="raise it",
        )
    idle = config.get("idle_timeout_minutes", 5)
    if isinstance(idle, int | float) and idle < 1:
        yield Problem(
            path="idle_timeout_minutes",
            what=f"is {idle}: nodes would go between two steps of a job",
            cure="give 5 or more",
        )
    speed = config.get("upscaling_speed", 1)
    if isinstance(speed, int | float) and speed < 1:
        yield Problem(
            path="upscaling_speed",
            what=f"is {speed}: lost nodes would come back one after the other",
            cure="give the number of workers",
            is_warning=True,
        )


# -- commands and files -------------------------------------------------------


def _check_setup(config: Mapping[str, Any], ray_version: str) -> Iterator[Problem]:
    module = mapping(config, "provider").get("module")
    head = " ".join(text for _, text in commands(config, "setup_commands", "head_setup_commands"))
    if isinstance(module, str) and module:
        imported = module.rpartition(".")[0]
        if not re.search(rf"\bimport\s+{re.escape(imported)}\b", head):
            yield Problem(
                path="head_setup_commands",
                what=f"nothing makes sure that the head has {imported}: without it `ray up` "
                "says that all is well, and nothing is ever launched",
                cure=f"end it with: python -c 'import {imported}'",
            )
    pins = [
        (path, pin)
        for path, text in commands(config, *_SETUP)
        for pin in _PIN.findall(text)
        if ray_version and pin != ray_version
    ]
    for path, pin in pins:
        yield Problem(
            path=path,
            what=f"installs Ray {pin}, but `ray up` here is that of {ray_version}",
            cure=f"write =={ray_version}, or install {pin} here",
        )
    everything = " ".join(text for _, text in commands(config, *_SETUP))
    if "setup_commands" in config and "ray" in everything and not _PIN.search(everything):
        yield Problem(
            path="setup_commands",
            what="do not pin Ray's version: nodes that come later would get another one",
            cure=f"install 'ray[default]=={ray_version or 'VERSION'}'",
            is_warning=True,
        )
    for path, text in commands(config, "setup_commands", "worker_setup_commands"):
        if re.search(r"\b(git clone|conda create|mkdir (?!-p))", text) and not re.search(
            r"\|\||\btest\b|\[ ", text
        ):
            yield Problem(
                path=path,
                what="fails the second time, and Ray runs setup commands twice on workers",
                cure="begin it with: test -e WHAT_IT_MAKES ||",
            )


def _check_start(config: Mapping[str, Any]) -> Iterator[Problem]:
    cloud, key = cloud_of(config), "worker_start_ray_commands"
    if not cloud:
        return
    started = commands(config, key)
    agents = [(path, text) for path, text in started if "-m spotray.agent" in text]
    if not agents:
        yield Problem(
            path=key,
            what="start no agent: no notice of a preemption will be heard",
            cure=f"add: nohup python -m spotray.agent --cloud {cloud} "
            "--ray-address $RAY_HEAD_IP:6379 &",
            is_warning=True,
        )
    for path, text in agents:
        if f"--cloud {cloud}" not in text:
            yield Problem(
                path=path,
                what=f"the agent asks another cloud's metadata service than that of {cloud}",
                cure=f"write --cloud {cloud}",
            )
    everything = " ".join(text for _, text in commands(config, *_SETUP, *_START))
    if "RAY_AUTH_MODE=token" not in everything:
        yield Problem(
            path="setup_commands",
            what="turn no token on: whoever reaches the head's port runs code on the cluster",
            cure="export RAY_AUTH_MODE=token on all nodes; `spotray cluster new` shows how",
            is_warning=True,
        )


def _check_files(config: Mapping[str, Any]) -> Iterator[Problem]:
    for remote, local in mapping(config, "file_mounts").items():
        if isinstance(local, str) and not os.path.exists(os.path.expanduser(local)):
            yield Problem(
                path=f"file_mounts.{remote}",
                what=f"there is no {local} here, in {os.getcwd()}",
                cure="go to the folder that has it, or correct the path",
            )


def _check_placeholders(config: Mapping[str, Any]) -> Iterator[Problem]:
    text = json.dumps(config, default=str)
    for placeholder, cure in PLACEHOLDERS.items():
        if re.search(rf"(?<![\w-]){re.escape(placeholder)}(?![\w-])", text):
            yield Problem(
                path="(file)",
                what=f"{placeholder} stands for something of yours",
                cure=cure,
                is_warning=True,
            )
