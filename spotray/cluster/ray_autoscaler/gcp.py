"""Ray's node provider for Compute Engine, opened where spotray decides.

Leans on these private parts of `GCPNodeProvider`: that a `GCPCompute` is one zone, that
``self.resources`` is listed through and ``_get_resource_depending_on_node_name`` asked for
the one of a node, and that ``create_instance`` and its like start an operation without
waiting for it.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from ray.autoscaler._private.gcp.config import construct_clients_from_provider_config
from ray.autoscaler._private.gcp.node import GCPCompute
from ray.autoscaler._private.gcp.node_provider import GCPNodeProvider
from ray.autoscaler._private.providers import _load_gcp_defaults_config

from spotray.clock import Clock
from spotray.cloud.gcp.errors import foreign_errors, operation_error
from spotray.cluster.ray_autoscaler.seams import with_defaults

log = logging.getLogger(__name__)

_POLL_S = 1.0
_OPERATION_S = 90.0  # what takes longer is left to come up, and seen in the next listing
_GONE = 404


class OpenGCPNodeProvider(GCPNodeProvider):
    """`GCPNodeProvider` over several zones, with one instances.insert at a time."""

    def __init__(
        self,
        provider_config: dict[str, Any],
        cluster_name: str,
        *,
        zones: tuple[str, ...],
        compute: Any,
        clock: Clock,
    ) -> None:
        """As Ray's.

        Args:
            provider_config: of the YAML.
            cluster_name: of the YAML.
            zones: where nodes may be.
            compute: the client of the compute API; None: as Ray makes it.
            clock: waits for operations.
        """
        self._compute, self._zones, self._waits = compute, zones, clock
        self._refusals: tuple[type[Exception], ...] = (OSError, *foreign_errors())
        super().__init__(provider_config, cluster_name)
        self._ray: Any = super()  # its methods are untyped, all of them

    def _construct_clients(self) -> None:
        compute = self._compute
        if compute is None:
            _, _, compute, _ = construct_clients_from_provider_config(self.provider_config)
        project = self.provider_config["project_id"]
        self.resources: dict[Any, Any] = {
            zone: GCPCompute(compute, project, zone, self.cluster_name) for zone in self._zones
        }

    def _get_resource_depending_on_node_name(self, node_name: str) -> Any:
        """The zone that a node is in: from the last listing, else by asking each.

        A node that no zone has is looked for in the first: Ray then gets Google's own answer.
        """
        with self.lock:
            if (node := self.cached_nodes.get(node_name)) is not None:
                return node.resource
        for resource in self.resources.values():
            if self._found(resource, node_name) is not None:
                return resource
        return next(iter(self.resources.values()))

    def insert(
        self, zone: str, node_config: Mapping[str, Any], labels: Mapping[str, str], count: int
    ) -> dict[str, Any]:
        """Up to ``count`` instances in a zone, at least one; raises the first refusal if none.

        Several are asked for before the first is waited for, and Ray's lock is not held
        meanwhile: its listing goes on.
        """
        resource, begun = self.resources[zone], []
        refused: Exception | None = None
        for _ in range(count):
            try:
                begun.append(
                    resource.create_instance(
                        disks_in(zone, node_config), dict(labels), wait_for_operation=False
                    )
                )
            except self._refusals as exc:
                if not begun:
                    raise
                refused = exc  # the account's limit, most likely: what has begun still counts
                break
        return self._came_up(resource, begun, count, refused)

    def start(
        self, zone: str, instances: Iterable[Any], labels: Mapping[str, str]
    ) -> dict[str, Any]:
        """Start stopped instances anew, at least one; raises the first refusal if none.

        ``labels`` are added to those that they have: Ray's updater goes by them.
        """
        resource, begun = self.resources[zone], []
        refused: Exception | None = None
        wanted = list(instances)
        for one in wanted:
            try:
                resource.set_labels(one, dict(labels), wait_for_operation=False)
                name = one["name"]
                begun.append((resource.start_instance(name, wait_for_operation=False), name))
            except self._refusals as exc:
                refused = refused or exc
        return self._came_up(resource, begun, len(wanted), refused)

    def stopped(self, zone: str, labels: Mapping[str, str]) -> dict[str, Any]:
        """The instances of the cluster that are stopped and carry these labels, by name."""
        found = self.resources[zone].list_instances(dict(labels), True)
        return {one["name"]: one for one in found if one["status"] == "TERMINATED"}

    def stop(self, node_id: str) -> None:
        """Stop an instance; one that is gone already is no error. Returns before it stands."""
        self._end(node_id, "stop_instance")

    def _came_up(
        self,
        resource: Any,
        begun: Iterable[tuple[Mapping[str, Any], str]],
        count: int,
        refused: Exception | None,
    ) -> dict[str, Any]:
        """What the operations that have begun brought up; raises the first refusal if nothing."""
        made = {}
        for operation, name in begun:
            done = self._done(resource, operation)
            if (error := operation_error(done)) is None:
                made[name] = done
            else:
                refused = refused or error
        if refused is not None:
            if not made:
                raise refused
            zone = resource.availability_zone
            log.info("%s: %d of %d nodes: %s", zone, len(made), count, refused)
        return made

    def _done(self, resource: Any, operation: Mapping[str, Any]) -> Mapping[str, Any]:
        """An operation's last state: done, failed, or still running when time was up."""
        until_s = self._waits.now_s() + _OPERATION_S
        state: Mapping[str, Any] = operation
        while self._waits.now_s() < until_s:
            try:
                state = (
                    resource.resource.zoneOperations()
                    .get(
                        project=resource.project_id,
                        operation=operation["name"],
                        zone=resource.availability_zone,
                    )
                    .execute(http=resource.get_new_authorized_http(resource.resource._http))
                )
            except self._refusals as exc:  # the question failed, not the operation
                log.info("%s: asking on for %s: %s", resource.availability_zone, operation, exc)
            if "error" in state or state.get("status") == "DONE":
                break
            self._waits.sleep(_POLL_S)
        return state

    def list_nodes(self, tag_filters: Mapping[str, str]) -> dict[str, Any]:
        """The instances that run or are about to, by name, in all zones."""
        ids = self._ray.non_terminated_nodes(dict(tag_filters))
        with self.lock:
            listed = dict(self.cached_nodes)
        return {node_id: listed[node_id] for node_id in ids if node_id in listed}

    def instance(self, node_id: str) -> Any:
        """The instance of a name, as last listed if it was."""
        return self._ray._get_cached_node(node_id)

    def found_now(self, node_id: str, zone: str) -> Any:
        """The instance as it is now, also a stopped one; None if it is gone."""
        return self._found(self.resources[zone], node_id)

    def operations_on(self, instance: Mapping[str, Any], zone: str) -> list[str]:
        """What was done to an instance since it was last started: "insert", "delete", ..."""
        resource = self.resources[zone]
        answer = (
            resource.resource.zoneOperations()
            .list(project=resource.project_id, zone=zone, filter=f"(targetId = {instance['id']})")
            .execute(http=resource.get_new_authorized_http(resource.resource._http))
        )
        done = sorted(answer.get("items", []), key=lambda one: str(one.get("insertTime", "")))
        kinds = [str(one.get("operationType", "")) for one in done]
        lives = [index for index, kind in enumerate(kinds) if kind == "start"]
        return kinds[lives[-1] :] if lives else kinds

    def delete(self, node_id: str) -> None:
        """End an instance; one that is gone already is no error. Returns before it is gone."""
        self._end(node_id, "delete_instance")

    def _end(self, node_id: str, how: str) -> None:
        from googleapiclient.errors import HttpError

        resource = self._get_resource_depending_on_node_name(node_id)
        try:
            getattr(resource, how)(node_id=node_id, wait_for_operation=False)
        except HttpError as exc:
            if exc.resp.status != _GONE:
                raise

    @staticmethod
    def _found(resource: Any, node_id: str) -> Any:
        from googleapiclient.errors import HttpError

        try:
            return resource.get_instance(node_id)
        except HttpError as exc:
            if exc.resp.status == _GONE:
                return None
            raise


def disks_in(zone: str, node_config: Mapping[str, Any]) -> dict[str, Any]:
    """A node's description with its short disk types as Google wants them: with a zone.

    Ray does the same for machine types, and a config of several zones can name none.
    """
    conf = copy.deepcopy(dict(node_config))
    for disk in conf.get("disks") or ():
        params = disk.get("initializeParams") or {}
        if (kind := params.get("diskType")) and "/" not in kind:
            params["diskType"] = f"zones/{zone}/diskTypes/{kind}"
    return conf


def filled_out(config: Mapping[str, Any]) -> dict[str, Any]:
    """A cluster config with Ray's defaults for Compute Engine.

    Not its command for the head, which installs a client of 2018 that today's Python refuses.
    """
    whole = with_defaults({"head_setup_commands": [], **config}, _load_gcp_defaults_config())
    filled: dict[str, Any] = GCPNodeProvider.fillout_available_node_types_resources(whole)
    return filled


def bootstrapped(config: dict[str, Any]) -> dict[str, Any]:
    """A filled-out config with what Ray makes or finds in the project."""
    made: dict[str, Any] = GCPNodeProvider.bootstrap_config(config)
    return made
