"""Cluster placement groups: nodes close together, in one zone."""

from __future__ import annotations

from typing import Any

from spotray.cloud.aws.errors import boto_errors
from spotray.errors import ConfigError


def ensure_placement_group(name: str, *, region: str, ec2: Any = None) -> bool:
    """Make the group unless it is there; whether it was made.

    Args:
        name: of the group.
        region: where.
        ec2: a boto3 client; None: that of the environment.

    Raises:
        ConfigError: there is one of that name that keeps nodes apart, or AWS refuses.
    """
    import boto3

    try:
        ec2 = ec2 or boto3.client("ec2", region_name=region)
        filters = [{"Name": "group-name", "Values": [name]}]
        found = ec2.describe_placement_groups(Filters=filters)["PlacementGroups"]
        if not found:
            ec2.create_placement_group(GroupName=name, Strategy="cluster")
            return True
    except boto_errors() as exc:
        raise ConfigError(f"placement group {name} in {region}: {exc}") from exc
    if found[0]["Strategy"] != "cluster":
        raise ConfigError(
            f"placement group {name} in {region} has the strategy {found[0]['Strategy']}, not "
            "cluster: take another name"
        )
    return False
