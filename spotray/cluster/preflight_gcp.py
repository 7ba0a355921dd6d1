"""What `spotray.cluster.preflight` asks in Google's own way: images, added GPUs, permissions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from spotray.cloud.account import Account, Limit, TypeOffer
from spotray.cluster.node_types import NodeType, mapping
from spotray.cluster.preflight_values import Findings, Wish

BUCKET = re.compile(r"gs://([a-z0-9][a-z0-9._-]+)")
BUCKET_CURE = "name a bucket of yours, or take the role Storage Object Admin on it"

_RAY_UP = (  # what Ray calls with the credentials of who says `ray up`
    "compute.instances.create",
    "compute.instances.delete",
    "compute.instances.list",
    "compute.instances.setLabels",
    "compute.disks.create",
    "compute.subnetworks.use",
    "compute.projects.setCommonInstanceMetadata",
    "iam.serviceAccounts.actAs",
    "iam.serviceAccounts.create",
    "resourcemanager.projects.setIamPolicy",
)


def account_of(config: Mapping[str, Any]) -> Account:
    """The project that `ray up` would use.

    Raises:
        ConfigError: there is no way to it.
    """
    from spotray.cloud.gcp.account import GcpAccount, credentials_of

    provider = mapping(config, "provider")
    return GcpAccount(
        str(provider.get("project_id")),
        str(provider.get("region")),
        cluster_name=str(config.get("cluster_name", "")),
        credentials=credentials_of(mapping(provider, "gcp_credentials")),
    )


def images(node: NodeType) -> Iterator[tuple[str, str]]:
    """The images that a node type names, each with its path."""
    disks = node.config.get("disks")
    for index, disk in enumerate(disks if isinstance(disks, list) else []):
        if one := mapping(disk, "initializeParams").get("sourceImage"):
            path = f"{node.path}.node_config.disks[{index}].initializeParams.sourceImage"
            yield path, str(one)


def added_limits(node: NodeType, account: Any, *, spot: bool) -> Sequence[Limit]:
    """The quotas of the GPUs that are added to a machine type."""
    return [
        limit
        for kind, count, _ in _added(node)
        for limit in account.gpu_limits(kind, count, spot=spot)
    ]


def expected(wish: Wish) -> dict[str, list[str]]:
    """What a running node of a node type would be like: fact -> one of these."""
    return {"machineType": wish.types}


def check_rights(
    config: Mapping[str, Any],
    wishes: Sequence[Wish],
    offers: Mapping[tuple[str, str], TypeOffer],
    account: Any,
    found: Findings,
) -> None:
    """Whether zones have the GPUs to add, and what these credentials may do.

    ``account``: a `spotray.cloud.gcp.account.GcpAccount`.
    """
    for wish in wishes:
        for kind, _, path in _added(wish.node):
            _check_added(wish, kind, path, account, found)
    with found.asking("provider", "what these credentials may do was"):
        if denied := account.denied(_RAY_UP):
            cure = "take the roles Compute Admin, Service Account Admin and Project IAM Admin"
            found.add("provider", f"these credentials may not {', '.join(denied)}", cure)


def _check_added(wish: Wish, kind: str, path: str, account: Any, found: Findings) -> None:
    named = list(dict.fromkeys(market.zone for market in wish.markets))
    with found.asking(path, f"whether zones have {kind} was"):
        there = [zone for zone in named if account.has_accelerator(kind, zone)]
        if not there:
            cure = "correct the name, or take other zones"
            found.add(path, f"{kind} does not exist or is not offered in {', '.join(named)}", cure)
        elif len(there) < len(named):
            missing = ", ".join(zone for zone in named if zone not in there)
            found.add(
                path,
                f"{kind} is offered in {', '.join(there)}, not in {missing}",
                "leave the zone out of provider.availability_zone",
                is_warning=True,
            )


def _added(node: NodeType) -> Iterator[tuple[str, int, str]]:
    """The GPUs that are added to a machine type: kind, how many, path."""
    listed = node.config.get("guestAccelerators")
    for index, one in enumerate(listed if isinstance(listed, list) else []):
        if isinstance(one, Mapping):
            kind = str(one.get("acceleratorType", "")).rpartition("/")[2]
            path = f"{node.path}.node_config.guestAccelerators[{index}].acceleratorType"
            yield kind, int(one.get("acceleratorCount", 0)), path
