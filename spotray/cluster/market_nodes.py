"""What the node providers of all clouds share, mixed into Ray's own for each cloud.

One launch through the policy, what became of the workers, and what Ray is told of a node.
How one market is asked, and what the cloud says of a machine, is in the cloud's own file.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from spotray.clock import Clock, SystemClock
from spotray.cluster.disks.fit import with_data_disk
from spotray.cluster.disks.supply import DiskSupply
from spotray.cluster.launcher import Ask, Launcher, NothingLaunched
from spotray.cluster.markets import LaunchConfig
from spotray.cluster.memory import LaunchMemory
from spotray.cluster.problems import Problem
from spotray.cluster.ray_autoscaler.seams import (
    UpRefused,
    is_head,
    labels_of,
    launch_failed,
    node_type_of,
    of_type,
    with_true_labels,
)
from spotray.cluster.telling import Teller
from spotray.cluster.vanished import Fate, Lookout, Machine
from spotray.errors import SpotrayError
from spotray.market.offer import Market

log = logging.getLogger(__name__)


class MarketNodes:
    """The nodes of one cluster, each in the market that the policy chose.

    A cloud's provider calls `_begin` first, sets ``data_disks``, and gives what is
    abstract here.
    """

    data_disks: DiskSupply

    if TYPE_CHECKING:  # of the cloud's provider, which comes behind this one
        _ray: Any

        def list_nodes(self, tag_filters: Mapping[str, str]) -> dict[str, Any]: ...
        def instance(self, node_id: str) -> Any: ...
        def node_tags(self, node_id: str) -> dict[str, str]: ...

    def _begin(
        self,
        cloud: str,
        provider_config: Mapping[str, Any],
        *,
        clock: Clock | None,
        foreign: tuple[type[Exception], ...],
        unclear: tuple[type[Exception], ...] = (),
    ) -> None:
        """Read the config, and make what launches.

        Args:
            cloud: its name.
            provider_config: as Ray gives it.
            clock: tells the time.
            foreign: what the cloud's SDK raises: refusals for a reason that nobody here knows.
            unclear: what else may keep the cloud from answering.

        Raises:
            ConfigError: an unknown key or a wrong value in ``provider_config``.
        """
        self._cloud = cloud
        self._config = LaunchConfig.parse(provider_config, cloud=cloud)
        self._clock = clock or SystemClock()
        self._tell = Teller(cloud)
        self.memory = LaunchMemory(self._config.memory, clock=self._clock)
        self.launcher = Launcher(
            self._config.policy,
            self.memory,
            tell=self._tell,
            clock=self._clock,
            foreign=foreign,
        )
        self._lookout = Lookout(self.memory, tell=self._tell, clock=self._clock)
        self._unclear: tuple[type[Exception], ...] = (SpotrayError, *unclear, *foreign)

    def close(self) -> None:
        """Write what the journal has not got yet. Ray never asks for it: it ends its process."""
        self._tell.close()

    # -- launches ------------------------------------------------------------

    def _launch(
        self, ask: Ask, *, node_type: str, zones: tuple[str, ...], own_type: str, count: int
    ) -> dict[str, Any]:
        """Workers where the policy says; Ray's own error with the reasons if none came up."""
        candidates = self._config.of(node_type).candidates(self._cloud, zones, own_type)
        try:
            return self.launcher.launch(
                ask,
                node_type=node_type,
                candidates=self.data_disks.in_order(candidates, node_type),
                wanted=count,
                on_demand=self._floor_lacks(node_type),
            )
        except NothingLaunched as exc:
            raise launch_failed(exc.word, str(exc)) from exc

    def _floor_lacks(self, node_type: str) -> int:
        """On-demand workers of a type that are to be and are not."""
        floor = self._config.of(node_type).on_demand_floor
        if not floor:
            return 0
        there = self.list_nodes(of_type(node_type)).values()
        return max(0, floor - sum(not self._market(instance).spot for instance in there))

    @contextmanager
    def _launching_head(self, *, on_spot: bool) -> Iterator[None]:
        """Around the launch of the head; ``on_spot``: whether the YAML wants it there."""
        if on_spot:
            log.warning("the head is launched on-demand: a head on spot would end the cluster")
        try:
            yield
        except self._unclear as exc:
            # `ray up` prints this as one line, any other error as a traceback.
            raise click.ClickException(f"the head cannot be launched: {exc}") from exc

    # -- what became of the nodes --------------------------------------------

    def market_of(self, node_id: str) -> Market:
        """Where a node really is, as the cloud says."""
        return self._market(self.instance(node_id))

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        """Ray's listing, which also finds out what vanished since the last one."""
        if tag_filters:
            return list(self.list_nodes(tag_filters))
        ids: list[str] = []

        def workers() -> dict[str, Machine]:
            listed = self.list_nodes({})
            ids.extend(listed)
            heads = {
                node_id
                for node_id, instance in listed.items()
                if is_head(self._listed_tags(node_id, instance))
            }
            self._lookout.pass_over(heads)
            return {
                node_id: self._machine(instance)
                for node_id, instance in listed.items()
                if node_id not in heads
            }

        self._lookout.look(workers, self._fate_if_told)
        self._sweep()
        return ids

    def _fate_if_told(self, node_id: str, machine: Machine) -> Fate:
        try:
            return self._fate(node_id, machine)
        except self._unclear as exc:
            log.debug("no reason for the end of %s: %s", node_id, exc)
            return Fate()

    def _sweep(self) -> None:
        """Let go of what is kept for nodes that do not come."""
        self.data_disks.sweep()

    @staticmethod
    @abstractmethod
    def _market(instance: Any) -> Market:
        """Where an instance is, of those that `list_nodes` gives."""

    @abstractmethod
    def _machine(self, instance: Any) -> Machine:
        """An instance as the lookout takes it."""

    @abstractmethod
    def _listed_tags(self, node_id: str, instance: Any) -> Mapping[str, str]:
        """The tags of an instance, without asking the cloud again."""

    @abstractmethod
    def _fate(self, node_id: str, machine: Machine) -> Fate:
        """What the cloud says of a machine that it lists no more; raises if it does not."""

    # -- what Ray is told ----------------------------------------------------

    def get_command_runner(self, log_prefix: str, node_id: str, *args: Any, **kwargs: Any) -> Any:
        """Ray's, which labels the node with what it is, and gives it its data disk."""
        runner = self._ray.get_command_runner(log_prefix, node_id, *args, **kwargs)
        runner = with_true_labels(runner, lambda: labels_of(self.market_of(node_id)))
        tags = self.node_tags(node_id)
        node_type = node_type_of(tags)
        if is_head(tags) or not self.data_disks.wants(node_type):
            return runner
        return with_data_disk(
            runner,
            self.data_disks,
            node=node_id,
            node_type=node_type,
            zone=lambda: self.market_of(node_id).zone,
        )


def refuse_if(problems: Iterable[Problem]) -> None:
    """End `ray up` with all problems, a line each, if there are any."""
    if told := [str(problem) for problem in problems]:
        raise UpRefused("\n".join(told))


def asked_plainly(
    ask: Callable[[], dict[str, Any]],
    *,
    foreign: tuple[type[Exception], ...],
    words: Callable[[Exception], str],
) -> dict[str, Any]:
    """What a cloud's SDK answers on the way up; what it raises ends `ray up` in one line."""
    try:
        return ask()
    except foreign as exc:
        raise UpRefused(words(exc)) from exc
