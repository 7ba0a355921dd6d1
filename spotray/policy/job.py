"""One job on one node: what its policy may see at a tick, what it answers, and the protocol.

The job model is the one that published comparisons use. Time goes in ticks. At the start
of a tick the policy sees whether spot can be had, and its choice holds for the whole tick.
Progress is never lost, but a start or a change of kind costs ``overhead_s`` of useful time.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Protocol

from spotray.errors import ConfigError

_NEAR = 1e-6  # rounding of a sum of seconds, in ticks or seconds


class Choice(enum.IntEnum):
    """What a job runs on for one tick."""

    WAIT = 0
    SPOT = 1
    ON_DEMAND = 2


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is known of a job before it starts. Times in seconds, prices per hour of a node.

    Args:
        gap_s: length of a tick, > 0.
        work_s: time that the job takes undisturbed, > 0.
        deadline_s: when it must be done, from its start; infinite for no deadline.
        overhead_s: useful time that a start costs, >= 0.
        on_demand_usd_per_hour: > 0.
        spot_usd_per_hour: > 0.
        time_usd_per_hour: what an hour until the end is worth to the user, >= 0. Not
            part of the bill; it is what makes a job without deadline hurry.

    Raises:
        ConfigError: a value is out of range, or on-demand alone, from the first tick on,
            could not meet the deadline; the message says what it can meet.
    """

    gap_s: float
    work_s: float
    deadline_s: float = math.inf
    overhead_s: float = 0.0
    on_demand_usd_per_hour: float = 3.06
    spot_usd_per_hour: float = 0.9731
    time_usd_per_hour: float = 0.0

    def __post_init__(self) -> None:
        for name in ("gap_s", "work_s", "on_demand_usd_per_hour", "spot_usd_per_hour"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)!r}: give a number above 0")
        for name in ("overhead_s", "time_usd_per_hour"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)!r}: give a number of at least 0")
        if not self.deadline_s > 0:
            raise ConfigError(f"deadline_s is {self.deadline_s!r}: give a number above 0")
        if self.has_deadline and self.ticks_needed(self.work_s) > self.ticks_in(self.deadline_s):
            raise ConfigError(
                f"the deadline of {self.deadline_s / 3600:.2f} h cannot be met even on on-demand: "
                f"{self.work_s / 3600:g} h of work with {self.overhead_s / 60:g} min to start take "
                f"{self.earliest_end_s / 3600:.2f} h in ticks of {self.gap_s:g} s"
            )

    @property
    def has_deadline(self) -> bool:
        return math.isfinite(self.deadline_s)

    @property
    def earliest_end_s(self) -> float:
        """When on-demand from the first tick on is done, seconds from the start."""
        return self.ticks_needed(self.work_s) * self.gap_s

    def ticks_needed(self, work_left_s: float) -> int:
        """Ticks that on-demand takes for that much work when it has to start first."""
        return math.ceil((work_left_s + self.overhead_s) / self.gap_s - _NEAR)

    def ticks_in(self, seconds: float) -> int:
        """Whole ticks in a duration."""
        return math.floor(seconds / self.gap_s + _NEAR)

    def cost_usd(self, *, spot_ticks: int, on_demand_ticks: int) -> float:
        """The bill: each tick in full."""
        hours = self.gap_s / 3600
        return hours * (
            spot_ticks * self.spot_usd_per_hour + on_demand_ticks * self.on_demand_usd_per_hour
        )


@dataclass(slots=True, kw_only=True)
class JobView:
    """What a policy sees at the start of a tick.

    The simulator fills one view anew at each tick, for creating one takes longer than most
    policies do: keep values of it, not the view.
    """

    tick: int = 0
    elapsed_s: float = 0.0  # since the job's start
    has_spot: bool = False  # spot can be had, or held, for this tick
    running: Choice = Choice.WAIT  # what is there now; a spot node just lost is not
    preempted: bool = False  # a spot node was lost just now
    done_s: float = 0.0  # work done
    overhead_left_s: float = 0.0  # of what is running, before it does work


@dataclass(frozen=True, kw_only=True, slots=True)
class JobDecision:
    """What to run on for this tick. ``why``: one line, for the journal and the user."""

    choice: Choice
    why: str


class Course(Protocol):
    """One job under a policy; what it remembers is this job's past and nothing else."""

    def decide(self, view: JobView) -> JobDecision:
        """What to run on for the tick that begins; called once a tick, in order."""
        ...


class JobPolicy(Protocol):
    """Decides what one job runs on.

    No clock, no network: the same job and the same views get the same decisions. What
    every policy must keep is tested in ``tests/contracts/test_job_policy.py``.
    """

    def begin(self, job: Job) -> Course:
        """A course for a job that has not started.

        Raises:
            ConfigError: the policy cannot serve such a job, without a deadline perhaps.
        """
        ...
