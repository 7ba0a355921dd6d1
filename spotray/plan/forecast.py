"""A job on spot under a policy, on many made-up markets: a range of costs and ends, not a number.

All nodes of the job are had, and lost, together: in the traces of one zone they mostly are.
The measured recovery of those that are left when only some go is therefore no part of it,
and what is told is on the careful side.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from spotray.market.prices import PriceRange
from spotray.market.zones import generate_zone
from spotray.plan.restarts import ALL_LOST_S, START_S
from spotray.policy.job import Job, JobPolicy
from spotray.sim.single import Outcome, simulate
from spotray.sim.windows import availability

# More ticks are finer, more runs smoother, and both take longer: 50 us a tick.
_RUNS, _FEWEST_RUNS = 40, 10
_TICKS, _MOST_TICKS = 240, 960  # of a job up to its deadline
_SHORTEST_GAP_S, _LONG_GAP_S = 60.0, 3600.0
_BEYOND = 3  # a job without deadline is watched for so many times its deadline
_LOW, _HIGH = 0.1, 0.9


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Of many runs: a tenth is below ``low``, half below ``middle``, a tenth above ``high``."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """By rank, so that a value that is infinite may be among them."""
        ordered = sorted(values)
        last = len(ordered) - 1
        return cls(
            low=ordered[round(_LOW * last)],
            middle=ordered[round(0.5 * last)],
            high=ordered[round(_HIGH * last)],
        )


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """How a job may go."""

    cost_usd: Spread
    end_s: Spread  # from the job's start; infinite where the watch ended before
    late_frac: float  # of the runs
    preemptions: float  # of all nodes together, in the middle
    runs: int


def on_demand_only(
    price: PriceRange, *, nodes: int, work_s: float, start_s: float = START_S
) -> Forecast:
    """On on-demand from the start to the end: what is not known is the zone's price."""
    end_s = start_s + work_s
    low, high = (
        nodes * usd * end_s / 3600 for usd in (price.low_usd_per_hour, price.high_usd_per_hour)
    )
    return Forecast(
        cost_usd=Spread(low=low, middle=(low + high) / 2, high=high),
        end_s=Spread(low=end_s, middle=end_s, high=end_s),
        late_frac=0.0,
        preemptions=0.0,
        runs=1,
    )


def on_spot(
    policy: JobPolicy,
    *,
    spot: PriceRange,
    on_demand: PriceRange | None,
    nodes: int,
    work_s: float,
    deadline_s: float,
    start_s: float = START_S,
) -> Forecast:
    """Under a policy, on many made-up markets; each with a spot price of the range.

    The same arguments give the same forecast.

    Args:
        policy: decides for all nodes together.
        spot: the price of one node.
        on_demand: the same on demand; None: the policy is told of no deadline, and what is
            left when the watch ends is counted at the price of spot.
        nodes: of the job.
        work_s: that they take together, undisturbed.
        deadline_s: from the job's start.
        start_s: from asking for nodes until they can work.

    Raises:
        ConfigError: a value is out of range.
    """
    horizon_s = deadline_s if on_demand is not None else _BEYOND * deadline_s
    job = _job(
        work_s=work_s,
        deadline_s=deadline_s if on_demand is not None else math.inf,
        horizon_s=deadline_s,
        overhead_s=start_s + ALL_LOST_S,
        on_demand_usd_per_hour=nodes * (on_demand or spot).middle_usd_per_hour,
        spot_usd_per_hour=nodes * spot.middle_usd_per_hour,
    )
    if job is None:
        assert on_demand is not None  # without a deadline every job can be met
        return on_demand_only(on_demand, nodes=nodes, work_s=work_s, start_s=start_s)
    runs = min(_RUNS, max(_FEWEST_RUNS, round(_RUNS * _TICKS * job.gap_s / deadline_s)))
    costs, ends, preemptions = [], [], []
    for seed in range(runs):
        up = availability(generate_zone(seed, duration_s=horizon_s, gap_s=job.gap_s))
        outcome = simulate(policy, job, up)
        drawn = random.Random(seed).uniform(spot.low_usd_per_hour, spot.high_usd_per_hour)
        costs.append(_cost_usd(job, outcome, nodes * drawn))
        ends.append(math.inf if outcome.ended_s is None else outcome.ended_s)
        preemptions.append(outcome.preemptions)
    return Forecast(
        cost_usd=Spread.of(costs),
        end_s=Spread.of(ends),
        late_frac=sum(end > deadline_s + 1e-6 for end in ends) / runs,
        preemptions=Spread.of(preemptions).middle,
        runs=runs,
    )


def _cost_usd(job: Job, outcome: Outcome, spot_usd_per_hour: float) -> float:
    """With the spot price of this market in the place of the one that the policy was told."""
    paid = outcome.spot_ticks * job.gap_s / 3600
    return outcome.cost_usd + paid * (spot_usd_per_hour - job.spot_usd_per_hour)


def _job(
    *, horizon_s: float, work_s: float, deadline_s: float, overhead_s: float, **prices: float
) -> Job | None:
    """The job in ticks in which its deadline can be met; None if none are short enough."""
    ideal_s = min(_LONG_GAP_S, max(_SHORTEST_GAP_S, horizon_s / _TICKS))
    gap_s = 60.0 * math.ceil(max(ideal_s, horizon_s / _MOST_TICKS) / 60)
    if math.isfinite(deadline_s):
        while math.ceil((work_s + overhead_s) / gap_s) > math.floor(deadline_s / gap_s):
            if gap_s <= _SHORTEST_GAP_S or work_s + overhead_s > deadline_s:
                return None
            gap_s = max(_SHORTEST_GAP_S, 60.0 * math.floor(gap_s / 2 / 60))
    return Job(gap_s=gap_s, work_s=work_s, deadline_s=deadline_s, overhead_s=overhead_s, **prices)
