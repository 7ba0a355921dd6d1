"""What `spotray.cluster.preflight` asks in AWS's own way: images, roles, dry runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from spotray.cloud.account import Account, Limit, TypeOffer
from spotray.cluster.node_types import NodeType, mapping
from spotray.cluster.preflight_values import Findings, Wish, buckets_of
from spotray.cluster.render_aws import HEAD_PROFILE, WORKER_PROFILE
from spotray.errors import NotPermittedError, QuotaError

BUCKET = re.compile(r"s3://([a-z0-9][a-z0-9.-]+)")
BUCKET_CURE = "name a bucket of yours, or let these credentials read and write it"

_RAY_UP = (  # beside RunInstances, which is run dry
    "ec2:CreateTags",
    "ec2:TerminateInstances",
    "ec2:CreateKeyPair",
    "ec2:CreateSecurityGroup",
    "ec2:AuthorizeSecurityGroupIngress",
)
_HEAD = ("ec2:RunInstances", "ec2:CreateTags", "ec2:TerminateInstances", "ec2:DescribeInstances")
_OBJECTS = ("s3:GetObject", "s3:PutObject", "s3:DeleteObject")


def account_of(config: Mapping[str, Any]) -> Account:
    """The account that `ray up` would use.

    Raises:
        ConfigError: there is no way to it.
    """
    from spotray.cloud.aws.account import AwsAccount, session_of

    provider = mapping(config, "provider")
    return AwsAccount(
        str(provider.get("region")),
        cluster_name=str(config.get("cluster_name", "")),
        session=session_of(mapping(provider, "aws_credentials")),
    )


def images(node: NodeType) -> Iterator[tuple[str, str]]:
    """The images that a node type names, each with its path."""
    one = str(node.config.get("ImageId") or "")
    if one and one.lower() != "latest_dlami":  # Ray's word for its own choice
        yield f"{node.path}.node_config.ImageId", one


def added_limits(node: NodeType, account: Account, *, spot: bool) -> Sequence[Limit]:
    """Quotas of what is added to an instance type: nothing is, here."""
    return ()


def expected(wish: Wish) -> dict[str, list[str]]:
    """What a running node of a node type would be like: fact -> one of these."""
    config, facts = wish.node.config, {"InstanceType": wish.types}
    image = str(config.get("ImageId", ""))
    if image.startswith("ami-"):  # any other reference stands for an image of its day
        facts["ImageId"] = [image]
    if profile := profile_of(wish.node):
        facts["IamInstanceProfile"] = [profile]
    return facts


def profile_of(node: NodeType) -> str:
    """The name of its instance profile; empty if it has none."""
    given = mapping(node.config, "IamInstanceProfile")
    return str(given.get("Name") or str(given.get("Arn", "")).rpartition("/")[2])


def check_rights(
    config: Mapping[str, Any],
    wishes: Sequence[Wish],
    offers: Mapping[tuple[str, str], TypeOffer],
    account: Any,
    found: Findings,
) -> None:
    """Instance profiles, what their roles may, and what these credentials may.

    ``account``: an `spotray.cloud.aws.account.AwsAccount`.
    """
    roles = _roles(wishes, account, found)
    for wish in wishes:
        if not wish.types or not any(one == wish.types[0] for one, _ in offers):
            continue  # that it is not offered was told
        if profile_of(wish.node) and roles.get(wish.node.name) is None:
            continue  # nor can it be launched without its profile
        _run_dry(wish, account, found)
    what = "what these credentials may do was"
    with found.asking("provider", what):
        if denied := account.denied(_RAY_UP):
            cure = "let somebody allow it in IAM"
            found.add("provider", f"these credentials may not {', '.join(denied)}", cure)
    _check_roles(config, wishes, roles, account, found)
    spots = [wish.node for wish in wishes if any(market.spot for market in wish.markets)]
    for node in spots[:1]:
        path = f"{node.path}.node_config"
        with found.asking(path, "EC2's role for spot was"):
            if not account.has_spot_role():
                found.add(
                    path,
                    "this account never had a spot node: the head may not make EC2's role for it",
                    "say `spotray cluster prepare FILE`, or launch one spot node by hand",
                )


def _roles(wishes: Sequence[Wish], account: Any, found: Findings) -> dict[str, str]:
    """The roles of the node types, by name, as far as they are there."""
    roles = {}
    for wish in wishes:
        if not (profile := profile_of(wish.node)):
            continue
        path = f"{wish.node.path}.node_config.IamInstanceProfile"
        with found.asking(path, f"instance profile {profile} was"):
            role = account.role_of(profile)
            if role:
                roles[wish.node.name] = role
            elif profile in (HEAD_PROFILE, WORKER_PROFILE):
                found.add(path, f"there is no {profile}", "say `spotray cluster prepare FILE` once")
            else:
                what = f"{profile} has no role" if role == "" else f"there is no {profile}"
                found.add(path, what, "make it in IAM, or name another")
    return roles


def _run_dry(wish: Wish, account: Any, found: Findings) -> None:
    path = f"{wish.node.path}.node_config"
    node_config = {**wish.node.config, "InstanceType": wish.types[0]}
    with found.asking(path, "whether it could be launched was"):
        code, words = account.dry_run(node_config, spot=wish.markets[0].spot)
        if not code or code.startswith("InvalidAMIID"):  # which was told
            return
        kind = account.class_of(code)
        if kind is NotPermittedError:
            cure = "let somebody allow ec2:RunInstances and iam:PassRole"
            found.add(
                "provider", f"these credentials may launch no {wish.node.name}: {words}", cure
            )
        elif kind is QuotaError:
            found.add(path, words, "ask AWS for more")
        else:
            found.add(path, words, "that is what EC2 would say: correct the entry")


def _check_roles(
    config: Mapping[str, Any],
    wishes: Sequence[Wish],
    roles: Mapping[str, str],
    account: Any,
    found: Findings,
) -> None:
    """What the head and the workers may, once they run."""
    workers = {roles[one.node.name] for one in wishes if one.node.name in roles} - {
        roles[one.node.name] for one in wishes if one.node.is_head and one.node.name in roles
    }
    for wish in wishes:
        role = roles.get(wish.node.name)
        if role is None:
            continue
        path = f"{wish.node.path}.node_config.IamInstanceProfile"
        with found.asking(path, f"what {profile_of(wish.node)} may do was"):
            denied = account.denied(_HEAD, principal=role) if wish.node.is_head else []
            for worker in sorted(workers) if wish.node.is_head else ():
                denied += account.denied(["iam:PassRole"], principal=role, resource=worker)
            for bucket in buckets_of(config, BUCKET):
                arn = f"arn:aws:s3:::{bucket}/*"
                denied += account.denied(_OBJECTS, principal=role, resource=arn)
            if denied:
                what = f"its role may not {', '.join(dict.fromkeys(denied))}"
                found.add(path, what, "say `spotray cluster prepare FILE`, or allow it in IAM")
