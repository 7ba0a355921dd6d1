"""The pools of workers of a cluster, as its YAML has them. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spotray.cluster.control import ControlConfig
from spotray.cluster.markets import DEFAULT_MEMORY, LaunchConfig
from spotray.cluster.node_types import accelerators, node_types
from spotray.controller.view import Pool
from spotray.errors import ConfigError
from spotray.policy.decision import LaunchPolicy
from spotray.policy.spot_first import SpotFirst

_OURS = "spotray.cluster."
_PREEMPTIBLE_LIFETIME_S = 24 * 3600.0  # of Google's older kind of spot
_CLOUDS = ("aws", "gcp", "azure")


@dataclass(frozen=True, kw_only=True)
class ClusterPools:
    """What the controller takes from a cluster's YAML."""

    cloud: str
    pools: Mapping[str, Pool]
    max_workers: int
    control: ControlConfig = field(default_factory=ControlConfig)
    policy: LaunchPolicy = field(default_factory=SpotFirst)
    memory: str = DEFAULT_MEMORY
    book: str = ""  # where the lives of its nodes are kept for other clusters; empty: nowhere
    zone: str = ""  # of nodes of which nobody says where they are
    instance_types: Mapping[str, str] = field(default_factory=dict)  # by node type, the same
    region: str = ""  # of all nodes, as a table of prices has it
    added: Mapping[str, str] = field(default_factory=dict)  # to a node type's machine, the same

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> ClusterPools:
        """Of a cluster's config, also the one that ``ray up`` leaves on the head.

        Raises:
            ConfigError: a key of ours is wrong, or the cloud is none that we know.
        """
        given = config.get("provider") or {}
        # `ray up` adds keys of its own, such as _config_cache_path.
        provider = {k: v for k, v in given.items() if not str(k).startswith("_")}
        cloud, is_ours = _cloud(provider)
        launch = LaunchConfig.parse(provider, cloud=cloud) if is_ours else LaunchConfig()
        zones = tuple(
            zone.strip()
            for zone in str(provider.get("availability_zone") or "").split(",")
            if zone.strip()
        )
        max_workers = int(config.get("max_workers", 2))  # Ray's own default
        pools: dict[str, Pool] = {}
        types: dict[str, str] = {}
        for name, node_type in (config.get("available_node_types") or {}).items():
            node_config = (node_type or {}).get("node_config") or {}
            types[name] = _instance_type(node_config)
            if name == config.get("head_node_type"):
                continue
            markets = launch.of(name)
            pools[name] = Pool(
                name=name,
                candidates=markets.candidates(cloud, zones, types[name]) if is_ours else (),
                max_workers=int((node_type or {}).get("max_workers", max_workers)),
                on_demand_floor=markets.on_demand_floor,
                # Our own provider launches none of that kind.
                lifetime_s=math.inf if is_ours else _lifetime_s(node_config),
            )
        return cls(
            cloud=cloud,
            pools=pools,
            max_workers=max_workers,
            control=launch.control,
            policy=launch.policy,
            memory=launch.memory,
            book=launch.book,
            zone=zones[0] if zones else "",
            instance_types=types,
            region=str(provider.get("region") or provider.get("location") or ""),
            added={one.name: accelerators(one) for one in node_types(config)},
        )


def _cloud(provider: Mapping[str, Any]) -> tuple[str, bool]:
    """The cloud, and whether a provider of ours launches the nodes."""
    module, kind = str(provider.get("module", "")), str(provider.get("type", ""))
    if kind == "external" and module.startswith(_OURS):
        return module.removeprefix(_OURS).partition(".")[0], True
    if kind in _CLOUDS:
        return kind, False
    raise ConfigError(
        f"provider {module or kind!r}: the controller knows spotray's own, "
        f"and Ray's for {', '.join(_CLOUDS)}"
    )


def _instance_type(node_config: Mapping[str, Any]) -> str:
    """Of any cloud's node_config."""
    azure = node_config.get("azure_arm_parameters") or {}
    named = node_config.get("InstanceType") or node_config.get("machineType") or azure.get("vmSize")
    return str(named or "unknown").rpartition("/")[2]


def _lifetime_s(node_config: Mapping[str, Any]) -> float:
    scheduling = node_config.get("scheduling") or {}
    parts = scheduling if isinstance(scheduling, list) else [scheduling]
    is_short = any(one.get("preemptible") for one in parts)
    return _PREEMPTIBLE_LIFETIME_S if is_short else math.inf
