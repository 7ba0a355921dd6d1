"""Each thing that an account on AWS may have against a cluster is one clear line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml

from spotray.cli.main import main
from spotray.cloud.aws.account import AwsAccount
from spotray.cluster.preflight import check
from spotray.cluster.presets import preset
from spotray.cluster.problems import Problem
from spotray.cluster.render import render
from tests.cluster.emulated_account import EmulatedAWS, emulated_aws
from tests.cluster.emulated_ec2 import REGION

pytestmark = pytest.mark.slow  # moto takes a second or two for an account
GPU = "available_node_types.gpu.node_config"
SPOT_QUOTA, QUOTA, STANDARD = "L-3819A6DF", "L-DB2E81BA", "L-1216C47A"


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedAWS]:
    with emulated_aws(monkeypatch) as aws:
        yield aws


def config_of(aws: EmulatedAWS, name: str = "aws-g5-spot") -> dict[str, Any]:
    text = render(preset(name), made_by="a test", file="x.yaml").replace("my-bucket", "runs")
    config: dict[str, Any] = yaml.safe_load(text)
    for one in config["available_node_types"].values():
        one["node_config"]["ImageId"] = aws.image
    return config


def look(aws: EmulatedAWS, config: dict[str, Any], **more: Any) -> list[Problem]:
    return check(config, account=aws.account(config["cluster_name"]), **more)


def node(config: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = config["available_node_types"]["gpu"]["node_config"]
    return found


def test_a_good_cluster_has_nothing_against_it_and_nothing_is_changed(aws: EmulatedAWS) -> None:
    config = config_of(aws)
    aws.asked.clear()
    assert look(aws, config) == []
    asked = set(aws.asked)
    assert {"GetServiceQuota", "SimulatePrincipalPolicy", "RunInstances", "HeadBucket"} <= asked
    changing = {one for one in asked if not one.startswith(("Describe", "Get", "Head", "List"))}
    assert changing == {"RunInstances", "SimulatePrincipalPolicy"}  # the first of them run dry
    assert aws.ec2.describe_instances()["Reservations"] == []


def test_without_credentials_it_is_one_line_and_nothing_else_is_asked(
    monkeypatch: pytest.MonkeyPatch, aws: EmulatedAWS
) -> None:
    config = config_of(aws)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/no/such/file")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/no/such/file")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    account = AwsAccount(REGION, session=boto3.Session(region_name=REGION))
    (one,) = check(config, account=account)
    assert one.path == "provider"
    assert "no credentials" in one.what
    assert "aws configure" in one.cure
    assert not one.is_warning


def test_a_profile_that_does_not_exist_is_one_line(
    monkeypatch: pytest.MonkeyPatch, aws: EmulatedAWS
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    (one,) = check(config_of(aws))
    assert "nobody" in one.what
    assert "AWS_PROFILE" in one.cure


def test_credentials_that_aws_does_not_take_are_one_line(aws: EmulatedAWS) -> None:
    aws.refuses["GetCallerIdentity"] = "InvalidClientTokenId"
    (one,) = look(aws, config_of(aws))
    assert "InvalidClientTokenId" in one.what


def _no_gpu(config: dict[str, Any]) -> None:
    config["provider"]["markets"] = {}
    node(config)["InstanceType"] = "c6i.xlarge"


def _no_such_type(config: dict[str, Any]) -> None:
    config["provider"]["markets"] = {}
    node(config)["InstanceType"] = "g99.huge"


WRONG: dict[str, tuple[Callable[[dict[str, Any]], Any], str, str, str]] = {
    "unknown zone": (
        lambda c: c["provider"].update(availability_zone="us-west-2a,us-west-2q"),
        "provider.availability_zone",
        "no zone us-west-2q",
        "us-west-2b",
    ),
    "unknown type": (
        _no_such_type,
        f"{GPU}.InstanceType",
        "g99.huge does not exist or is not offered",
        "another type",
    ),
    "type without GPU": (_no_gpu, f"{GPU}.InstanceType", "c6i.xlarge has no GPU", "has one"),
    "no such image": (
        lambda c: node(c).update(ImageId="ami-0123456789abcdef0"),
        f"{GPU}.ImageId",
        "no image ami-0123456789abcdef0",
        "name another",
    ),
    "no such parameter": (
        lambda c: node(c).update(ImageId="resolve:ssm:/no/such/image"),
        f"{GPU}.ImageId",
        "no image resolve:ssm:/no/such/image",
        "name another",
    ),
    "no such profile": (
        lambda c: node(c).update(IamInstanceProfile={"Name": "mine"}),
        f"{GPU}.IamInstanceProfile",
        "there is no mine",
        "IAM",
    ),
    "no such bucket": (
        lambda c: c["setup_commands"].append("export X=s3://nobodys-bucket/x"),
        "setup_commands[5]",
        "no bucket nobodys-bucket",
        "make it",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_one_line_with_its_place_and_cure(aws: EmulatedAWS, name: str) -> None:
    change, path, what, cure = WRONG[name]
    config = config_of(aws)
    change(config)
    errors = [one for one in look(aws, config) if not one.is_warning]
    assert [one.path for one in errors] == [path], errors
    assert what in errors[0].what
    assert cure in errors[0].cure


def test_all_that_is_wrong_is_told_at_once(aws: EmulatedAWS) -> None:
    config = config_of(aws)
    for name in ("unknown zone", "no such image", "no such bucket"):
        WRONG[name][0](config)
    aws.quotas = {SPOT_QUOTA: 0.0}
    aws.denied = {"ec2:CreateKeyPair"}
    assert len([one for one in look(aws, config) if not one.is_warning]) == 5


@pytest.mark.parametrize(
    ("quotas", "path", "told", "is_warning"),
    [
        ({SPOT_QUOTA: 0.0}, "gpu", "0 of 5 nodes fit", False),
        ({SPOT_QUOTA: 9.0}, "gpu", "2 of 5 nodes fit", True),
        ({QUOTA: 0.0}, "gpu", "on-demand", True),  # there is no falling back, and spot goes on
        ({STANDARD: 1.0}, "head", "0 of 1 nodes fit", False),
    ],
)
def test_a_quota_is_told_as_nodes_that_fit(
    aws: EmulatedAWS, quotas: dict[str, float], path: str, told: str, is_warning: bool
) -> None:
    aws.quotas = quotas
    (one,) = look(aws, config_of(aws))
    assert path in one.path
    assert told in one.what
    assert one.is_warning == is_warning
    assert next(iter(quotas)) in one.what


def test_what_runs_already_counts_against_a_quota_unless_it_is_the_cluster_itself(
    aws: EmulatedAWS,
) -> None:
    config = config_of(aws)
    spot = {"InstanceMarketOptions": {"MarketType": "spot"}, "InstanceType": "g5.xlarge"}
    aws.quotas = {SPOT_QUOTA: 20.0}
    profile = {"IamInstanceProfile": {"Name": "spotray-worker"}}
    aws.run(config["cluster_name"], "gpu", **spot, **profile)
    assert look(aws, config) == []
    aws.run("another", "gpu", **spot)
    (one,) = look(aws, config)
    assert "4 of 5 nodes fit" in one.what


def test_an_image_without_a_sign_of_a_driver_is_a_warning(aws: EmulatedAWS) -> None:
    config = config_of(aws)
    node(config)["ImageId"] = aws.add_image("ubuntu-noble-24.04-amd64-server")
    (one,) = look(aws, config)
    assert one.is_warning
    assert one.path == f"{GPU}.ImageId"
    assert "NVIDIA's driver" in one.what


def test_an_image_for_another_processor_is_an_error(aws: EmulatedAWS) -> None:
    config = config_of(aws)
    node(config)["ImageId"] = aws.add_image("nvidia for arm", "arm64")
    (one,) = look(aws, config)
    assert one.what == "is for arm64, which g5.2xlarge, g5.xlarge cannot run"


def test_a_bucket_in_another_region_is_a_warning_with_its_price(aws: EmulatedAWS) -> None:
    aws.add_bucket("far-runs", "eu-west-1")
    config = config_of(aws)
    config["setup_commands"][-1] += " s3://far-runs/x"
    (one,) = look(aws, config)
    assert one.is_warning
    assert "far-runs is in eu-west-1" in one.what
    assert "traffic" in one.what


def test_a_bucket_of_somebody_else_is_an_error(aws: EmulatedAWS) -> None:
    aws.refuses["HeadBucket"] = "403"
    (one,) = look(aws, config_of(aws))
    assert "no right to bucket runs" in one.what


def test_a_probe_is_written_only_if_asked_for_and_does_not_stay(aws: EmulatedAWS) -> None:
    config = config_of(aws)
    look(aws, config)
    assert "PutObject" not in aws.asked
    assert look(aws, config, write_probe=True) == []
    assert {"PutObject", "DeleteObject"} <= set(aws.asked)
    assert "Contents" not in aws.s3.list_objects_v2(Bucket="runs")
    aws.refuses["PutObject"] = "AccessDenied"
    (one,) = look(aws, config, write_probe=True)
    assert "no right to bucket runs" in one.what


def test_credentials_that_may_not_launch_are_told_without_the_ciphertext(aws: EmulatedAWS) -> None:
    aws.refuses["RunInstances"] = "UnauthorizedOperation"
    errors = look(aws, config_of(aws))
    assert {one.path for one in errors} == {"provider"}
    assert "may launch no head: UnauthorizedOperation: not you" in errors[0].what
    assert not any("Encoded" in one.what for one in errors)


def test_a_typo_that_only_ec2_knows_comes_from_the_dry_run(aws: EmulatedAWS) -> None:
    config = config_of(aws)
    node(config)["EbsOptimised"] = True
    (one,) = look(aws, config)
    assert "EbsOptimised" in one.what


def test_an_account_that_never_had_a_spot_node_is_told(aws: EmulatedAWS) -> None:
    (role,) = aws.iam.list_roles(PathPrefix="/aws-service-role/")["Roles"]
    aws.iam.delete_service_linked_role(RoleName=role["RoleName"])
    (one,) = look(aws, config_of(aws))
    assert "never had a spot node" in one.what
    assert "spotray cluster prepare" in one.cure


def test_rights_that_a_role_lacks_are_named(aws: EmulatedAWS) -> None:
    aws.denied = {"iam:PassRole", "s3:PutObject"}
    told = {one.path.split(".")[1]: one.what for one in look(aws, config_of(aws))}
    assert told == {
        "head": "its role may not iam:PassRole, s3:PutObject",
        "gpu": "its role may not s3:PutObject",
    }


@pytest.mark.parametrize(
    ("operation", "what"),
    [
        ("GetServiceQuota", "the quota for spot nodes was not checked"),
        ("SimulatePrincipalPolicy", "what these credentials may do was not checked"),
        ("DescribeImages", "the image was not checked"),
        ("DescribeInstanceTypes", "the instance types were not checked"),
        ("DescribeAvailabilityZones", "the zones were not checked"),
        ("GetInstanceProfile", "instance profile spotray-worker was not checked"),
        ("DescribeInstances", "whether a cluster aws-g5-spot runs was not checked"),
    ],
)
def test_what_could_not_be_checked_is_said(aws: EmulatedAWS, operation: str, what: str) -> None:
    aws.refuses[operation] = "UnauthorizedOperation"
    problems = look(aws, config_of(aws))
    assert all(one.is_warning for one in problems), problems
    assert [one for one in problems if one.what.startswith(what)], problems


def test_a_cluster_of_that_name_with_another_spec_is_an_error(aws: EmulatedAWS) -> None:
    config = config_of(aws)
    head = aws.run(config["cluster_name"], "head", InstanceType="m5.large")
    (one,) = look(aws, config)
    assert one.path == "cluster_name"
    assert f"head {head} has InstanceType m5.large, not m6i.large" in one.what
    assert "ray down" in one.cure
    aws.ec2.terminate_instances(InstanceIds=[head])
    profile = {"IamInstanceProfile": {"Name": "spotray-head"}}
    aws.run(config["cluster_name"], "head", InstanceType="m6i.large", **profile)
    assert look(aws, config) == []
    aws.run(config["cluster_name"], "trainer", InstanceType="g5.xlarge")
    (one,) = look(aws, config)
    assert "node type 'trainer'" in one.what


def test_rays_own_provider_is_asked_about_as_well(aws: EmulatedAWS) -> None:
    aws.quotas = {SPOT_QUOTA: 0.0}
    config = config_of(aws, "aws-plain")
    errors = [one for one in look(aws, config) if not one.is_warning]
    assert ["0 of" in one.what for one in errors] == [True], errors


def test_a_cloud_that_is_not_asked_is_said() -> None:
    one = check({"provider": {"type": "azure"}})[-1]  # after what keeps `ray up` from Azure
    assert one.is_warning
    assert "only AWS and GCP" in one.what


def test_the_command_asks_the_cloud_only_if_told_to(
    monkeypatch: pytest.MonkeyPatch,
    aws: EmulatedAWS,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    file = tmp_path / "x.yaml"
    file.write_text(yaml.safe_dump(config_of(aws)))
    command = ["cluster", "validate", "--quick", str(file)]
    assert main(command) == 0
    capsys.readouterr()
    assert main([*command, "--online"]) == 1
    out = capsys.readouterr().out
    assert out.startswith(f"{file}: provider: no way to AWS")
    assert len(out.splitlines()) == 1
    file.write_text("max_workers: many")
    assert main([*command, "--online"]) == 1
    assert "warning: (file): the cloud was not asked" in capsys.readouterr().out
    assert main([*command, "--write-probe"]) == 1
    assert "--online" in capsys.readouterr().err
