"""``ray up`` on an emulated EC2: what Ray and its provider say to a cluster's YAML, offline.

The same functions in the same order as ``ray up``: defaults, resources, schema, bootstrap,
and one ``create_node`` for each node type, whose RunInstances call botocore checks. Moto
stands for AWS, in this process only: it is one of its own (``python -m``), since moto
replaces botocore's way out, and Ray writes an SSH key into the home folder.

It reads a list of cluster configs as JSON from standard input, and writes to standard
output for each what is wrong and what was launched.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spotray.environment import environment

_START_S, _EACH_S = 120.0, 60.0  # on a busy machine
_REGION = "us-west-2"
_MODULE = "spotray.cluster.ray_autoscaler.rehearsal"
_ID = re.compile(r"(subnet|sg)-[0-9a-f]+")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """What came of one config."""

    failed_at: str = ""  # "defaults", "zones", "schema", "bootstrap", a node type; empty: nowhere
    why: str = ""
    launched: Mapping[str, str] = field(default_factory=dict)  # node type -> market


def is_possible() -> bool:
    """Whether the packages that it needs are installed."""
    from importlib.util import find_spec

    return all(find_spec(name) is not None for name in ("moto", "boto3"))


def rehearse(configs: Sequence[Mapping[str, Any]]) -> list[Rehearsal]:
    """Rehearse configs for AWS, each on an account of its own, in one other process.

    Raises:
        RuntimeError: that process broke, its last words are in the message; or took too long.
    """
    with tempfile.TemporaryDirectory(prefix="spotray-rehearsal-") as home:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "BOTO_"))}
        environment = {
            **kept,
            "HOME": home,
            "PYTHONPATH": os.pathsep.join(one for one in sys.path if one),
            "AWS_ACCESS_KEY_ID": "rehearsal",
            "AWS_SECRET_ACCESS_KEY": "rehearsal",
            "AWS_DEFAULT_REGION": _REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            "SPOTRAY_JOURNAL": "",
        }
        limit_s = _START_S + _EACH_S * len(configs)
        try:
            done = subprocess.run(
                [sys.executable, "-m", _MODULE],
                input=json.dumps(list(configs), default=str),
                capture_output=True,
                text=True,
                timeout=limit_s,
                check=False,
                env=environment,
            )
        except subprocess.TimeoutExpired as exc:
            raise RuntimeError(f"the rehearsal of `ray up` took over {limit_s:.0f} s") from exc
    if done.returncode:
        raise RuntimeError(f"the rehearsal of `ray up` broke: {done.stderr.strip()[-400:]}")
    return [Rehearsal(**one) for one in json.loads(done.stdout.splitlines()[-1])]


def main() -> None:
    """In the process of its own: configs in, outcomes out."""
    configs = json.load(sys.stdin)
    answers = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        outcomes = [_rehearse(config) for config in configs]
    print(json.dumps([vars(one) for one in outcomes]), file=answers, flush=True)


def _rehearse(config: dict[str, Any]) -> Rehearsal:
    from moto import mock_aws

    _forget_the_last_account()
    # Ray attaches AWS's own policies to a role of its making; moto takes seconds to load them.
    own_role = '"IamInstanceProfile"' not in json.dumps(config)
    os.environ["MOTO_IAM_LOAD_MANAGED_POLICIES"] = "true" if own_role else "false"
    heard, said = _Heard(), io.StringIO()
    with (
        mock_aws(),
        tempfile.TemporaryDirectory(dir=os.environ["HOME"]) as home,
        environment(HOME=home),
    ):
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                launched = _as_ray_up_does(config, heard)
        except (Exception, SystemExit) as exc:  # Ray leaves by whatever error it likes
            return Rehearsal(failed_at=heard.step, why=_told(heard.refused or exc, said.getvalue()))
    return Rehearsal(launched=launched)


class _Heard:
    """How far a rehearsal came, and the first thing that EC2 or botocore refused."""

    step = "defaults"
    refused: Exception | None = None


class _Listening:
    """EC2, with an ear for what ``create_instances`` raises: a provider tells it shortened."""

    def __init__(self, ec2: Any, heard: _Heard) -> None:
        self._ec2, self._heard = ec2, heard

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ec2, name)

    def create_instances(self, **conf: Any) -> Any:
        try:
            return self._ec2.create_instances(**conf)
        except Exception as exc:
            self._heard.refused = self._heard.refused or exc
            raise


def _as_ray_up_does(config: dict[str, Any], heard: _Heard) -> dict[str, str]:
    from ray.autoscaler._private.providers import _get_node_provider, _get_node_provider_cls
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = _settle_in(copy.deepcopy(config))
    provider_cls = _get_node_provider_cls(config["provider"])
    config = prepare_config(config)
    config = provider_cls.fillout_available_node_types_resources(config)
    heard.step = "schema"
    validate_config(config)
    heard.step = "zones"
    _check_zones(config["provider"])
    heard.step = "bootstrap"
    config = provider_cls.bootstrap_config(config)
    # A provider remembers what was refused: no other rehearsal's.
    provider: Any = _get_node_provider(config["provider"], config["cluster_name"], use_cache=False)
    provider.ec2_fail_fast = _Listening(provider.ec2_fail_fast, heard)
    launched = {}
    for name, node_type in config["available_node_types"].items():
        heard.step = name
        launched[name] = _launch(provider, config, name, node_type["node_config"])
    return launched


def _check_zones(provider: Mapping[str, Any]) -> None:
    """Ray leaves out a zone that does not exist, without a word."""
    from ray.autoscaler._private.aws.utils import client_cache

    region = provider["region"]
    real = client_cache("ec2", region).describe_availability_zones()["AvailabilityZones"]
    names = {one["ZoneName"] for one in real}
    named = str(provider.get("availability_zone") or "").split(",")
    if missing := {one.strip() for one in named if one.strip()} - names:
        raise ValueError(
            f"{region} has no {', '.join(sorted(missing))}, but {', '.join(sorted(names))}"
        )


def _launch(provider: Any, config: Mapping[str, Any], name: str, node_config: Any) -> str:
    """One node of a type; its market as EC2 would tell it."""
    from ray.autoscaler.tags import (
        NODE_KIND_HEAD,
        NODE_KIND_WORKER,
        TAG_RAY_LAUNCH_CONFIG,
        TAG_RAY_NODE_KIND,
        TAG_RAY_NODE_NAME,
        TAG_RAY_USER_NODE_TYPE,
    )

    kind = NODE_KIND_HEAD if name == config["head_node_type"] else NODE_KIND_WORKER
    whole = dict(node_config)
    if kind == NODE_KIND_HEAD:
        whole.update(config.get("head_node") or {})  # Ray keeps the head's role there
    tags = {
        TAG_RAY_NODE_KIND: kind,
        TAG_RAY_LAUNCH_CONFIG: "rehearsal",
        TAG_RAY_NODE_NAME: f"ray-{config['cluster_name']}-{kind}",
        TAG_RAY_USER_NODE_TYPE: name,
    }
    made = provider.create_node(whole, tags, 1)
    (instance,) = made.values()
    kind = "spot" if instance.instance_lifecycle == "spot" else "on-demand"
    return f"aws/{instance.placement['AvailabilityZone']}/{instance.instance_type}/{kind}"


# -- the account --------------------------------------------------------------


def _forget_the_last_account() -> None:
    """Ray's caches hold clients of the account before."""
    from ray.autoscaler._private.aws import config, node_provider, utils

    utils.resource_cache.cache_clear()
    utils.client_cache.cache_clear()
    config._get_subnets_or_die.cache_clear()
    # The names are Ray's; its pauses of 15 s are for a real IAM, and the list of all
    # instance types takes moto seconds: once is enough.
    vars(config)["time"] = _NoTime()
    vars(node_provider)["list_ec2_instances"] = _listed


@functools.cache
def _list_of(region: str) -> list[dict[str, Any]]:
    from ray.autoscaler._private.aws.utils import client_cache

    pages = client_cache("ec2", region).get_paginator("describe_instance_types").paginate()
    return [one for page in pages for one in page["InstanceTypes"]]


def _listed(region: str, aws_credentials: Mapping[str, Any] | None = None) -> Any:
    """Ray's list of a region's instance types."""
    return _list_of(region)


class _NoTime:
    def sleep(self, seconds: float) -> None:
        """Nothing is waited for."""


def _settle_in(config: dict[str, Any]) -> dict[str, Any]:
    """Make what the config names and an account would have; the config with ids of here."""
    from ray.autoscaler._private.aws.utils import client_cache

    provider = config["provider"]
    provider.pop("aws_credentials", None)
    region = provider.get("region", _REGION)
    ec2, iam = client_cache("ec2", region), client_cache("iam", region)
    config = _with_ids_of_here(config, ec2)
    for node_type in config.get("available_node_types", {}).values():
        node_config = node_type.get("node_config") or {}
        profile = node_config.get("IamInstanceProfile") or {}
        if name := profile.get("Name") or str(profile.get("Arn", "")).rpartition("/")[2]:
            _make_profile(iam, name)
            node_config["IamInstanceProfile"] = {"Name": name}
        if key := node_config.get("KeyName"):
            with contextlib.suppress(ec2.exceptions.ClientError):
                ec2.create_key_pair(KeyName=key)
    return config


def _make_profile(iam: Any, name: str) -> None:
    with contextlib.suppress(iam.exceptions.EntityAlreadyExistsException):
        iam.create_instance_profile(InstanceProfileName=name)
        iam.create_role(RoleName=name, AssumeRolePolicyDocument="{}")
        iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)


def _with_ids_of_here(config: dict[str, Any], ec2: Any) -> dict[str, Any]:
    """Subnets and security groups by the ids of this account, in the config's zones."""
    text = json.dumps(config)
    ids = list(dict.fromkeys(match.group() for match in _ID.finditer(text)))
    if not ids:
        return config
    named = str(config["provider"].get("availability_zone") or "")
    zones = [zone.strip() for zone in named.split(",") if zone.strip()]
    filters = [{"Name": "availability-zone", "Values": zones}] if zones else []
    subnets = ec2.describe_subnets(Filters=filters)["Subnets"]
    subnets.sort(key=lambda one: zones.index(one["AvailabilityZone"]) if zones else 0)
    if not subnets:
        return config  # no such zone: Ray will say so
    for index, old in enumerate(one for one in ids if one.startswith("subnet-")):
        text = text.replace(old, subnets[index % len(subnets)]["SubnetId"])
    for old in (one for one in ids if one.startswith("sg-")):
        made = ec2.create_security_group(
            GroupName=old.replace("sg-", "group-"), Description="-", VpcId=subnets[0]["VpcId"]
        )
        text = text.replace(old, made["GroupId"])
    whole: dict[str, Any] = json.loads(text)
    return whole


# -- what Ray said ------------------------------------------------------------


def _told(exc: BaseException, said: str) -> str:
    """An error in one line, or the last words printed where it has none of its own."""
    exc = getattr(exc, "error", None) or exc  # a refusal on its way past Ray's retries
    message = getattr(exc, "message", "") or getattr(exc, "description", "") or str(exc)
    if isinstance(exc, KeyError):
        message = f"{message} is missing"
    lines = [line.strip() for line in _plain_lines(message)]
    if not lines or type(exc) is SystemExit:
        lines = list(_plain_lines(said))[-3:]
    name = type(exc).__name__
    name = "" if name in ("ClickException", "SystemExit", "UpRefused") else name
    return f"{name}: {' '.join(lines)}"[:4000].removeprefix(": ")


def _plain_lines(text: str) -> Iterator[str]:
    for line in _ANSI.sub("", str(text)).splitlines():
        if line.strip():
            yield line.strip()


if __name__ == "__main__":
    main()
