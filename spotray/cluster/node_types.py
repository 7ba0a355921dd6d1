"""The node types of any cluster YAML, read into plain values: what the lint looks at."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spotray.market import catalog

OUR_MODULES = {
    "spotray.cluster.aws.SpotNodeProvider": "aws",
    "spotray.cluster.gcp.SpotNodeProvider": "gcp",
}


@dataclass(frozen=True, kw_only=True)
class NodeType:
    """An entry of ``available_node_types``."""

    name: str
    cloud: str
    is_head: bool
    config: Mapping[str, Any]  # node_config
    given: Mapping[str, Any]  # the whole entry

    @property
    def path(self) -> str:
        return f"available_node_types.{self.name}"

    @property
    def instance_type(self) -> str:
        """As the cloud calls it; empty if the entry names none."""
        key = {"aws": "InstanceType", "gcp": "machineType"}.get(self.cloud, "vmSize")
        where = mapping(self.config, "azure_arm_parameters") if key == "vmSize" else self.config
        return str(where.get(key) or "").rpartition("/")[2]

    @property
    def instance_type_path(self) -> str:
        """Where that stands."""
        key = {"aws": "InstanceType", "gcp": "machineType"}.get(
            self.cloud, "azure_arm_parameters.vmSize"
        )
        return f"{self.path}.node_config.{key}"

    @property
    def spot_path(self) -> str:
        """Where the entry asks for spot; empty if it does not."""
        if self.cloud == "aws":
            options = mapping(self.config, "InstanceMarketOptions")
            asks, key = options.get("MarketType") == "spot", "InstanceMarketOptions"
        elif self.cloud == "gcp":
            scheduling = self.config.get("scheduling")
            entries = scheduling if isinstance(scheduling, list) else [scheduling]
            asks = any(
                isinstance(one, Mapping)
                and (one.get("preemptible") or one.get("provisioningModel") == "SPOT")
                for one in entries
            )
            key = "scheduling"
        else:
            asks = mapping(self.config, "azure_arm_parameters").get("priority") == "Spot"
            key = "azure_arm_parameters.priority"
        return f"{self.path}.node_config.{key}" if asks else ""

    @property
    def gpus(self) -> int | None:
        """How many a node has, or None where that is not known."""
        return self.gpus_of(self.instance_type)

    def gpus_of(self, instance_type: str) -> int | None:
        """How many it would have if it were of another type: with those that GCP adds."""
        known = catalog.find(self.cloud, instance_type)
        if known is None:
            return None
        added = self.config.get("guestAccelerators") if self.cloud == "gcp" else None
        listed = added if isinstance(added, list) else []
        counts = [one.get("acceleratorCount", 0) for one in listed if isinstance(one, Mapping)]
        return known.gpus + sum(one for one in counts if isinstance(one, int))


def cloud_of(config: Mapping[str, Any]) -> str:
    """The cloud whose nodes the config asks for; empty if the lint does not know it."""
    provider = mapping(config, "provider")
    kind = provider.get("type")
    if kind == "external":
        return OUR_MODULES.get(str(provider.get("module")), "")
    return str(kind) if kind in catalog.CLOUDS else ""


def node_types(config: Mapping[str, Any]) -> list[NodeType]:
    """All of them, as far as they are maps."""
    head, cloud = config.get("head_node_type"), cloud_of(config)
    return [
        NodeType(
            name=str(name),
            cloud=cloud,
            is_head=name == head,
            config=mapping(given, "node_config"),
            given=given,
        )
        for name, given in mapping(config, "available_node_types").items()
        if isinstance(given, Mapping)
    ]


def accelerators(one: NodeType) -> str:
    """What is added to a machine of Google's, as a price table names it: ``+nvidia-tesla-t4``."""
    listed = one.config.get("guestAccelerators") if one.cloud == "gcp" else None
    words = []
    for given in listed if isinstance(listed, list) else []:
        if isinstance(given, Mapping):
            count = given.get("acceleratorCount", 1)
            kind = str(given.get("acceleratorType", "")).rpartition("/")[2]
            words.append(kind if count == 1 else f"{count}x{kind}")
    return "".join(f"+{word}" for word in words)


def disk_of(config: Mapping[str, Any], node_type: str) -> Mapping[str, Any]:
    """The ``data_disk`` of a worker type, or an empty map."""
    markets = mapping(mapping(config, "provider"), "markets")
    return mapping(mapping(markets, node_type), "data_disk")


def zones(config: Mapping[str, Any]) -> list[str]:
    """The zones of ``provider.availability_zone``."""
    text = mapping(config, "provider").get("availability_zone")
    return [one.strip() for one in text.split(",")] if isinstance(text, str) else []


def zone_pattern(cloud: str, region: str) -> re.Pattern[str]:
    """What a zone of a region looks like."""
    last = {"aws": "[a-z]", "gcp": "-[a-z]"}[cloud]
    return re.compile(re.escape(region) + last)


def commands(config: Mapping[str, Any], *keys: str) -> list[tuple[str, str]]:
    """The shell commands of some lists, each with its path."""
    found = []
    for key in keys:
        listed = config.get(key)
        for index, text in enumerate(listed if isinstance(listed, list) else []):
            found.append((f"{key}[{index}]", str(text)))
    return found


def mapping(given: Any, key: str) -> Mapping[str, Any]:
    """The map under a key, or an empty one."""
    value = given.get(key) if isinstance(given, Mapping) else None
    return value if isinstance(value, Mapping) else {}
