"""The node provider for EC2 that chooses the market at every launch.

In a cluster's YAML: ``provider: {type: external, module: spotray.cluster.aws.SpotNodeProvider}``,
with the keys of `spotray.cluster.markets`. All else is as with Ray's own ``type: aws``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from spotray.clock import Clock
from spotray.cloud.aws.account import session_of
from spotray.cloud.aws.disks import EbsDisks
from spotray.cloud.aws.errors import CREDENTIALS_CURE, aws_errors, boto_errors
from spotray.cluster.disks.supply import DiskSupply
from spotray.cluster.launcher import launch_head
from spotray.cluster.market_nodes import MarketNodes, asked_plainly, refuse_if
from spotray.cluster.markets import LaunchConfig, check_node_types, check_provider
from spotray.cluster.node_types import mapping
from spotray.cluster.ray_autoscaler.aws import OpenAWSNodeProvider, bootstrapped, filled_out
from spotray.cluster.ray_autoscaler.seams import is_head, launch_failed, node_type_of
from spotray.cluster.vanished import Fate, Machine
from spotray.errors import ConfigError
from spotray.market.offer import Market

MARKET_TAG = "spotray-market"  # on each EC2 instance: what it was launched as
_NO_CREDENTIALS = (  # of botocore
    "NoCredentialsError",
    "PartialCredentialsError",
    "ProfileNotFound",
    "TokenRetrievalError",
    "UnauthorizedSSOTokenError",
)


class SpotNodeProvider(MarketNodes, OpenAWSNodeProvider):
    """Ray's nodes on EC2: spot first, on-demand when spot is out, the head always on-demand."""

    def __init__(
        self, provider_config: dict[str, Any], cluster_name: str, *, clock: Clock | None = None
    ) -> None:
        """As Ray calls it; ``clock`` is for tests.

        Raises:
            ConfigError: an unknown key or a wrong value in ``provider_config``.
        """
        self._begin("aws", provider_config, clock=clock, foreign=boto_errors())
        super().__init__({**provider_config, "cache_stopped_nodes": False}, cluster_name)
        self.data_disks = DiskSupply(
            self._config.data_disks,
            lambda: EbsDisks(
                provider_config["region"],
                session=session_of(mapping(provider_config, "aws_credentials")),
                clock=self._clock,
            ),
            cluster=cluster_name,
            tell=self._tell,
            clock=self._clock,
            no_right="`spotray cluster prepare` gives the head that right",
            foreign=boto_errors(),
        )
        self._zones: dict[str, str] = {}  # subnet id -> zone

    # -- launches ------------------------------------------------------------

    def _create_node(
        self, node_config: dict[str, Any], tags: dict[str, str], count: int
    ) -> dict[str, Any]:
        if is_head(tags):
            return self._create_head(node_config, tags, count)
        try:
            subnets = self._subnets(node_config)
            return self._launch(
                lambda market, wanted: self._ask(market, wanted, node_config, tags, subnets),
                node_type=node_type_of(tags),
                zones=tuple(subnets),
                own_type=node_config["InstanceType"],
                count=count,
            )
        except self._unclear as exc:  # before any market was asked
            raise launch_failed(type(exc).__name__, str(exc)) from exc

    def _ask(
        self,
        market: Market,
        count: int,
        node_config: Mapping[str, Any],
        tags: Mapping[str, str],
        subnets: Mapping[str, str],
    ) -> dict[str, Any]:
        conf = {**node_config, "InstanceType": market.instance_type}
        options = conf.pop("InstanceMarketOptions", None) or {}
        conf["SubnetIds"] = [subnets[market.zone]]
        if market.spot:
            conf["InstanceMarketOptions"] = {**options, "MarketType": "spot"}
        with aws_errors(str(market)):
            return self.run_instances(conf, {**tags, MARKET_TAG: str(market)}, count)

    def _create_head(
        self, node_config: Mapping[str, Any], tags: Mapping[str, str], count: int
    ) -> dict[str, Any]:
        """On-demand, whatever the YAML says, in the first zone that has it."""
        conf = {key: value for key, value in node_config.items() if key != "InstanceMarketOptions"}
        with self._launching_head(on_spot=conf != node_config):
            subnets = self._subnets(conf)
            return launch_head(
                lambda market, wanted: self._ask(market, wanted, conf, tags, subnets),
                cloud="aws",
                zones=tuple(subnets),
                instance_type=conf["InstanceType"],
                count=count,
            )

    def _subnets(self, node_config: Mapping[str, Any]) -> dict[str, str]:
        """The first subnet of each zone, in the order of the config."""
        if interfaces := node_config.get("NetworkInterfaces"):
            subnet_ids = [interfaces[0]["SubnetId"]]  # the interface is in one zone for good
        else:
            subnet_ids = list(node_config["SubnetIds"])
        if unknown := [one for one in subnet_ids if one not in self._zones]:
            with aws_errors(f"aws/{self.provider_config['region']}"):
                found = self.ec2.meta.client.describe_subnets(SubnetIds=unknown)["Subnets"]
            self._zones.update((one["SubnetId"], one["AvailabilityZone"]) for one in found)
        subnets: dict[str, str] = {}
        for subnet_id in subnet_ids:
            subnets.setdefault(self._zones[subnet_id], subnet_id)
        return subnets

    # -- what became of the nodes --------------------------------------------

    @staticmethod
    def _market(instance: Any) -> Market:
        return Market(
            cloud="aws",
            zone=instance.placement["AvailabilityZone"],
            instance_type=instance.instance_type,
            spot=getattr(instance, "instance_lifecycle", None) == "spot",
        )

    def _machine(self, instance: Any) -> Machine:
        launched_s = instance.launch_time.timestamp()
        return Machine(market=self._market(instance), launched_s=launched_s)

    def _listed_tags(self, node_id: str, instance: Any) -> Mapping[str, str]:
        return self.tags_of(node_id)

    def _fate(self, node_id: str, machine: Machine) -> Fate:
        with aws_errors("aws"):
            answer = self.ec2.meta.client.describe_instances(InstanceIds=[node_id])
        found = [one for group in answer["Reservations"] for one in group["Instances"]]
        if not found:
            return Fate()
        why = str(found[0].get("StateReason", {}).get("Code", ""))
        # Client.*: a user's call, or the machine shut itself down. Server.Spot...: the cloud.
        return Fate(
            alive=found[0]["State"]["Name"] in ("pending", "running"),
            preempted=False if why.startswith("Client.") else None,
            why=why,
        )

    def terminate_node(self, node_id: str) -> Any:
        self._lookout.ending([node_id])
        return self._ray.terminate_node(node_id)

    def terminate_nodes(self, node_ids: list[str]) -> Any:
        self._lookout.ending(node_ids or [])
        listed = [] if self.data_disks.is_idle else set(node_ids or []) & self.cached_nodes.keys()
        if any(is_head(self.tags_of(node_id)) for node_id in listed):
            self.data_disks.end()  # `ray down`: the head goes with all others
        return self._ray.terminate_nodes(node_ids)

    # -- what Ray is told ----------------------------------------------------

    @staticmethod
    def fillout_available_node_types_resources(cluster_config: dict[str, Any]) -> dict[str, Any]:
        """Ray's defaults and the node types' resources; all problems of our keys at once."""
        provider = cluster_config.get("provider") or {}
        node_types = cluster_config.get("available_node_types") or {}
        refuse_if(
            [
                *check_provider(provider, cloud="aws"),
                *check_node_types(
                    provider, node_types, head_node_type=cluster_config.get("head_node_type", "")
                ),
            ]
        )
        config = LaunchConfig.parse(provider, cloud="aws")
        own = {name: one["node_config"].get("InstanceType") for name, one in node_types.items()}
        return asked_plainly(
            lambda: filled_out(
                cluster_config,
                lambda name: tuple(t for t in config.of(name).instance_types if t != own[name]),
            ),
            foreign=(ConfigError, ValueError, click.ClickException, *boto_errors()),
            words=_words,
        )

    @staticmethod
    def bootstrap_config(cluster_config: dict[str, Any]) -> dict[str, Any]:
        """Ray's: keys, groups and subnets; what EC2 refuses is one line."""
        return asked_plainly(
            lambda: bootstrapped(cluster_config), foreign=boto_errors(), words=_words
        )


def _words(exc: Exception) -> str:
    told = " ".join(str(exc).split())
    if type(exc).__name__ in _NO_CREDENTIALS:
        return f"no credentials that AWS takes: {told}: {CREDENTIALS_CURE}"
    return told
