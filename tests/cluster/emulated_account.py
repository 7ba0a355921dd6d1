"""An AWS account inside this process (moto), with quotas and rights as a test says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
import pytest

from spotray.cloud.aws.account import AwsAccount
from tests.cluster.emulated_ec2 import REGION, emulated_ec2

PROFILES = ("spotray-head", "spotray-worker")


class EmulatedAWS:
    """Answers what moto does not: quotas and IAM's simulation. All else is moto's."""

    def __init__(self) -> None:
        self.session = boto3.Session(region_name=REGION)
        self.ec2 = self.session.client("ec2")
        self.iam = self.session.client("iam")
        self.s3 = self.session.client("s3")
        self.quotas: dict[str, float] = {}  # 1000 where none is said
        self.denied: set[str] = set()  # actions that IAM's simulation refuses
        self.refuses: dict[str, str] = {}  # operation -> the code that it ends in
        self.asked: list[str] = []  # operations
        self._simulated: dict[str, Any] = {}
        events = self.session.events
        events.register("provide-client-params.iam.SimulatePrincipalPolicy", self._remember)
        events.register("provide-client-params.service-quotas.GetServiceQuota", self._remember)
        events.register("before-call", self._answer)
        self.image = self.add_image("Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04)")
        for profile in PROFILES:
            self.iam.create_instance_profile(InstanceProfileName=profile)
            self.iam.create_role(RoleName=profile, AssumeRolePolicyDocument="{}")
            self.iam.add_role_to_instance_profile(InstanceProfileName=profile, RoleName=profile)
        self.iam.create_service_linked_role(AWSServiceName="spot.amazonaws.com")
        self.add_bucket("runs", REGION)

    def add_image(self, name: str, architecture: str = "x86_64") -> str:
        from moto.core import DEFAULT_ACCOUNT_ID
        from moto.ec2.models import ec2_backends

        image_id = str(self.ec2.register_image(Name=name)["ImageId"])
        (image,) = ec2_backends[DEFAULT_ACCOUNT_ID][REGION].describe_images(ami_ids=[image_id])
        image.architecture = architecture
        return image_id

    def add_bucket(self, name: str, region: str) -> None:
        self.session.client("s3", region_name=region).create_bucket(
            Bucket=name, CreateBucketConfiguration={"LocationConstraint": region}
        )

    def run(self, cluster: str, node_type: str, **more: Any) -> str:
        """A node of a cluster that is running."""
        kind = "head" if node_type == "head" else "worker"
        tags = {
            "ray-cluster-name": cluster,
            "ray-user-node-type": node_type,
            "ray-node-type": kind,
        }
        given = [{"Key": key, "Value": value} for key, value in tags.items()]
        made = self.ec2.run_instances(
            **{"ImageId": self.image, **more},
            MinCount=1,
            MaxCount=1,
            TagSpecifications=[{"ResourceType": "instance", "Tags": given}],
        )
        return str(made["Instances"][0]["InstanceId"])

    def account(self, cluster_name: str = "") -> AwsAccount:
        return AwsAccount(REGION, cluster_name=cluster_name, session=self.session)

    def _remember(self, params: dict[str, Any], **_: Any) -> None:
        self._simulated = params

    def _answer(self, model: Any, **_: Any) -> Any:
        self.asked.append(model.name)
        if code := self.refuses.get(model.name):
            error = {"Code": code, "Message": "not you Encoded authorization failure message: x9"}
            return _Response(403), {"Error": error, "ResponseMetadata": {"HTTPStatusCode": 403}}
        if model.name == "GetServiceQuota":
            value = self.quotas.get(self._simulated["QuotaCode"], 1000.0)
            return _Response(200), {"Quota": {"Value": value}}
        if model.name == "SimulatePrincipalPolicy":
            results = [
                {
                    "EvalActionName": one,
                    "EvalDecision": "implicitDeny" if one in self.denied else "allowed",
                }
                for one in self._simulated["ActionNames"]
            ]
            return _Response(200), {"EvaluationResults": results}
        return None


class _Response:
    def __init__(self, status_code: int) -> None:
        self.status_code = status_code


@contextmanager
def emulated_aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedAWS]:
    monkeypatch.setenv("MOTO_IAM_LOAD_MANAGED_POLICIES", "false")
    with emulated_ec2(monkeypatch):
        yield EmulatedAWS()
