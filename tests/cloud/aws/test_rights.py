"""Roles that let the head launch and the workers write, and nothing more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from spotray.cloud.aws.rights import (
    bucket_policy,
    disk_policy,
    launch_policy,
    prepare_rights,
)
from spotray.errors import ConfigError


@pytest.fixture
def iam(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    import boto3

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        yield boto3.client("iam")


def made(iam: Any, *buckets: str, **names: str) -> list[str]:
    who: dict[str, Any] = {"head": "h", "workers": "w"} | names
    return list(prepare_rights(buckets=buckets, iam=iam, **who))


def policies(iam: Any, role: str) -> dict[str, Any]:
    names = iam.list_role_policies(RoleName=role)["PolicyNames"]
    return {
        name: iam.get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"]
        for name in names
    }


def test_the_head_may_launch_and_the_workers_only_write(iam: Any) -> None:
    made(iam, "runs")
    assert policies(iam, "h") == {
        "launch": launch_policy("w"),
        "bucket-runs": bucket_policy("runs"),
    }
    assert policies(iam, "w") == {"bucket-runs": bucket_policy("runs")}
    for name in ("h", "w"):
        profile = iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
        assert [one["RoleName"] for one in profile["Roles"]] == [name]


def test_a_second_time_changes_nothing_and_adds_another_bucket(iam: Any) -> None:
    made(iam, "runs")
    told = made(iam, "other")
    assert "role h is there" in told
    assert not any("made" in line for line in told)
    assert set(policies(iam, "w")) == {"bucket-runs", "bucket-other"}


def test_the_head_hands_on_no_role_but_that_of_the_workers() -> None:
    (one,) = [s for s in launch_policy("w")["Statement"] if "iam:PassRole" in s["Action"]]
    assert one["Resource"] == ["arn:aws:iam::*:role/w"]


def test_no_bucket_but_the_named_one_is_opened() -> None:
    resources = [one for s in bucket_policy("runs")["Statement"] for one in s["Resource"]]
    assert resources == ["arn:aws:s3:::runs", "arn:aws:s3:::runs/*"]


def test_a_profile_with_another_role_is_not_touched(iam: Any) -> None:
    iam.create_role(RoleName="theirs", AssumeRolePolicyDocument="{}")
    iam.create_instance_profile(InstanceProfileName="h")
    iam.add_role_to_instance_profile(InstanceProfileName="h", RoleName="theirs")
    with pytest.raises(ConfigError, match="theirs"):
        made(iam)


def test_the_head_may_use_volumes_only_if_it_is_to_give_disks(iam: Any) -> None:
    made(iam)
    assert "ec2:CreateVolume" not in str(policies(iam, "h"))
    told = list(prepare_rights(head="h", workers="w", buckets=[], data_disks=True, iam=iam))
    assert "role h may give the workers data disks, and delete them" in told
    assert policies(iam, "h")["disks"] == disk_policy()
    assert "disks" not in policies(iam, "w")


def test_no_volume_without_our_tag_may_be_touched() -> None:
    statements = disk_policy()["Statement"]
    on_volumes = [one for one in statements if one["Resource"] == ["arn:aws:ec2:*:*:volume/*"]]
    for one in on_volumes:
        ((key, value),) = one["Condition"]["Null"].items()
        assert key.endswith("Tag/spotray-cluster")
        assert value == "false", "true would mean: only without the tag"
    destroys = [one for one in statements if "ec2:DeleteVolume" in one["Action"]]
    assert destroys
    assert all(one in on_volumes for one in destroys)


class Refusing:
    """IAM for somebody who may do nothing."""

    def __getattr__(self, name: str) -> Any:
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, name)


def test_who_may_make_no_roles_is_told_so() -> None:
    with pytest.raises(ConfigError, match="AccessDenied"):
        list(prepare_rights(head="h", workers="w", buckets=[], iam=Refusing()))
