"""One job on several nodes over several zones: what its policy sees at a tick, and answers.

Time goes in ticks. At the start of a tick the policy sees how many spot nodes each zone would
hold, what they cost, and what was just lost; how many nodes it then wants in each zone holds
for the tick. Nodes that stay keep training; who comes and goes costs the group a pause.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from spotray.errors import ConfigError
from spotray.market.offer import Market


@dataclass(frozen=True, kw_only=True)
class Place:
    """A zone in which nodes of the job may run."""

    market: Market  # of its spot nodes
    on_demand_usd_per_hour: float  # of the same node; on-demand is always to be had
    limit_s: float = math.inf  # the cloud ends each spot node at that age: 24 h, if preemptible

    def __post_init__(self) -> None:
        if not self.market.spot:
            raise ConfigError(f"{self.market}: a place is named by its spot market: end it in spot")
        if not 0 < self.on_demand_usd_per_hour < math.inf:
            raise ConfigError(
                f"{self.market}: on_demand_usd_per_hour is {self.on_demand_usd_per_hour!r}: "
                "give a number above 0"
            )
        if not self.limit_s > 0:
            raise ConfigError(f"{self.market}: limit_s is {self.limit_s!r}: give seconds above 0")


@dataclass(frozen=True, kw_only=True)
class Pauses:
    """What coming and going costs, seconds. Defaults as measured, but for ``launch_s``.

    Source:
        benchmarks/recovery (22 November 2026): events ``noticed``, ``node``, ``growth`` and
        ``all``. ``save_frac`` is `SpotConfig.save_cost_frac`, the most that saving may cost.
        How long a cloud takes to give a machine was not measured: three minutes are assumed.
    """

    noticed_s: float = 0.20  # nodes leave that were announced to, or were let go
    silent_s: float = 1.04  # nodes vanish
    joined_s: float = 0.28  # nodes come to a group that trains
    restart_s: float = 28.62  # a group starts of which nobody is left
    launch_s: float = 180.0  # from the launch of a node until it can join; it is billed
    checkpoint_s: float = 60.0  # between durable checkpoints: repeated at most if all vanish
    save_frac: float = 0.01  # of the training time, for snapshots and checkpoints

    def __post_init__(self) -> None:
        for name in ("noticed_s", "silent_s", "joined_s", "restart_s", "launch_s", "save_frac"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)!r}: give a number of at least 0")
        if not 0 < self.checkpoint_s < math.inf:
            raise ConfigError(f"checkpoint_s is {self.checkpoint_s!r}: give a number above 0")
        if self.save_frac >= 1:
            raise ConfigError(f"save_frac is {self.save_frac!r}: give a part of 1")


@dataclass(frozen=True, kw_only=True)
class FleetJob:
    """What is known of a job before it starts.

    Args:
        gap_s: length of a tick, > 0.
        work_s: time that one node at speed 1 would take, undisturbed, > 0.
        speeds: how fast the job is on 0, 1, 2, ... nodes, beside one node: 0 first, never
            falling. As many as are given may be used; 0 for numbers that it cannot train on.
        places: the zones, each once. Nodes may be spread over the zones of one region, never
            over two regions.
        deadline_s: when it must be done, from its start; infinite for no deadline.
        time_usd_per_hour: what an hour until the end is worth to the user, >= 0; no part of
            the bill.
        move_usd: what the data and the last checkpoint cost to be moved to another region.
        pauses: what coming and going costs.

    Raises:
        ConfigError: a value is out of range, or all nodes on on-demand, from the start on,
            could not meet the deadline; the message says what they can meet.
    """

    gap_s: float
    work_s: float
    speeds: tuple[float, ...]
    places: tuple[Place, ...]
    deadline_s: float = math.inf
    time_usd_per_hour: float = 0.0
    move_usd: float = 0.0
    pauses: Pauses = field(default_factory=Pauses)

    def __post_init__(self) -> None:
        for name in ("gap_s", "work_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)!r}: give a number above 0")
        for name in ("time_usd_per_hour", "move_usd"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)!r}: give a number of at least 0")
        if not self.deadline_s > 0:
            raise ConfigError(f"deadline_s is {self.deadline_s!r}: give a number above 0")
        _check_speeds(self.speeds)
        zones = [(place.market.cloud, place.market.zone) for place in self.places]
        if not zones or len(set(zones)) < len(zones):
            raise ConfigError(f"places are {zones}: give at least one, and each zone once")
        if self.earliest_end_s > self.deadline_s:
            raise ConfigError(
                f"the deadline of {self.deadline_s / 3600:.2f} h cannot be met even on on-demand: "
                f"{self.max_nodes} nodes from the start on take {self.earliest_end_s / 3600:.2f} h"
            )

    @property
    def has_deadline(self) -> bool:
        return math.isfinite(self.deadline_s)

    @property
    def max_nodes(self) -> int:
        return len(self.speeds) - 1

    @cached_property
    def min_nodes(self) -> int:
        """The fewest nodes that it can train on."""
        return next(count for count, speed in enumerate(self.speeds) if speed > 0)

    @cached_property
    def regions(self) -> tuple[str, ...]:
        """The region of each place."""
        return tuple(f"{place.market.cloud}/{place.market.region}" for place in self.places)

    @property
    def earliest_end_s(self) -> float:
        """When all nodes on on-demand from the start on are done, seconds from the start."""
        return self.start_s + self.fastest_s(self.work_s)

    @property
    def start_s(self) -> float:
        """From the launch of the first nodes until they do work."""
        return self.pauses.launch_s + self.pauses.restart_s

    def fastest_s(self, work_s: float) -> float:
        """Time that all nodes take for that much work, undisturbed."""
        return work_s / (self.speeds[-1] * (1 - self.pauses.save_frac))


def _check_speeds(speeds: tuple[float, ...]) -> None:
    told = "give 0 for no node, then one number for each number of nodes, never falling"
    for count, speed in enumerate(speeds):
        if not 0 <= speed < math.inf or (count and speed < speeds[count - 1]):
            raise ConfigError(f"speeds[{count}] is {speed!r}: {told}")
    if len(speeds) < 2 or speeds[0] != 0 or speeds[-1] == 0:
        raise ConfigError(f"speeds are {speeds}: {told}")


@dataclass(slots=True, kw_only=True)
class FleetView:
    """What a policy sees at the start of a tick; lists have one entry for each place.

    The simulator fills one view anew at each tick: keep values of it, not the view.
    """

    tick: int = 0
    elapsed_s: float = 0.0  # since the job's start
    done_s: float = 0.0  # work done
    working: int = 0  # nodes that train now
    capacity: list[int] = field(default_factory=list)  # spot nodes that it would hold, or get
    spot_usd_per_hour: list[float] = field(default_factory=list)  # of one node
    on_spot: list[int] = field(default_factory=list)  # held now
    on_demand: list[int] = field(default_factory=list)  # held now
    ready_on_spot: list[int] = field(default_factory=list)  # of those held, past their launch
    ready_on_demand: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)  # spot nodes that were taken just now


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetDecision:
    """How many nodes to have in each place for this tick. ``why``: one line."""

    spot: tuple[int, ...]
    on_demand: tuple[int, ...]
    why: str


class FleetCourse(Protocol):
    """One job under a policy; what it remembers is this job's past and nothing else."""

    def decide(self, view: FleetView) -> FleetDecision:
        """The nodes for the tick that begins; called once a tick, in order.

        At most as much spot as ``capacity``; all nodes in one region; at most twice
        ``max_nodes``, so that new nodes can start while the old ones still train.
        """
        ...


class FleetPolicy(Protocol):
    """Decides how many nodes a job has, and where.

    No clock, no network: the same job and the same views get the same decisions. What
    every policy must keep is tested in ``tests/contracts/test_fleet_policy.py``.
    """

    def begin(self, job: FleetJob) -> FleetCourse:
        """A course for a job that has not started.

        Raises:
            ConfigError: the policy cannot serve such a job.
        """
        ...
