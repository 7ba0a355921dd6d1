"""What is wrong with what a node is asked of its cloud: GPUs, network, rights, images."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from spotray.cluster.disks.config import MOUNT
from spotray.cluster.node_types import NodeType, commands, disk_of, mapping, node_types, zones
from spotray.cluster.problems import Problem
from spotray.market import catalog

_BUCKETS = ("s3://", "gs://", "abfs://", "abfss://")


def check_nodes(config: Mapping[str, Any]) -> Iterator[Problem]:
    """All of it, for every node type."""
    every = [one for one in node_types(config) if one.cloud]
    for one in every:
        yield from _check_data_disk(one, config)
    for one in every:
        if not one.instance_type:
            yield Problem(path=one.instance_type_path, what="is missing", cure="name one")
            continue
        yield from _check_gpus(one, config)
    if every and every[0].cloud == "aws":
        for one in every:
            yield from _check_network(one, config)
            yield from _check_image(one)
            yield from _check_metadata(one)
        yield from _check_ports(config)
        yield from _check_aws_rights(config, every)
    if every and every[0].cloud == "gcp":
        yield from _check_gcp(config, every)


# -- GPUs ---------------------------------------------------------------------


def _check_gpus(one: NodeType, config: Mapping[str, Any]) -> Iterator[Problem]:
    if one.is_head:
        return
    markets = mapping(mapping(mapping(config, "provider"), "markets"), one.name)
    listed = markets.get("instance_types")
    path = f"provider.markets.{one.name}.instance_types"
    types = [one.instance_type, *(map(str, listed) if isinstance(listed, list) else ())]
    counts = {name: one.gpus_of(name) for name in types}
    for name, gpus in counts.items():
        if gpus == 0:
            where = one.instance_type_path if name == one.instance_type else path
            example = {"aws": "g5.xlarge", "gcp": "g2-standard-4"}.get(one.cloud, "an NC size")
            yield Problem(path=where, what=f"{name} has no GPU", cure=f"take {example}, perhaps")
    if len({gpus for gpus in counts.values() if gpus}) > 1:
        yield Problem(
            path=path,
            what=f"numbers of GPUs differ: {_told(counts)}",
            cure="list types with the same number; make a node type of each number",
        )
    claimed = mapping(one.given, "resources").get("GPU")
    if one.gpus and claimed is not None and claimed != one.gpus:
        yield Problem(
            path=f"{one.path}.resources.GPU",
            what=f"is {claimed}, but {one.instance_type} has {one.gpus}",
            cure=f"write {one.gpus}" + (", or leave it out" if one.cloud == "aws" else ""),
        )
    elif one.gpus and claimed is None and one.cloud != "aws":
        yield Problem(
            path=f"{one.path}.resources.GPU",
            what=f"is missing: Ray does not ask {one.cloud} for it",
            cure=f"write {one.gpus}",
        )


def _told(counts: Mapping[str, int | None]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


# -- data disks ---------------------------------------------------------------


def _check_data_disk(one: NodeType, config: Mapping[str, Any]) -> Iterator[Problem]:
    disk = disk_of(config, one.name)
    mount = disk.get("mount", MOUNT)
    if not disk or not isinstance(mount, str):
        return
    path = f"provider.markets.{one.name}.data_disk"
    used = " ".join(text for _, text in commands(config, "setup_commands", "worker_setup_commands"))
    if f"{mount}/" not in used:
        yield Problem(
            path=path,
            what=f"no setup command keeps anything under {mount}: each node installs all anew",
            cure=f"put the environment or uv's cache there (export UV_CACHE_DIR={mount}/uv), as "
            "`spotray cluster new --data-disk` does",
            is_warning=True,
        )
    docker = config.get("docker")
    if isinstance(docker, Mapping) and docker.get("container_name"):
        keys = ("run_options", "worker_run_options")
        given = [str(each) for key in keys for each in docker.get(key) or ()]
        if not any(re.search(rf"\s{re.escape(mount)}:|={re.escape(mount)}\b", x) for x in given):
            yield Problem(
                path="docker.run_options",
                what=f"the container does not see {mount}, which is mounted on the node",
                cure=f"add -v {mount}:{mount}",
            )


# -- network ------------------------------------------------------------------


def _check_network(one: NodeType, config: Mapping[str, Any]) -> Iterator[Problem]:
    interfaces = one.config.get("NetworkInterfaces")
    has_interfaces = isinstance(interfaces, list) and bool(interfaces)
    for index, interface in enumerate(interfaces if isinstance(interfaces, list) else []):
        path = f"{one.path}.node_config.NetworkInterfaces[{index}]"
        if not isinstance(interface, Mapping):
            continue
        for key, cure in (
            ("SubnetId", "give the id of a subnet of the zone"),
            ("Groups", "give the id of a group that lets all through to and from itself"),
        ):
            if not interface.get(key):
                what = "is missing: Ray fills nothing into an interface"
                yield Problem(path=f"{path}.{key}", what=what, cure=cure)
        known = catalog.find("aws", one.instance_type)
        wants_efa = str(interface.get("InterfaceType", "")).startswith("efa")
        if wants_efa and known is not None and not known.efa:
            smallest = catalog.smallest_with_efa(known.gpu)
            cure = f"take {smallest.name} or larger" if smallest else "take another type"
            yield Problem(
                path=one.instance_type_path, what=f"{one.instance_type} takes no EFA", cure=cure
            )
    if has_interfaces:
        for key in ("SubnetId", "SubnetIds", "SecurityGroupIds"):
            if key in one.config:
                yield Problem(
                    path=f"{one.path}.node_config.{key}",
                    what="stands beside NetworkInterfaces, which name their own",
                    cure="leave it out",
                )
    placement = mapping(one.config, "Placement")
    if placement.get("GroupName") and not has_interfaces and len(zones(config)) > 1:
        yield Problem(
            path=f"{one.path}.node_config.Placement",
            what=f"a cluster placement group is in one zone, not in {', '.join(zones(config))}",
            cure="name one zone in provider.availability_zone",
        )


def _check_ports(config: Mapping[str, Any]) -> Iterator[Problem]:
    group = mapping(mapping(config, "provider"), "security_group")
    rules = group.get("IpPermissions")
    for index, rule in enumerate(rules if isinstance(rules, list) else []):
        ranges = rule.get("IpRanges") if isinstance(rule, Mapping) else None
        is_open = any(mapping({"r": r}, "r").get("CidrIp") == "0.0.0.0/0" for r in ranges or [])
        if is_open and (rule.get("FromPort"), rule.get("ToPort")) != (22, 22):
            yield Problem(
                path=f"provider.security_group.IpPermissions[{index}]",
                what="opens more than SSH to everybody",
                cure="leave it out: `ray dashboard` brings the dashboard over SSH",
            )


# -- images and rights --------------------------------------------------------


def _check_image(one: NodeType) -> Iterator[Problem]:
    image = str(one.config.get("ImageId") or "")
    if not image or image.lower() == "latest_dlami":
        yield Problem(
            path=f"{one.path}.node_config.ImageId",
            what="is missing: Ray's choice is of 2023, on Ubuntu 18.04, too old for torch"
            " and for the driver of an L4",
            cure="take that of `spotray cluster new aws-g5-spot`, or an image of your own",
        )


def _check_metadata(one: NodeType) -> Iterator[Problem]:
    options = mapping(one.config, "MetadataOptions")
    if options.get("HttpTokens") != "required":
        yield Problem(
            path=f"{one.path}.node_config.MetadataOptions",
            what="let anything on the node read its credentials without a token",
            cure="write {HttpTokens: required, HttpPutResponseHopLimit: 2}",
            is_warning=True,
        )
    elif options.get("HttpPutResponseHopLimit", 1) < 2:
        yield Problem(
            path=f"{one.path}.node_config.MetadataOptions.HttpPutResponseHopLimit",
            what="is 1: containers on the node cannot read the notice",
            cure="write 2",
            is_warning=True,
        )


def _check_aws_rights(config: Mapping[str, Any], every: list[NodeType]) -> Iterator[Problem]:
    head = next((one for one in every if one.is_head), None)
    head_has = head is not None and "IamInstanceProfile" in head.config
    workers = [one for one in every if not one.is_head]
    for one in workers:
        if "IamInstanceProfile" not in one.config:
            yield Problem(
                path=f"{one.path}.node_config.IamInstanceProfile",
                what="is missing: Ray gives a role to the head only, so these nodes may not "
                "write to a bucket",
                cure="write {Name: spotray-worker}, and say `spotray cluster prepare` once",
                is_warning=not _uses_bucket(config),
            )
    needs = []
    if any("IamInstanceProfile" in one.config for one in workers):
        needs.append("hand the workers their role (iam:PassRole)")
    if any(str(one.config.get("ImageId")).startswith("resolve:ssm:") for one in workers):
        needs.append("look up their image (ssm:GetParameters)")
    if head is not None and needs and not head_has:
        yield Problem(
            path=f"{head.path}.node_config.IamInstanceProfile",
            what=f"is missing: the role that Ray makes may not {' nor '.join(needs)}, so no "
            "worker would ever be launched",
            cure="write {Name: spotray-head}, and say `spotray cluster prepare` once",
        )


def _check_gcp(config: Mapping[str, Any], every: list[NodeType]) -> Iterator[Problem]:
    for one in every:
        scheduling = one.config.get("scheduling")
        if one.gpus and mapping(one.config, "scheduling").get("onHostMaintenance") != "TERMINATE":
            yield Problem(
                path=f"{one.path}.node_config.scheduling",
                what="Google moves no machine with a GPU to another host, and refuses this one",
                cure="write {onHostMaintenance: TERMINATE}"
                + (", not a list" if isinstance(scheduling, list) else ""),
            )
        if not one.is_head and not one.config.get("serviceAccounts"):
            yield Problem(
                path=f"{one.path}.node_config.serviceAccounts",
                what="are missing: Ray gives one to the head only, so these nodes may not "
                "write to a bucket",
                cure="write [{email: ray-autoscaler-sa-v1@PROJECT.iam.gserviceaccount.com, "
                "scopes: [https://www.googleapis.com/auth/cloud-platform]}]",
                is_warning=not _uses_bucket(config),
            )


def _uses_bucket(config: Mapping[str, Any]) -> bool:
    keys = ("setup_commands", "worker_setup_commands", "worker_start_ray_commands")
    return any(bucket in text for _, text in commands(config, *keys) for bucket in _BUCKETS)
