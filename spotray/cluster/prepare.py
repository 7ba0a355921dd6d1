"""What a cluster's YAML names and `ray up` does not make: roles, placement groups."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from spotray.cluster.node_types import cloud_of, disk_of, mapping, node_types
from spotray.cluster.presets import PLACEHOLDERS
from spotray.cluster.render_aws import HEAD_PROFILE, WORKER_PROFILE
from spotray.errors import ConfigError

_BUCKET = re.compile(r"s3://([a-z0-9][a-z0-9.-]+)")


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What has to be there before `ray up`. Profiles of other names are the user's."""

    region: str
    head_profile: str | None
    worker_profile: str | None
    buckets: tuple[str, ...]
    placement_groups: tuple[str, ...]
    data_disks: bool = False


def needs_of(config: Mapping[str, Any]) -> Needs:
    """Read them out of a cluster's YAML.

    Raises:
        ConfigError: it is not for AWS, names no region, or a placeholder instead of a bucket.
    """
    if cloud_of(config) != "aws":
        raise ConfigError("nothing is to be prepared: only clusters on AWS need it")
    region = region_of(config)
    profiles = {mapping(one.config, "IamInstanceProfile").get("Name") for one in node_types(config)}
    buckets = tuple(dict.fromkeys(_BUCKET.findall(json.dumps(config, default=str))))
    for bucket in buckets:
        if bucket in PLACEHOLDERS:
            raise ConfigError(
                f"s3://{bucket} stands for a bucket of yours: render the file again with "
                "--storage s3://BUCKET/PATH"
            )
    return Needs(
        region=region,
        head_profile=HEAD_PROFILE if HEAD_PROFILE in profiles else None,
        worker_profile=WORKER_PROFILE if WORKER_PROFILE in profiles else None,
        buckets=buckets,
        placement_groups=placement_groups(config),
        data_disks=any(disk_of(config, one.name) for one in node_types(config)),
    )


def region_of(config: Mapping[str, Any]) -> str:
    """Where a cluster's YAML wants it.

    Raises:
        ConfigError: it does not say.
    """
    region = mapping(config, "provider").get("region")
    if not isinstance(region, str):
        raise ConfigError("provider.region is missing: write it")
    return region


def placement_groups(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Those that node types name, each once."""
    named = [mapping(one.config, "Placement").get("GroupName") for one in node_types(config)]
    return tuple(dict.fromkeys(one for one in named if isinstance(one, str)))


def prepare(needs: Needs) -> Iterator[str]:
    """Make what is missing; a line for each thing.

    Raises:
        ConfigError: the account does not take it.
    """
    from spotray.cloud.aws.placement import ensure_placement_group
    from spotray.cloud.aws.rights import prepare_rights

    if needs.head_profile or needs.worker_profile:
        yield from prepare_rights(
            head=needs.head_profile,
            workers=needs.worker_profile,
            buckets=needs.buckets,
            data_disks=needs.data_disks,
        )
    for group in needs.placement_groups:
        made = ensure_placement_group(group, region=needs.region)
        yield f"placement group {group} {'made' if made else 'is there'}"
