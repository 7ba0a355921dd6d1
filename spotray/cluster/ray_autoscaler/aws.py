"""Ray's node provider for EC2, opened where spotray decides.

Leans on these private parts of `AWSNodeProvider`: that ``_create_node`` builds the call and
makes it through ``self.ec2_fail_fast.create_instances``, catching only botocore's
``ClientError`` to try again; that ``cached_nodes`` holds the last listing as boto instances.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from ray.autoscaler._private.aws.node_provider import AWSNodeProvider
from ray.autoscaler._private.providers import _load_aws_defaults_config

from spotray.cluster.ray_autoscaler.seams import with_defaults
from spotray.errors import ConfigError


class _Refused(Exception):
    """Carries boto's error past the loop in which Ray would make the same call 5 times."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class _OneCall:
    """An EC2 resource whose ``create_instances`` fails in a way that Ray does not retry."""

    def __init__(self, ec2: Any) -> None:
        self._ec2 = ec2

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ec2, name)

    def create_instances(self, **conf: Any) -> Any:
        from spotray.cloud.aws.errors import boto_errors

        try:
            return self._ec2.create_instances(**conf)
        except boto_errors() as exc:
            raise _Refused(exc) from exc


class OpenAWSNodeProvider(AWSNodeProvider):
    """`AWSNodeProvider` with one RunInstances call at a time and a look at what vanished."""

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        super().__init__(provider_config, cluster_name)  # type: ignore[no-untyped-call]
        self._ray: Any = super()  # its methods are untyped, all of them
        self.ec2_fail_fast = _OneCall(self.ec2_fail_fast)

    def run_instances(
        self, node_config: Mapping[str, Any], tags: Mapping[str, str], count: int
    ) -> dict[str, Any]:
        """1 to ``count`` instances by one call. Raises what boto raises."""
        try:
            # Ray changes both in place.
            made = self._ray._create_node(copy.deepcopy(dict(node_config)), dict(tags), count)
        except _Refused as exc:
            raise exc.error from None
        return dict(made)

    def instance(self, node_id: str) -> Any:
        """The boto instance of a node, as last listed if it was."""
        return self._ray._get_cached_node(node_id)

    def list_nodes(self, tag_filters: Mapping[str, str]) -> dict[str, Any]:
        """The boto instances that run or are about to, by id."""
        ids = self._ray.non_terminated_nodes(dict(tag_filters))
        listed = dict(self.cached_nodes)
        return {node_id: listed[node_id] for node_id in ids if node_id in listed}

    def tags_of(self, node_id: str) -> dict[str, str]:
        """A node's tags, as Ray knows them."""
        return dict(self._ray.node_tags(node_id))


def filled_out(
    config: Mapping[str, Any], instance_types: Callable[[str], tuple[str, ...]]
) -> dict[str, Any]:
    """A cluster config with Ray's defaults for EC2 and the resources of its node types.

    A node type of several instance types gets what each of them has at least; Ray asks EC2
    once for all.

    Args:
        config: the cluster config.
        instance_types: those of a node type besides its own.

    Raises:
        ConfigError: the instance types of a node type have different numbers of GPUs.
        ValueError: the region has no such instance type (Ray's own error).
    """
    whole = copy.deepcopy(with_defaults(config, _load_aws_defaults_config()))
    node_types = whole["available_node_types"]
    stand_ins: dict[str, list[str]] = {}
    for name in list(node_types):
        for instance_type in instance_types(name):
            # Ray looks resources up by node type: one for each instance type, for a moment.
            stand_in = f"{name} on {instance_type}"
            stand_ins.setdefault(name, []).append(stand_in)
            node_types[stand_in] = copy.deepcopy(node_types[name])
            node_types[stand_in]["node_config"]["InstanceType"] = instance_type
    whole = AWSNodeProvider.fillout_available_node_types_resources(whole)
    node_types = whole["available_node_types"]
    for name, others in stand_ins.items():
        all_of_them = [node_types[name], *(node_types.pop(other) for other in others)]
        node_types[name]["resources"] = _least(
            name, {one["node_config"]["InstanceType"]: one["resources"] for one in all_of_them}
        )
    return dict(whole)


def bootstrapped(config: dict[str, Any]) -> dict[str, Any]:
    """A filled-out config with what Ray makes or finds in the account. Raises what boto raises."""
    made: dict[str, Any] = AWSNodeProvider.bootstrap_config(config)
    return made


def _least(name: str, resources: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """What every instance type of a node type has."""
    gpus = {instance_type: one.get("GPU", 0) for instance_type, one in resources.items()}
    if len(set(gpus.values())) > 1:
        told = ", ".join(f"{instance_type} {count:g}" for instance_type, count in gpus.items())
        raise ConfigError(
            f"provider.markets.{name}.instance_types: numbers of GPUs differ ({told}): "
            "list types with the same number"
        )
    first, *others = resources.values()
    return {
        key: min(value, *(other[key] for other in others))
        for key, value in first.items()
        if all(key in other for other in others)
    }
