"""What preemptions make of a price: the work of a spot node is not all of the time it is paid for.

A node's life, from its start to its preemption, begins with a time in which it is paid for
and does no work yet. Over many lives the share that works is the mean of what is left, by the
mean of all; the price of an hour of work is the price of an hour by that share. AWS's free
first hour when EC2 interrupts is not counted, so there spot is a little cheaper than told.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from spotray.market.survival import PRIOR, Weibull

# Seconds that this project measured. Source: benchmarks/recovery/README.md, "Results".
SURVIVORS_S = 1.04  # row `node`: until those that are left make a new step
JOINED_S = 0.28  # row `growth`: a pause of all when a node joins
ALL_LOST_S = 28.62  # row `all`: nobody is left, others start and read the checkpoint

# Not measured on a real cloud yet: a machine boots and is set up.
START_S = 180.0

_QUANTILES = 2000


@dataclass(frozen=True, kw_only=True)
class Restarts:
    """What preemptions do to one node of a group, in the mean."""

    losses_per_hour: float  # of one node
    works_frac: float  # of the time that is paid for

    def usd_per_work_hour(self, usd_per_hour: float) -> float:
        """The price of an hour in which a node works."""
        return usd_per_hour / self.works_frac


def expected_restarts(
    *, nodes: int, start_s: float = START_S, survival: Weibull = PRIOR
) -> Restarts:
    """The mean over lives of a group of ``nodes`` spot nodes, each replaced when it is lost.

    Args:
        nodes: of the job; if one is lost the others wait for `SURVIVORS_S` and `JOINED_S`. A
            job of one node goes on from its checkpoint, after `ALL_LOST_S`.
        start_s: from asking for a node until it can join.
        survival: of a node; its ``limit_s`` ends the longest lives.

    >>> expected_restarts(nodes=1, start_s=0).losses_per_hour
    0.25
    """
    # Node-seconds that a loss costs: of the new node alone, and of all that wait.
    alone_s = start_s + (ALL_LOST_S if nodes == 1 else 0.0)
    waiting_s = 0.0 if nodes == 1 else nodes * (SURVIVORS_S + JOINED_S)
    mean_s = working_s = 0.0
    for index in range(_QUANTILES):
        life_s = survival.scale_s * (-math.log((index + 0.5) / _QUANTILES)) ** (1 / survival.shape)
        life_s = min(life_s, survival.limit_s)
        mean_s += life_s / _QUANTILES
        working_s += max(0.0, life_s - alone_s) / _QUANTILES
    if math.isinf(survival.limit_s):
        mean_s = survival.scale_s * math.gamma(1 + 1 / survival.shape)  # exact
    return Restarts(
        losses_per_hour=3600 / mean_s,
        works_frac=max(1e-3, (working_s - waiting_s) / mean_s),
    )
