"""What an AWS account has and may, asked through boto3: nothing is changed, nothing rented.

Calls that would change something are made as dry runs, which EC2 answers by whether they
would have been allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from spotray.cloud.account import Bucket, Image, Limit, RunningNode, TypeOffer
from spotray.cloud.aws.errors import CREDENTIALS_CURE, boto_errors, class_of
from spotray.errors import ConfigError, NotAnswered, NotPermittedError

# Source: Service Quotas, service "ec2", 2026; quotas are vCPUs of running instances.
_QUOTAS = {
    ("g", False): ("L-DB2E81BA", "Running On-Demand G and VT instances"),
    ("g", True): ("L-3819A6DF", "All G and VT Spot Instance Requests"),
    ("p", False): ("L-417A185B", "Running On-Demand P instances"),
    ("p", True): ("L-7212CCBC", "All P4, P3 and P2 Spot Instance Requests"),
    ("p5", True): ("L-C4BD4855", "All P5 Spot Instance Requests"),
    ("std", False): ("L-1216C47A", "Running On-Demand Standard instances"),
    ("std", True): ("L-34B43A08", "All Standard Spot Instance Requests"),
}
_FAMILIES = {
    **dict.fromkeys(("g", "gr", "vt"), "g"),
    "p": "p",
    **dict.fromkeys(("a", "c", "d", "h", "i", "is", "im", "m", "r", "t", "z"), "std"),
}
_CLUSTER, _KIND, _NODE_TYPE = "ray-cluster-name", "ray-node-type", "ray-user-node-type"  # Ray's


class AwsAccount:
    """`spotray.cloud.account.Account` of one region; each question is asked once."""

    def __init__(self, region: str, *, cluster_name: str = "", session: Any = None) -> None:
        """Nothing is asked yet.

        Args:
            region: where the cluster shall be.
            cluster_name: whose nodes count against no quota: they would be used again.
            session: a boto3 session; None: that of the environment.

        Raises:
            ConfigError: the environment names a profile that does not exist.
        """
        import boto3

        self._region, self._cluster = region, cluster_name
        try:
            self._session = session or boto3.Session()
            self._ec2 = self._session.client("ec2", region_name=region)
        except boto_errors() as exc:
            raise ConfigError(f"no way to AWS: {exc}: correct AWS_PROFILE or the region") from exc

    def who(self) -> str:
        return self.caller

    @cached_property
    def caller(self) -> str:
        """The ARN of whose credentials these are.

        Raises:
            ConfigError: there are none, or AWS does not take them.
        """
        from botocore.exceptions import EndpointConnectionError

        try:
            sts = self._session.client("sts", region_name=self._region)
            return str(sts.get_caller_identity()["Arn"])
        except EndpointConnectionError as exc:
            raise ConfigError(
                f"AWS does not answer: {_words(exc)}: is there a network, and such a region?"
            ) from exc
        except boto_errors() as exc:
            raise ConfigError(
                f"no credentials that AWS takes: {_words(exc)}: {CREDENTIALS_CURE}"
            ) from exc

    # -- what is offered -----------------------------------------------------

    def zones(self) -> Mapping[str, bool]:
        with _asking("ec2:DescribeAvailabilityZones"):
            found = self._ec2.describe_availability_zones()["AvailabilityZones"]
        return {one["ZoneName"]: one["State"] == "available" for one in found}

    def offers(
        self, types: Iterable[str], zones: Sequence[str]
    ) -> Mapping[tuple[str, str], TypeOffer]:
        facts = self._types(sorted(set(types)))
        filters = [{"Name": "instance-type", "Values": sorted(facts)}]
        if not facts:
            return {}
        with _asking("ec2:DescribeInstanceTypeOfferings"):
            pages = self._ec2.get_paginator("describe_instance_type_offerings").paginate(
                LocationType="availability-zone", Filters=filters
            )
            pairs = {
                (one["InstanceType"], one["Location"])
                for page in pages
                for one in page["InstanceTypeOfferings"]
            }
        return {pair: facts[pair[0]] for pair in pairs if pair[0] in facts and pair[1] in zones}

    def _types(self, types: Sequence[str]) -> dict[str, TypeOffer]:
        # By a filter, since a name that does not exist is then no error.
        filters = [{"Name": "instance-type", "Values": list(types)}]
        with _asking("ec2:DescribeInstanceTypes"):
            pages = self._ec2.get_paginator("describe_instance_types").paginate(Filters=filters)
            listed = [one for page in pages for one in page["InstanceTypes"]]
        return {
            one["InstanceType"]: TypeOffer(
                cpus=int(one["VCpuInfo"]["DefaultVCpus"]),
                gpus=sum(int(gpu["Count"]) for gpu in one.get("GpuInfo", {}).get("Gpus", [])),
                architectures=tuple(one.get("ProcessorInfo", {}).get("SupportedArchitectures", ())),
            )
            for one in listed
            if one["InstanceType"] in types
        }

    def image(self, reference: str) -> Image | None:
        """An image by its id, or by ``resolve:ssm:PARAMETER`` as RunInstances takes it."""
        image_id: str | None = reference
        if reference.startswith("resolve:ssm:"):
            image_id = self._parameter(reference.removeprefix("resolve:ssm:"))
        if image_id is None:
            return None
        with _asking("ec2:DescribeImages"):
            try:
                found = self._ec2.describe_images(ImageIds=[image_id])["Images"]
            except self._ec2.exceptions.ClientError as exc:
                if _code(exc).startswith("InvalidAMIID"):
                    return None
                raise
        if not found:
            return None
        (one,) = found
        words = (one.get(key, "") for key in ("Name", "Description", "ImageOwnerAlias"))
        state = one.get("State", "available")
        return Image(
            words=" ".join(filter(None, words)),
            architecture=one.get("Architecture", ""),
            flaw="" if state == "available" else f"is {state}",
        )

    def _parameter(self, name: str) -> str | None:
        ssm = self._session.client("ssm", region_name=self._region)
        with _asking("ssm:GetParameter"):
            try:
                return str(ssm.get_parameter(Name=name)["Parameter"]["Value"])
            except ssm.exceptions.ParameterNotFound:
                return None

    # -- quotas --------------------------------------------------------------

    def limits(self, instance_type: str, offer: TypeOffer, *, spot: bool) -> Sequence[Limit]:
        quota = quota_of(instance_type, spot=spot)
        if quota is None:
            raise NotAnswered(f"nobody here knows which quota {instance_type} counts against")
        code, name = quota
        used = sum(
            cpus
            for (other, other_spot), cpus in self._in_use.items()
            if quota_of(other, spot=other_spot) == quota
        )
        return [
            Limit(
                name=f"{name} ({code})",
                limit=self._quota(code),
                used=used,
                per_node=offer.cpus,
                unit="vCPUs",
            )
        ]

    def _quota(self, code: str) -> float:
        known: dict[str, float] = self._quotas
        if code not in known:
            quotas = self._session.client("service-quotas", region_name=self._region)
            with _asking("servicequotas:GetServiceQuota"):
                answer = quotas.get_service_quota(ServiceCode="ec2", QuotaCode=code)
            known[code] = float(answer["Quota"]["Value"])
        return known[code]

    @cached_property
    def _quotas(self) -> dict[str, float]:
        return {}

    @cached_property
    def _in_use(self) -> dict[tuple[str, bool], float]:
        """vCPUs that run, by type and kind, without those of the cluster itself."""
        counts: dict[tuple[str, bool], int] = {}
        for one in self._instances([]):
            if not self._cluster or _tags(one).get(_CLUSTER) != self._cluster:
                key = one["InstanceType"], one.get("InstanceLifecycle") == "spot"
                counts[key] = counts.get(key, 0) + 1
        facts = self._types(sorted({name for name, _ in counts})) if counts else {}
        return {
            key: float(count * facts[key[0]].cpus)
            for key, count in counts.items()
            if key[0] in facts
        }

    def _instances(self, filters: list[dict[str, Any]]) -> Iterator[Mapping[str, Any]]:
        with _asking("ec2:DescribeInstances"):
            pages = self._ec2.get_paginator("describe_instances").paginate(Filters=filters)
            for page in pages:
                for group in page["Reservations"]:
                    for one in group["Instances"]:
                        if one["State"]["Name"] in ("pending", "running"):
                            yield one

    def nodes_of(self, cluster_name: str) -> Sequence[RunningNode]:
        filters = [{"Name": f"tag:{_CLUSTER}", "Values": [cluster_name]}]
        return [
            RunningNode(
                name=one["InstanceId"],
                node_type=_tags(one).get(_NODE_TYPE, ""),
                is_head=_tags(one).get(_KIND) == "head",
                facts={
                    "InstanceType": str(one.get("InstanceType", "")),
                    "ImageId": str(one.get("ImageId", "")),
                    "IamInstanceProfile": _last((one.get("IamInstanceProfile") or {}).get("Arn")),
                },
            )
            for one in self._instances(filters)
        ]

    # -- buckets -------------------------------------------------------------

    def bucket(self, name: str) -> Bucket | None:
        s3 = self._session.client("s3", region_name=self._region)
        with _asking("s3:ListBucket"):
            try:
                answer = s3.head_bucket(Bucket=name)
            except s3.exceptions.ClientError as exc:
                if _code(exc) in ("404", "NoSuchBucket"):
                    return None
                if _code(exc) in ("403", "AccessDenied"):
                    raise NotPermittedError(
                        "it is another account's, or your credentials may not list it",
                        market="",
                        code=_code(exc),
                    ) from exc
                raise
        headers = answer["ResponseMetadata"]["HTTPHeaders"]
        return Bucket(place=answer.get("BucketRegion") or headers.get("x-amz-bucket-region", ""))

    def probe(self, bucket: str, key: str) -> None:
        s3 = self._session.client("s3", region_name=self._region)
        with _asking("s3:PutObject"):
            try:
                s3.put_object(Bucket=bucket, Key=key, Body=b"")
                s3.delete_object(Bucket=bucket, Key=key)
            except s3.exceptions.ClientError as exc:
                if _code(exc) in ("403", "AccessDenied"):
                    raise NotPermittedError(_words(exc), market="", code=_code(exc)) from exc
                raise

    # -- rights --------------------------------------------------------------

    class_of = staticmethod(class_of)

    def dry_run(self, node_config: Mapping[str, Any], *, spot: bool) -> tuple[str, str]:
        """What RunInstances would say: EC2's code and words; both empty if it would launch.

        What `ray up` fills in later is left out, and the default subnet taken.
        """
        call = {
            key: value
            for key, value in node_config.items()
            if key not in ("SubnetIds", "KeyName", "MinCount", "MaxCount", "InstanceMarketOptions")
        }
        if subnets := node_config.get("SubnetIds"):
            call["SubnetId"] = subnets[0]
        if spot:
            options = node_config.get("InstanceMarketOptions") or {}
            call["InstanceMarketOptions"] = {**options, "MarketType": "spot"}
        with _asking("ec2:RunInstances, as a dry run"):
            try:
                self._ec2.run_instances(**call, MinCount=1, MaxCount=1, DryRun=True)
            except self._ec2.exceptions.ClientError as exc:
                if _code(exc) == "DryRunOperation":
                    return "", ""
                if class_of(_code(exc)) is None:
                    raise
                return _code(exc), _words(exc)
        raise NotAnswered("ec2:RunInstances: EC2 took a dry run for a call")

    def role_of(self, profile: str) -> str | None:
        """The ARN of an instance profile's role; empty if it has none, None: no such profile."""
        iam = self._session.client("iam")
        with _asking("iam:GetInstanceProfile"):
            try:
                found = iam.get_instance_profile(InstanceProfileName=profile)["InstanceProfile"]
            except iam.exceptions.NoSuchEntityException:
                return None
        return str(found["Roles"][0]["Arn"]) if found["Roles"] else ""

    def has_spot_role(self) -> bool:
        """Whether EC2's own role for spot is there; an account new to spot lacks it."""
        iam = self._session.client("iam")
        with _asking("iam:ListRoles"):
            found = iam.list_roles(PathPrefix="/aws-service-role/spot.amazonaws.com/")["Roles"]
        return bool(found)

    def denied(
        self, actions: Sequence[str], *, principal: str = "", resource: str = "*"
    ) -> list[str]:
        """Which of some actions IAM would refuse.

        Args:
            actions: "ec2:RunInstances" and the like.
            principal: the ARN of a role; empty: whose credentials these are.
            resource: the ARN of what they are done to.

        Raises:
            NotAnswered: the credentials may not ask, or are of a kind that cannot be asked for.
        """
        principal = principal or self._own_principal()
        if principal.endswith(":root"):
            return []  # may do all, and IAM does not simulate it
        iam = self._session.client("iam")
        with _asking("iam:SimulatePrincipalPolicy"):
            answer = iam.simulate_principal_policy(
                PolicySourceArn=principal, ActionNames=list(actions), ResourceArns=[resource]
            )
        return [
            one["EvalActionName"]
            for one in answer["EvaluationResults"]
            if one["EvalDecision"] != "allowed"
        ]

    def _own_principal(self) -> str:
        """The caller as IAM names it: of a session, its role."""
        found = re.fullmatch(r"arn:([\w-]+):sts::(\d+):assumed-role/([^/]+)/.+", self.caller)
        if found is None:
            return self.caller
        with _asking("iam:GetRole"):  # its path is not in a session's name
            role = self._session.client("iam").get_role(RoleName=found.group(3))["Role"]
        return str(role["Arn"])


def session_of(credentials: Mapping[str, str]) -> Any:
    """A boto3 session of a YAML's ``aws_credentials``; None if it has none.

    Raises:
        ConfigError: boto3 does not know such a key.
    """
    import boto3

    if not credentials:
        return None
    try:
        return boto3.Session(**credentials)
    except boto_errors() + (TypeError,) as exc:
        raise ConfigError(f"provider.aws_credentials: {exc}: correct it") from exc


def quota_of(instance_type: str, *, spot: bool) -> tuple[str, str] | None:
    """Code and name of the quota that a type counts against; None if it is not known.

    >>> quota_of("g5.xlarge", spot=True)
    ('L-3819A6DF', 'All G and VT Spot Instance Requests')
    >>> quota_of("p5.48xlarge", spot=True)[0], quota_of("trn1.2xlarge", spot=False)
    ('L-C4BD4855', None)
    """
    found = re.match(r"([a-z]+)(\d*)", instance_type)
    family = _FAMILIES.get(found.group(1)) if found else None
    if found and family == "p" and spot and found.group(2) not in ("2", "3", "4"):
        family = "p5" if found.group(2) == "5" else None
    return _QUOTAS.get((family, spot)) if family else None


@contextmanager
def _asking(what: str) -> Iterator[None]:
    """Raises: NotAnswered, with ``what`` that was asked and AWS's words."""
    try:
        yield
    except boto_errors() as exc:
        raise NotAnswered(f"{what}: {_words(exc)}") from exc


def _code(exc: BaseException) -> str:
    response = getattr(exc, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))


def _words(exc: BaseException) -> str:
    """AWS's words in one line, without the ciphertext that a refusal ends with."""
    response = getattr(exc, "response", None) or {}
    told = " ".join(str(response.get("Error", {}).get("Message", "") or exc).split())
    told = told.partition(" Encoded authorization failure message")[0]
    return f"{_code(exc)}: {told}".removeprefix(": ")


def _last(arn: str | None) -> str:
    return (arn or "").rpartition("/")[2]


def _tags(instance: Mapping[str, Any]) -> dict[str, str]:
    return {one["Key"]: one["Value"] for one in instance.get("Tags", [])}
