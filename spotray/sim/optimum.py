"""The least that a job can cost when the whole future is known: exact."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from spotray.errors import ConfigError, TraceError
from spotray.policy.job import Job

Floats = NDArray[np.float64]

_MOST_UNITS = 2_000_000


def optimum_usd(job: Job, up: bytes) -> float:
    """The least cost of a job that knows when spot will be there.

    Backward over ticks, for all amounts of work left at once. Work is counted in units
    that divide both a tick and what the first useful tick after a start gives, so nothing
    is rounded. To start and leave before the overhead is over is never best; a start is
    therefore one move of as many ticks as it takes until work is done.

    Raises:
        TraceError: ``up`` ends before the deadline.
        ConfigError: there is no deadline, or tick and overhead have no common unit.
    """
    if not job.has_deadline:
        raise ConfigError("the optimum needs a deadline: without one, waiting costs nothing")
    last = job.ticks_in(job.deadline_s)
    if len(up) < last:
        raise TraceError(
            f"the trace ends after {len(up)} ticks, the deadline is after {last}: "
            "give a longer trace"
        )
    unit_s = _unit_s(job)
    per_tick = round(job.gap_s / unit_s)
    ticks_to_start = math.floor(job.overhead_s / job.gap_s + 1e-9) + 1  # until some work is done
    first = ticks_to_start * per_tick - round(job.overhead_s / unit_s)
    units = math.ceil(job.work_s / unit_s - 1e-9)
    spot_usd = job.cost_usd(spot_ticks=1, on_demand_ticks=0)
    on_demand_usd = job.cost_usd(spot_ticks=0, on_demand_ticks=1)

    done = np.full(units + 1, np.inf)
    done[0] = 0.0
    # Cost to the end by work left, at each of the next ticks: idle, on spot, on on-demand.
    later = [(done, done, done)] * ticks_to_start
    run = 0  # ticks of spot from here without a break
    for tick in range(last - 1, -1, -1):
        run = run + 1 if up[tick] else 0
        idle, spot, on_demand = later[0]
        _, started_spot, started_on_demand = later[-1]
        fits = tick + ticks_to_start <= last
        best = idle.copy()
        if fits:
            np.minimum(
                best, ticks_to_start * on_demand_usd + _after(started_on_demand, first), out=best
            )
            if run >= ticks_to_start:
                np.minimum(best, ticks_to_start * spot_usd + _after(started_spot, first), out=best)
        on_spot = best
        if run:
            on_spot = np.minimum(best, spot_usd + _after(spot, per_tick))
        on_on_demand = np.minimum(best, on_demand_usd + _after(on_demand, per_tick))
        for cost in (best, on_spot, on_on_demand):
            cost[0] = 0.0
        later = [(best, on_spot, on_on_demand), *later[:-1]]
    return float(later[0][0][units])


def _after(cost: Floats, units: int) -> Floats:
    """The cost that is left once ``units`` of work more are done; more than enough is enough."""
    shifted = np.empty_like(cost)
    shifted[:units] = cost[0]
    shifted[units:] = cost[: len(cost) - units]
    return shifted


def _unit_s(job: Job) -> float:
    """The largest unit of work that divides a tick and an overhead, seconds."""
    for scale in (1, 10, 1000):
        gap, overhead = job.gap_s * scale, job.overhead_s * scale
        if abs(gap - round(gap)) < 1e-6 and abs(overhead - round(overhead)) < 1e-6:
            unit_s = math.gcd(round(gap), round(overhead)) / scale
            if job.work_s / unit_s <= _MOST_UNITS:
                return unit_s
    raise ConfigError(
        f"a tick of {job.gap_s!r} s and an overhead of {job.overhead_s!r} s have no common unit: "
        "give both in whole seconds"
    )
