"""The node provider for Compute Engine that chooses the market at every launch.

In a cluster's YAML: ``provider: {type: external, module: spotray.cluster.gcp.SpotNodeProvider}``,
with the keys of `spotray.cluster.markets`. ``availability_zone`` may name several zones of the
region. All else is as with Ray's own ``type: gcp``, save TPUs, which it does not launch.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from spotray.clock import Clock
from spotray.cloud.disks import Disks
from spotray.cloud.gcp.errors import (
    NO_CREDENTIALS,
    credential_errors,
    foreign_errors,
    gcp_errors,
)
from spotray.cluster.disks.boot import (
    LAUNCH_LABEL,
    REUSE_LABEL,
    StoppedNodes,
    labels_for,
    startable,
)
from spotray.cluster.disks.supply import DiskSupply
from spotray.cluster.launcher import launch_head
from spotray.cluster.market_nodes import MarketNodes, asked_plainly, refuse_if
from spotray.cluster.markets import check_node_types, check_provider
from spotray.cluster.node_types import mapping
from spotray.cluster.problems import Problem
from spotray.cluster.ray_autoscaler.gcp import OpenGCPNodeProvider, bootstrapped, filled_out
from spotray.cluster.ray_autoscaler.seams import (
    TAG_RAY_USER_NODE_TYPE,
    is_head,
    node_type_of,
)
from spotray.cluster.vanished import Fate, Machine
from spotray.errors import ConfigError, one_line
from spotray.market.offer import Market

log = logging.getLogger(__name__)

_GPU_FAMILIES = re.compile(r"[ag]\d+[a-z]?-")  # machine types that bring their GPUs with them
_ENDED_BY_A_PERSON = ("delete", "stop", "suspend")
_PREEMPTED = "compute.instances.preempted"


class SpotNodeProvider(MarketNodes, OpenGCPNodeProvider):
    """Ray's nodes on Compute Engine: spot first, on-demand when it is out, the head on-demand."""

    def __init__(
        self,
        provider_config: dict[str, Any],
        cluster_name: str,
        *,
        clock: Clock | None = None,
        compute: Any = None,
        disks: Disks | None = None,
    ) -> None:
        """As Ray calls it; ``clock``, ``compute`` (the API's client) and ``disks`` are for tests.

        Raises:
            ConfigError: an unknown key or a wrong value in ``provider_config``.
        """
        self._begin(
            "gcp", provider_config, clock=clock, foreign=foreign_errors(), unclear=(OSError,)
        )
        self.data_disks = DiskSupply(
            self._config.data_disks,
            lambda: disks or _disks(provider_config, self._clock),
            cluster=cluster_name,
            tell=self._tell,
            clock=self._clock,
            no_right="give the head's service account the role Compute Admin",
            foreign=(OSError, *foreign_errors(), *_disk_errors(self._config.data_disks)),
        )
        super().__init__(
            {**provider_config, "cache_stopped_nodes": False},
            cluster_name,
            zones=_zones(provider_config),
            compute=compute,
            clock=self._clock,
        )
        self._stopped: StoppedNodes | None = None
        if any(one.reuse for one in self._config.markets.values()):
            zones = _zones(provider_config)
            self._stopped = StoppedNodes(self, zones, tell=self._tell, clock=self._clock)

    # -- launches ------------------------------------------------------------

    def create_node(
        self, base_config: dict[str, Any], tags: dict[str, str], count: int
    ) -> dict[str, Any]:
        """Nodes where the policy says; a head on demand in the first zone that has it."""
        machine_type = _last(base_config["machineType"])
        zones = _zones(self.provider_config)
        if is_head(tags):
            asked = _plain(base_config.get("scheduling"))
            on_spot = bool(asked.get("preemptible")) or asked.get("provisioningModel") == "SPOT"
            with self._launching_head(on_spot=on_spot):
                return launch_head(
                    lambda market, wanted: self._ask(market, wanted, base_config, tags),
                    cloud="gcp",
                    zones=zones,
                    instance_type=machine_type,
                    count=count,
                )
        return self._launch(
            lambda market, wanted: self._ask(market, wanted, base_config, tags),
            node_type=node_type_of(tags),
            zones=zones,
            own_type=machine_type,
            count=count,
        )

    def _ask(
        self, market: Market, count: int, node_config: Mapping[str, Any], tags: Mapping[str, str]
    ) -> dict[str, Any]:
        conf = {
            **node_config,
            "machineType": market.instance_type,
            "scheduling": _scheduling(node_config, market),
        }
        if not market.spot or not self._is_reused(tags):
            with gcp_errors(str(market)):
                return self.insert(market.zone, conf, tags, count)
        conf["scheduling"]["instanceTerminationAction"] = "STOP"
        made = self._restarted(market, count, tags)
        if len(made) < count:
            try:
                with gcp_errors(str(market)):
                    labels = {**tags, **labels_for(self.cluster_name)}
                    made |= self.insert(market.zone, conf, labels, count - len(made))
            except self._unclear as exc:
                if not made:
                    raise
                log.info("%s: %d of %d nodes, started again: %s", market, len(made), count, exc)
        return made

    def _restarted(self, market: Market, count: int, tags: Mapping[str, str]) -> dict[str, Any]:
        """Stopped nodes of this market that were started again; none is no refusal."""
        mine = {REUSE_LABEL: "boot", TAG_RAY_USER_NODE_TYPE: node_type_of(tags)}
        try:
            with gcp_errors(str(market)):
                chosen = startable(
                    self.stopped(market.zone, mine),
                    instance_type=market.instance_type,
                    launch_config=tags.get(LAUNCH_LABEL, ""),
                    count=count,
                )
                return self.start(market.zone, chosen, tags)
        except ConfigError as exc:  # somebody deleted it, perhaps: a new node will do
            log.info("%s: no stopped node is started: %s", market, exc)
            return {}

    def _is_reused(self, tags: Mapping[str, str]) -> bool:
        return not is_head(tags) and self._config.of(node_type_of(tags)).reuse == "boot"

    # -- what became of the nodes --------------------------------------------

    @staticmethod
    def _market(instance: Any) -> Market:
        scheduling = instance.get("scheduling") or {}
        return Market(
            cloud="gcp",
            zone=_last(instance["zone"]),
            instance_type=_last(instance["machineType"]),
            spot=scheduling.get("provisioningModel") == "SPOT"
            or bool(scheduling.get("preemptible")),
        )

    def _machine(self, instance: Any) -> Machine:
        launched_s = datetime.fromisoformat(instance["creationTimestamp"]).timestamp()
        return Machine(market=self._market(instance), launched_s=launched_s, listed_as=instance)

    def _listed_tags(self, node_id: str, instance: Any) -> Mapping[str, str]:
        return dict(instance.get("labels", {}))

    def _sweep(self) -> None:
        super()._sweep()
        if self._stopped is not None:
            try:
                self._stopped.sweep()
            except self._unclear as exc:  # it looks again
                log.info("stopped nodes stay for now: %s", exc)

    def _fate(self, name: str, machine: Machine) -> Fate:
        zone = machine.market.zone
        with gcp_errors(f"gcp/{zone}"):
            now = self.found_now(name, zone)
            known = machine.listed_as or now  # neither: it was gone before any listing
            done = self.operations_on(known, zone) if known is not None else []
        status = "" if now is None else str(now.get("status", ""))
        if status in ("PROVISIONING", "STAGING", "RUNNING"):
            return Fate(alive=True)
        if _PREEMPTED in done:
            return Fate(preempted=True, why=_PREEMPTED)
        ended = [what for what in done if what in _ENDED_BY_A_PERSON]
        return Fate(preempted=False if ended else None, why=", ".join(ended) or status)

    def terminate_node(self, node_id: str) -> None:
        """End a node, or stop it for the next launch; one that is gone already is no error."""
        self._lookout.ending([node_id])
        if self._is_reused(self._tags_of(node_id)) and self.market_of(node_id).spot:
            self.stop(node_id)
        else:
            self.delete(node_id)

    def terminate_nodes(self, node_ids: list[str]) -> None:
        """End nodes; with the head, which is `ray down`, also what was kept for later."""
        if not any(is_head(self._tags_of(node_id)) for node_id in node_ids):
            for node_id in node_ids:
                self.terminate_node(node_id)
            return
        self.data_disks.end()
        self._lookout.ending(node_ids)
        if self._stopped is not None:
            try:
                self._stopped.end()
            except self._unclear as exc:
                log.warning(
                    "stopped nodes may stay behind and cost money: %s: `spotray cluster disks "
                    "delete` deletes them",
                    exc,
                )
        for node_id in node_ids:
            self.delete(node_id)

    def _tags_of(self, node_id: str) -> Mapping[str, str]:
        """A node's labels where something may be kept of it; none for one that is gone."""
        if self.data_disks.is_idle and self._stopped is None:
            return {}
        try:
            return dict(self.node_tags(node_id))
        except self._unclear as exc:
            log.info("nobody knows %s any more: %s", node_id, exc)
            return {}

    # -- what Ray is told ----------------------------------------------------

    @staticmethod
    def fillout_available_node_types_resources(cluster_config: dict[str, Any]) -> dict[str, Any]:
        """Ray's defaults; all problems of our keys at once."""
        provider = cluster_config.get("provider") or {}
        node_types = cluster_config.get("available_node_types") or {}
        refuse_if(
            [
                *check_provider(provider, cloud="gcp"),
                *(
                    Problem(path=f"provider.{key}", what="is missing", cure="write it")
                    for key in ("project_id", "region", "availability_zone")
                    if not provider.get(key)
                ),
                *check_node_types(
                    provider,
                    node_types,
                    head_node_type=cluster_config.get("head_node_type", ""),
                    own_type=lambda config: _last(config.get("machineType", "")),
                ),
            ]
        )
        return filled_out(cluster_config)

    @staticmethod
    def bootstrap_config(cluster_config: dict[str, Any]) -> dict[str, Any]:
        """Ray's: keys, a service account, subnets; what Google refuses is one line."""
        return asked_plainly(
            lambda: bootstrapped(cluster_config),
            foreign=(*foreign_errors(), *credential_errors()),
            words=_words,
        )


def _words(exc: Exception) -> str:
    if isinstance(exc, credential_errors()):
        return f"{NO_CREDENTIALS} ({one_line(exc, 200)})"
    return " ".join(str(exc).split())


def _disks(provider_config: Mapping[str, Any], clock: Clock) -> Disks:
    from spotray.cloud.gcp.account import credentials_of
    from spotray.cloud.gcp.disks import PersistentDisks

    return PersistentDisks(
        provider_config["project_id"],
        provider_config["region"],
        credentials=credentials_of(mapping(provider_config, "gcp_credentials")),
        clock=clock,
    )


def _disk_errors(wanted: Mapping[str, Any]) -> tuple[type[Exception], ...]:
    """Of the library for disks, which is asked for only where there are some."""
    if not wanted:
        return ()
    from spotray.cloud.gcp.disks import api_errors

    try:
        return api_errors()
    except ImportError as exc:
        path = f"provider.markets.{next(iter(wanted))}.data_disk"
        cure = "install spotray[gcp], which brings google-cloud-compute"
        raise ConfigError(f"{path}: {exc}: {cure}") from exc


def _scheduling(node_config: Mapping[str, Any], market: Market) -> dict[str, Any]:
    """``scheduling`` of an instance in this market, with what the YAML says besides."""
    given = _plain(node_config.get("scheduling"))
    if market.spot:
        own = {"instanceTerminationAction": "DELETE", **given}
        own.pop("preemptible", None)  # the older kind, which ends after 24 hours
        return {
            **own,
            "provisioningModel": "SPOT",
            "automaticRestart": False,
            "onHostMaintenance": "TERMINATE",
        }
    own = {key: value for key, value in given.items() if key != "preemptible"}
    if own.get("provisioningModel") == "SPOT":
        del own["provisioningModel"]
    if "maxRunDuration" not in own:  # an on-demand node ends by itself only if the YAML says when
        own.pop("instanceTerminationAction", None)
    if node_config.get("guestAccelerators") or _GPU_FAMILIES.match(market.instance_type):
        own["onHostMaintenance"] = "TERMINATE"  # a node with a GPU cannot move
    return own


def _plain(scheduling: Any) -> dict[str, Any]:
    """``scheduling`` as one map: Ray's own examples write a list of maps."""
    if isinstance(scheduling, list):
        return {key: value for one in scheduling for key, value in one.items()}
    return dict(scheduling or {})


def _zones(provider_config: Mapping[str, Any]) -> tuple[str, ...]:
    given = str(provider_config.get("availability_zone") or "")
    return tuple(zone.strip() for zone in given.split(",") if zone.strip())


def _last(url: str) -> str:
    """The name at the end of a resource's URL, or the name itself."""
    return str(url).rpartition("/")[2]
