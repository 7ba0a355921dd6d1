"""What a job will still cost, by time left, work left, what it runs on and the market's state.

A finite-horizon dynamic programme, backward in time, for all amounts of work and all hidden
states of the market (`spotray.policy.chain`) at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spotray.policy.chain import SpotChain
from spotray.policy.job import Job

_STEP_S = 600.0  # aimed at; a step is a whole number of ticks
_MOST_STEPS = 700  # a longer job gets longer steps
LATE = 6.0  # work left at the deadline costs that many times on-demand, so that none is left
HORIZON = 3.0  # a job without deadline looks that many times its work ahead

# What a job runs on at the start of a step. From `SPOT` on: spot that works, spot with one
# step of its start done, with two, and so on; the rest of an overhead goes down by steps.
IDLE, ON_DEMAND, SPOT = 0, 1, 2


@dataclass(frozen=True, kw_only=True, eq=False)
class CostToGo:
    """The table. USD, with the user's price on time and the penalty for being late."""

    step_s: float
    overheads_s: tuple[float, ...]  # left at kind SPOT, SPOT + 1, ...: the first is 0
    usd: NDArray[np.float32]  # (steps left, kind, steps of work left, hidden state)


def cost_to_go(chain: SpotChain, job: Job) -> CostToGo:
    """Solve for jobs of this work, overhead and prices, up to this deadline.

    The market's state is taken as known from each step on, although a policy only believes in
    states: it weighs the table by its belief. That errs a little towards waiting.
    """
    horizon_s = job.deadline_s if job.has_deadline else HORIZON * job.work_s + job.overhead_s
    step_s = job.gap_s * max(
        1, round(_STEP_S / job.gap_s), math.ceil(horizon_s / _MOST_STEPS / job.gap_s)
    )
    steps = math.ceil(horizon_s / step_s) + 1
    overhead = job.overhead_s / step_s
    works = math.ceil(job.work_s / step_s + overhead) + 2
    overheads = [0.0]
    while overhead - len(overheads) > 1e-9:
        overheads.append(overhead - len(overheads))
    # overheads[k] is what is left k steps after a start: index 0 stands for "it works".
    kinds = SPOT + len(overheads)
    next_p = chain.steps(step_s)
    down = ~chain.up
    hours = step_s / 3600
    time_usd = hours * job.time_usd_per_hour
    spot_usd = hours * job.spot_usd_per_hour + time_usd
    on_demand_usd = hours * job.on_demand_usd_per_hour + time_usd

    work = np.arange(works + 1, dtype=np.float64)
    usd = np.empty((steps + 1, kinds, works + 1, len(chain.up)), dtype=np.float32)
    if job.has_deadline:
        end = work * LATE * hours * job.on_demand_usd_per_hour
    else:
        end = (work + overhead) * on_demand_usd * (work > 0)
    usd[0] = end[None, :, None]
    into = np.ascontiguousarray(next_p.T, dtype=np.float32)
    start_od = _Shift(works, 1.0 - overhead)
    work_od = _Shift(works, 1.0)
    start_spot = _Shift(works, max(0.0, 1.0 - overhead))
    # Step of a start by what is left of it: how much work it does, and which kind follows.
    follows = {
        SPOT + k: (
            _Shift(works, max(0.0, 1.0 - left)),
            SPOT + k + 1 if k + 1 < len(overheads) else SPOT,
        )
        for k, left in enumerate(overheads)
        if k > 0
    }
    after_start = SPOT + 1 if len(overheads) > 1 else SPOT
    for t in range(1, steps + 1):
        ahead = usd[t - 1] @ into  # (kind, work, state now): expected over what follows
        now = usd[t]
        idle = ahead[IDLE] + np.float32(time_usd)
        on_demand = on_demand_usd + start_od(ahead[ON_DEMAND])
        spot = spot_usd + start_spot(ahead[after_start])
        spot[:, down] = np.inf
        best = np.minimum(np.minimum(idle, on_demand), spot)
        now[IDLE] = best
        now[ON_DEMAND] = np.minimum(
            np.minimum(idle, spot), on_demand_usd + work_od(ahead[ON_DEMAND])
        )
        now[SPOT] = np.minimum(best, spot_usd + work_od(ahead[SPOT]))
        for kind, (shift, then) in follows.items():
            now[kind] = np.minimum(best, spot_usd + shift(ahead[then]))
        now[SPOT:, :, down] = best[:, down]  # a spot node is gone where there is no spot
        now[:, 0] = 0.0
    return CostToGo(step_s=step_s, overheads_s=tuple(o * step_s for o in overheads), usd=usd)


class _Shift:
    """Costs by work left, once ``work`` of it is done (or, if negative, is added)."""

    def __init__(self, works: int, work: float) -> None:
        at = np.arange(works + 1) - work
        low = np.clip(np.floor(at), 0, works - 1).astype(np.intp)
        self._low, self._high = low, low + 1
        # Beyond the last row the cost goes on as straight as it came.
        self._part = np.maximum(at - low, 0.0).astype(np.float32)[:, None]
        self._part[at <= 0] = 0.0

    def __call__(self, cost: NDArray[np.float32]) -> NDArray[np.float32]:
        low = cost[self._low]
        return np.asarray(low + self._part * (cost[self._high] - low))
