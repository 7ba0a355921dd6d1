"""Cluster placement groups: nodes close together, in one zone."""

from __future__ import annotations

from typing import Any

from spotray.clock import Clock
from spotray.cloud.aws.errors import boto_errors
from spotray.errors import ConfigError

_MADE = {"Key": "made-by", "Value": "spotray"}  # of those that may be deleted
_IN_USE = "InvalidPlacementGroup.InUse"
_POLL_S = 5.0


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
            tags = [{"ResourceType": "placement-group", "Tags": [_MADE]}]
            ec2.create_placement_group(GroupName=name, Strategy="cluster", TagSpecifications=tags)
            return True
    except boto_errors() as exc:
        raise ConfigError(f"placement group {name} in {region}: {exc}") from exc
    if found[0]["Strategy"] != "cluster":
        raise ConfigError(
            f"placement group {name} in {region} has the strategy {found[0]['Strategy']}, not "
            "cluster: take another name"
        )
    return False


def delete_placement_group(
    name: str, *, region: str, clock: Clock, patience_s: float, ec2: Any = None
) -> str:
    """Delete a group that `ensure_placement_group` made; why it stays, empty if it is gone.

    Args:
        name: of the group.
        region: where.
        clock: waits for nodes to leave the group, which those do that have ended for good.
        patience_s: for so long at most.
        ec2: a boto3 client; None: that of the environment.

    Raises:
        ConfigError: AWS refuses.
    """
    import boto3
    from botocore.exceptions import ClientError

    give_up_s = clock.now_s() + patience_s
    try:
        ec2 = ec2 or boto3.client("ec2", region_name=region)
        filters = [{"Name": "group-name", "Values": [name]}]
        found = ec2.describe_placement_groups(Filters=filters)["PlacementGroups"]
        if not found:
            return ""
        if _MADE not in found[0].get("Tags", []):
            return "it was not made by `spotray cluster prepare`"
        while True:
            try:
                ec2.delete_placement_group(GroupName=name)
                return ""
            except ClientError as exc:
                if exc.response["Error"]["Code"] != _IN_USE:
                    raise
            if clock.now_s() >= give_up_s:
                return "nodes are still in it"
            clock.sleep(_POLL_S)
    except boto_errors() as exc:
        raise ConfigError(f"placement group {name} in {region}: {exc}") from exc
