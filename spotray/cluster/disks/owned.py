"""The disks that a cluster owns, from outside of it: listed with their cost, and deleted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from spotray.cloud.disks import Disk, Disks
from spotray.cluster.disks.choice import usd_per_month
from spotray.cluster.node_types import cloud_of, mapping
from spotray.errors import ConfigError, DiskNotFree


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the disks of a cluster are."""

    cluster: str
    cloud: str
    region: str
    project: str = ""  # GCP
    credentials: Mapping[str, Any] = field(default_factory=dict, repr=False)  # of its YAML


@dataclass(frozen=True, kw_only=True)
class OwnedDisk:
    """A disk as a person wants to see it."""

    disk: Disk
    unused_hours: float  # 0 if a node has it
    usd_per_month: float | None  # at list price


def place_of(config: Mapping[str, Any]) -> Place:
    """Where the disks of a cluster's YAML are.

    Raises:
        ConfigError: its cloud has none, or it does not say where it is.
    """
    cloud, provider = cloud_of(config), mapping(config, "provider")
    if cloud not in ("aws", "gcp"):
        raise ConfigError("clusters have data disks on AWS and GCP only")
    told = {
        "cluster_name": config.get("cluster_name"),
        "provider.region": provider.get("region"),
        **({"provider.project_id": provider.get("project_id")} if cloud == "gcp" else {}),
    }
    for key, value in told.items():
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{key} is missing: write it")
    return Place(
        cluster=str(told["cluster_name"]),
        cloud=cloud,
        region=str(told["provider.region"]),
        project=str(told.get("provider.project_id") or ""),
        credentials=mapping(provider, f"{cloud}_credentials"),
    )


def open_disks(place: Place) -> Disks:
    """The cloud's disks there, stopped nodes included, with the credentials of its YAML.

    Where that names none, with those of the environment.

    Raises:
        ConfigError: they are not of the form that Ray takes.
    """
    if place.cloud == "gcp":
        from spotray.cloud.gcp.account import credentials_of
        from spotray.cloud.gcp.kept import KeptDisks

        credentials = credentials_of(place.credentials)
        return KeptDisks(place.project, place.region, credentials=credentials)
    from spotray.cloud.aws.account import session_of
    from spotray.cloud.aws.disks import EbsDisks

    return EbsDisks(place.region, session=session_of(place.credentials))


@contextmanager
def plainly(place: Place) -> Iterator[None]:
    """What a cloud's SDK raises for a reason that nobody here knows, as an error of ours.

    Raises:
        ConfigError: with the SDK's own words.
    """
    if place.cloud == "gcp":
        from spotray.cloud.gcp.disks import api_errors as foreign
    else:
        from spotray.cloud.aws.errors import boto_errors as foreign
    try:
        yield
    except foreign() as exc:
        where = f"{place.cloud}/{place.region}"
        raise ConfigError(f"disks of {place.cluster} in {where}: {exc}") from exc


def owned(disks: Disks, cluster: str, *, now_s: float) -> list[OwnedDisk]:
    """All disks of a cluster, by zone and slot."""
    listed = sorted(disks.listed(cluster), key=lambda one: (one.zone, one.slot, one.disk_id))
    return [
        OwnedDisk(
            disk=one,
            unused_hours=0.0 if one.node else max(0.0, now_s - one.used_s) / 3600.0,
            usd_per_month=usd_per_month(one),
        )
        for one in listed
    ]


def unused(found: Iterable[OwnedDisk], *, hours: float) -> list[OwnedDisk]:
    """Those that no node has, and none has had for so long."""
    return [one for one in found if not one.disk.node and one.unused_hours >= hours]


def delete(disks: Disks, found: Iterable[OwnedDisk]) -> Iterator[tuple[OwnedDisk, str]]:
    """Delete disks, one after the other; each with why it stays, empty if it is gone."""
    for one in found:
        try:
            disks.delete(one.disk)
        except DiskNotFree as exc:
            yield one, str(exc)
        else:
            yield one, ""
