"""Which worker type of a YAML an image can be made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spotray.cluster.node_types import cloud_of, disk_of, mapping, node_types
from spotray.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class BakedType:
    """A worker type and where its nodes are."""

    name: str
    cluster: str
    region: str


def baked_type(config: Any, name: str | None) -> BakedType:
    """The worker type of that name, or the only one.

    Raises:
        ConfigError: it is not on AWS, there is no such type, or its environment is not on the
            boot disk.
    """
    if not isinstance(config, Mapping) or cloud_of(config) != "aws":
        raise ConfigError("images are made on AWS only: on GCP take reuse: boot or a data_disk")
    workers = [one.name for one in node_types(config) if not one.is_head]
    if name is None and len(workers) > 1:
        raise ConfigError(f"which worker type? Add --node-type {' or '.join(workers)}")
    if not workers or (name is not None and name not in workers):
        raise ConfigError(f"no worker type {name!r}: take one of {', '.join(workers)}")
    chosen = name or workers[0]
    if disk_of(config, chosen):
        raise ConfigError(
            f"{chosen} has its environment on a data disk, where the next node finds it: an image "
            "of its boot disk would lack it"
        )
    region = mapping(config, "provider").get("region")
    cluster = config.get("cluster_name")
    if not isinstance(region, str) or not isinstance(cluster, str):
        raise ConfigError("provider.region and cluster_name are needed: write them")
    return BakedType(name=chosen, cluster=cluster, region=region)
