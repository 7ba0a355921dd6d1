"""What a cluster's nodes may do on AWS: two roles with instance profiles, made once.

The head launches nodes, hands the workers their role and reads the bucket; a worker
reads and writes the bucket and nothing else.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from spotray.cloud.aws.errors import boto_errors
from spotray.cloud.disks import CLUSTER_TAG
from spotray.errors import ConfigError

_TRUST = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Principal": {"Service": "ec2.amazonaws.com"},
            "Action": "sts:AssumeRole",
        }
    ],
}


def launch_policy(worker_role: str) -> dict[str, Any]:
    """What the head needs to launch and end nodes, and no more."""
    return _policy(
        _allow(
            [
                "ec2:Describe*",
                "ec2:RunInstances",
                "ec2:StartInstances",
                "ec2:StopInstances",
                "ec2:TerminateInstances",
                "ec2:CreateTags",
                "ec2:DeleteTags",
                "ec2:GetSpotPlacementScores",
            ],
            ["*"],
        ),
        _allow(["ssm:GetParameters"], ["arn:aws:ssm:*::parameter/aws/service/*"]),
        {
            **_allow(["iam:PassRole"], [f"arn:aws:iam::*:role/{worker_role}"]),
            "Condition": {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}},
        },
    )


def disk_policy() -> dict[str, Any]:
    """What the head needs for data disks: volumes that carry our tag, and no others."""
    volumes, instances = "arn:aws:ec2:*:*:volume/*", "arn:aws:ec2:*:*:instance/*"
    return _policy(
        _tagged(_allow(["ec2:CreateVolume"], [volumes]), "aws:RequestTag"),
        _tagged(
            _allow(["ec2:AttachVolume", "ec2:DetachVolume", "ec2:DeleteVolume"], [volumes]),
            "ec2:ResourceTag",
        ),
        _allow(["ec2:AttachVolume", "ec2:DetachVolume"], [instances]),
    )


def _tagged(statement: dict[str, Any], whose: str) -> dict[str, Any]:
    """A statement that holds only where our tag is there."""
    return {**statement, "Condition": {"Null": {f"{whose}/{CLUSTER_TAG}": "false"}}}


def bucket_policy(bucket: str) -> dict[str, Any]:
    """Reading and writing one bucket."""
    arn = f"arn:aws:s3:::{bucket}"
    return _policy(
        _allow(["s3:ListBucket", "s3:GetBucketLocation"], [arn]),
        _allow(
            [
                "s3:GetObject",
                "s3:PutObject",
                "s3:DeleteObject",
                "s3:AbortMultipartUpload",
                "s3:ListMultipartUploadParts",
            ],
            [f"{arn}/*"],
        ),
    )


def prepare_rights(
    *,
    head: str | None,
    workers: str | None,
    buckets: Sequence[str],
    data_disks: bool = False,
    iam: Any = None,
) -> Iterator[str]:
    """Make the roles and profiles, or bring them up to date; a line for each thing done.

    May be said again at any time, also for another bucket: what is there stays.

    Args:
        head: the instance profile's name, and its role's; None: not ours to make.
        workers: the same for the workers.
        buckets: that both may use.
        data_disks: whether the head shall give disks to the workers.
        iam: a boto3 client; None: that of the environment.

    Raises:
        ConfigError: no credentials, or they may not.
    """
    import boto3

    try:
        iam = iam or boto3.client("iam")
        if workers:
            yield from _role(iam, workers, {})
        if head:
            # The worker's role is named even if somebody else made it.
            policies = {"launch": launch_policy(workers or "*")}
            yield from _role(iam, head, policies | ({"disks": disk_policy()} if data_disks else {}))
            if data_disks:
                yield f"role {head} may give the workers data disks, and delete them"
        for role in filter(None, (head, workers)):
            for bucket in buckets:
                _put(iam, role, f"bucket-{bucket}", bucket_policy(bucket))
                yield f"role {role} may use s3://{bucket}"
        yield from _spot_role(iam)
    except boto_errors() as exc:
        raise ConfigError(
            f"IAM does not take it: {exc}: use credentials of somebody who may make roles, "
            "once for the account"
        ) from exc


def _role(iam: Any, name: str, policies: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    exists = iam.exceptions.EntityAlreadyExistsException
    try:
        iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(_TRUST))
        yield f"role {name} made"
    except exists:
        yield f"role {name} is there"
    for policy, document in policies.items():
        _put(iam, name, policy, document)
    with contextlib.suppress(exists):
        iam.create_instance_profile(InstanceProfileName=name)
    profile = iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
    if not profile["Roles"]:
        iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)
        yield f"instance profile {name} made; it takes up to a minute until EC2 knows it"
    elif profile["Roles"][0]["RoleName"] != name:
        raise ConfigError(
            f"instance profile {name} has the role {profile['Roles'][0]['RoleName']}: name "
            "another profile in the YAML, or delete that one"
        )


def _spot_role(iam: Any) -> Iterator[str]:
    """EC2's own role for spot: an account that never had a spot node lacks it."""
    try:
        iam.create_service_linked_role(AWSServiceName="spot.amazonaws.com")
        yield "EC2's service role for spot made"
    except (iam.exceptions.InvalidInputException, iam.exceptions.EntityAlreadyExistsException):
        return  # the account has it: EC2 says so by the first of them


def _put(iam: Any, role: str, name: str, document: Mapping[str, Any]) -> None:
    iam.put_role_policy(RoleName=role, PolicyName=name, PolicyDocument=json.dumps(document))


def _policy(*statements: dict[str, Any]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": list(statements)}


def _allow(actions: list[str], resources: list[str]) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": actions, "Resource": resources}
