"""What a job will still cost, by work left, slack left, what it runs on and the market's state.

A finite-horizon dynamic programme, backward in time, for all amounts of work and all hidden
states of the market (`spotray.policy.chain`) at once. Slack is the time left beyond the work
left. It is kept instead of the time left because what a job may still do depends on it alone:
on-demand keeps it, a wait and a start use it up. Between two rows of the table the slack is
then never rounded across the point at which only on-demand is left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spotray.policy.chain import SpotChain
from spotray.policy.job import Job

_STEP_S = 400.0  # aimed at; a step is a whole number of ticks
_MOST_STEPS = 900  # a longer job gets longer steps
HORIZON = 3.0  # a job without deadline looks that many times its work ahead
_NEAR = 1e-9

# What a job runs on at the start of a step. From `SPOT` on: spot that works, spot with one
# step of its start done, with two, and so on; the rest of an overhead goes down by steps.
IDLE, ON_DEMAND, SPOT = 0, 1, 2

Table = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class CostToGo:
    """The table. USD, with the user's price on time."""

    step_s: float
    overheads_s: tuple[float, ...]  # left at kind SPOT, SPOT + 1, ...: the first is 0
    usd: Table  # (kind, steps of work left, steps of slack left, hidden state)


def cost_to_go(chain: SpotChain, job: Job) -> CostToGo:
    """Solve for jobs of this work, overhead and prices, up to this deadline.

    Allowed is what `SafetyNet` allows, so that no choice has to be priced as being late.
    The market's state is taken as known from each step on, although a policy only believes in
    states: it weighs the table by its belief. That errs a little towards waiting.
    """
    horizon_s = job.deadline_s if job.has_deadline else HORIZON * job.work_s + job.overhead_s
    step_s = job.gap_s * max(
        1, round(_STEP_S / job.gap_s), math.ceil(horizon_s / _MOST_STEPS / job.gap_s)
    )
    overhead = job.overhead_s / step_s
    works = math.ceil(job.work_s / step_s + overhead) + 2
    slacks = max(1, math.ceil((horizon_s - job.work_s) / step_s)) + 1
    overheads = [0.0]
    while overhead - len(overheads) > _NEAR:
        overheads.append(overhead - len(overheads))
    # overheads[k] is what is left k steps after a start: index 0 stands for "it works".
    kinds = SPOT + len(overheads)
    hours = step_s / 3600
    time_usd = np.float32(hours * job.time_usd_per_hour)
    spot_usd = np.float32(hours * job.spot_usd_per_hour) + time_usd
    on_demand_usd = np.float32(hours * job.on_demand_usd_per_hour) + time_usd

    into = np.ascontiguousarray(chain.steps(step_s).T, dtype=np.float32)
    down = ~chain.up
    work = np.arange(works + 1)
    forced = on_demand_usd * (work + overhead).astype(np.float32)[:, None]  # from a standstill
    forced[0] = 0.0
    start_od = _Shift(works, 1.0 - overhead)
    work_on = _Shift(works, 1.0)
    start_spot = _Shift(works, max(0.0, 1.0 - overhead))
    # Step of a start by what is left of it: how much work it does, and which kind follows.
    follows = {
        SPOT + k: (
            _Shift(works, max(0.0, 1.0 - left)),
            SPOT + k + 1 if k + 1 < len(overheads) else SPOT,
            overhead + left,
        )
        for k, left in enumerate(overheads)
        if k > 0
    }
    after_start = SPOT + 1 if len(overheads) > 1 else SPOT

    usd = np.empty((kinds, works + 1, slacks + 1, len(chain.up)), dtype=np.float32)
    now = np.broadcast_to(forced, (kinds, works + 1, len(chain.up))).copy()
    now[ON_DEMAND] = (on_demand_usd * work.astype(np.float32))[:, None]
    usd[:, 0, 0] = 0.0
    standstill = now.copy()
    for left in range(1, works + slacks + 1):
        ahead = now @ into  # (kind, work, state now): expected over what follows
        slack = (left - work)[:, None]
        on_demand = np.where(slack >= overhead, on_demand_usd + start_od(ahead[ON_DEMAND]), forced)
        idle = np.where(slack - 1 >= overhead - _NEAR, ahead[IDLE] + time_usd, np.inf)
        spot = np.where(
            slack >= 2 * overhead - _NEAR, spot_usd + start_spot(ahead[after_start]), np.inf
        )
        spot[:, down] = np.inf
        best = np.minimum(np.minimum(idle, on_demand), spot)
        now = np.empty_like(now)
        now[IDLE] = best
        now[ON_DEMAND] = np.minimum(
            np.minimum(idle, spot), on_demand_usd + work_on(ahead[ON_DEMAND])
        )
        now[SPOT] = np.minimum(best, spot_usd + work_on(ahead[SPOT]))
        for kind, (shift, then, needed) in follows.items():
            goes_on = np.where(slack >= needed - _NEAR, spot_usd + shift(ahead[then]), np.inf)
            now[kind] = np.minimum(best, goes_on)
        now[SPOT:, :, down] = best[:, down]  # a spot node is gone where there is no spot
        late = slack[:, 0] < 0  # no time for it: only there to draw lines to
        now[:, late] = standstill[:, late]
        now[:, 0] = 0.0
        rows = work[max(0, left - slacks) : left + 1]
        usd[:, rows, left - rows] = now[:, rows]
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

    def __call__(self, cost: Table) -> Table:
        low = cost[self._low]
        return np.asarray(low + self._part * (cost[self._high] - low))
