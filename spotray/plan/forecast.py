"""A job on spot under a policy, on many made-up markets: a range of costs and ends, not a number.

The markets are the zones of one region. A job stays in one of them, or goes to whichever is
cheapest. All its nodes are had, and lost, together: in the traces of one zone they mostly are.
The measured recovery of those that are left when only some go is therefore no part of it,
and what is told is on the careful side.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from spotray.errors import ConfigError
from spotray.market.offer import Market
from spotray.market.prices import PriceRange
from spotray.market.regions import generate_ups
from spotray.plan.restarts import ALL_LOST_S, START_S
from spotray.policy.fleet import FleetJob, FleetPolicy, Pauses, Place
from spotray.policy.job import Job, JobPolicy
from spotray.sim.fleet import simulate_fleet
from spotray.sim.fleet_market import FleetMarket
from spotray.sim.single import Outcome, simulate

ZONES = 3  # of a region; what more of them would bring is not in the forecast
NOTICE_S = {"aws": 120.0, "gcp": 30.0, "azure": 30.0}  # before a node goes, as the clouds promise
# More ticks are finer, more regions smoother, and both take longer: 60 us a tick and zone.
_REGIONS, _FEWEST_REGIONS = 10, 4
_TICKS, _MOST_TICKS = 240, 720  # of a job up to its deadline
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


@dataclass(frozen=True, kw_only=True)
class SpotNodes:
    """Nodes of one type in one region, as the made-up markets have them.

    Args:
        spot: the price of one; each zone draws its own of that range.
        on_demand: the same on demand; None: there is none to fall back on.
        nodes: of the job, >= 1.
        start_s: from asking for nodes until they can work.
        cloud: whose bills and notices it gets.
        limit_s: the age at which the cloud ends each node; infinite: none.
        losses: how many times as often they are lost as in public traces, > 0.
    """

    spot: PriceRange
    on_demand: PriceRange | None
    nodes: int
    start_s: float = START_S
    cloud: str = "aws"
    limit_s: float = math.inf
    losses: float = 1.0

    def usd_per_hour(self, seed: int, zone: int) -> float:
        """The price of one in a zone."""
        chance = random.Random(ZONES * seed + zone)
        return chance.uniform(self.spot.low_usd_per_hour, self.spot.high_usd_per_hour)


def on_spot(policy: JobPolicy, on: SpotNodes, *, work_s: float, deadline_s: float) -> Forecast:
    """In one zone under a policy, on every zone of many made-up regions.

    The same arguments give the same forecast.

    Args:
        policy: decides for all nodes together.
        on: the nodes. Without on-demand the policy is told of no deadline, and what is left
            when the watch ends is counted at the price of spot.
        work_s: that they take together, undisturbed.
        deadline_s: from the job's start.

    Raises:
        ConfigError: a value is out of range.
    """
    has_deadline = on.on_demand is not None
    job = _job(
        work_s=work_s,
        deadline_s=deadline_s if has_deadline else math.inf,
        horizon_s=deadline_s,
        overhead_s=on.start_s + ALL_LOST_S,
        on_demand_usd_per_hour=on.nodes * (on.on_demand or on.spot).middle_usd_per_hour,
        spot_usd_per_hour=on.nodes * on.spot.middle_usd_per_hour,
    )
    if job is None:
        assert on.on_demand is not None  # without a deadline every job can be met
        return on_demand_only(on.on_demand, nodes=on.nodes, work_s=work_s, start_s=on.start_s)
    limit_ticks = max(1, int(on.limit_s // job.gap_s)) if on.limit_s < math.inf else math.inf
    costs, ends, preemptions = [], [], []
    ticks = math.ceil((1 if has_deadline else _BEYOND) * deadline_s / job.gap_s)
    for seed in range(_regions(job.gap_s, deadline_s)):
        for zone, up in enumerate(_ups(seed, _BEYOND * deadline_s, job.gap_s, on.losses)):
            outcome = simulate(policy, job, up[:ticks], limit_ticks=limit_ticks)
            costs.append(_cost_usd(job, outcome, on.nodes * on.usd_per_hour(seed, zone)))
            ends.append(math.inf if outcome.ended_s is None else outcome.ended_s)
            preemptions.append(float(outcome.preemptions))
    return _forecast(costs, ends, preemptions, deadline_s)


def in_some_zone(
    policy: FleetPolicy, on: SpotNodes, *, work_s: float, deadline_s: float
) -> Forecast:
    """As `on_spot`, on the same regions, under a policy that may go to any zone of one.

    Bills are by the second here, also those that EC2 or Google would waive. Every loss comes with
    the cloud's notice.

    Raises:
        ConfigError: a value is out of range, or there is no on-demand to fall back on.
    """
    if on.on_demand is None:
        raise ConfigError("a job that must meet its deadline needs a price of on-demand")
    usd = on.on_demand.middle_usd_per_hour
    pauses = Pauses(launch_s=on.start_s, restart_s=ALL_LOST_S, save_frac=0.0)
    needed_s = work_s + on.start_s + ALL_LOST_S
    if needed_s > deadline_s:
        return on_demand_only(on.on_demand, nodes=on.nodes, work_s=work_s, start_s=on.start_s)
    gap_s = _gap_s(deadline_s)
    ticks = math.ceil(deadline_s / gap_s)
    costs, ends, preemptions = [], [], []
    for seed in range(_regions(gap_s, deadline_s)):
        places = tuple(
            Place(
                market=Market(
                    cloud=on.cloud, zone=f"region-1{letter}", instance_type="node", spot=True
                ),
                on_demand_usd_per_hour=usd,
                limit_s=max(on.limit_s, 2 * gap_s),  # what is shorter, no tick can show
            )
            for letter in "abcdefgh"[:ZONES]
        )
        job = FleetJob(
            gap_s=gap_s,
            work_s=work_s,
            speeds=(*(0.0,) * on.nodes, 1.0),  # all of them or none
            places=places,
            deadline_s=deadline_s,
            pauses=pauses,
        )
        ups = _ups(seed, _BEYOND * deadline_s, gap_s, on.losses)
        rows = [[on.nodes * there for there in up[:ticks]] for up in ups]
        prices = [[on.usd_per_hour(seed, zone)] * ticks for zone in range(ZONES)]
        market = FleetMarket(
            places, rows, prices, gap_s=gap_s, notice_s=NOTICE_S.get(on.cloud, 0.0)
        )
        outcome = simulate_fleet(policy, job, market)
        costs.append(outcome.cost_usd + outcome.free_usd)  # these markets are rougher than most
        ends.append(math.inf if outcome.ended_s is None else outcome.ended_s)
        preemptions.append(outcome.preemptions / on.nodes)
    return _forecast(costs, ends, preemptions, deadline_s)


@lru_cache(maxsize=2 * _REGIONS)
def _ups(seed: int, duration_s: float, gap_s: float, losses: float) -> tuple[bytes, ...]:
    """Of each zone of a region one byte a tick: whether it has spot. All ways share them."""
    ups = generate_ups(seed, zones=ZONES, duration_s=duration_s, gap_s=gap_s, losses=losses)
    return tuple(ups[:, zone].tobytes() for zone in range(ZONES))


def _forecast(
    costs: Sequence[float], ends: Sequence[float], preemptions: Sequence[float], deadline_s: float
) -> Forecast:
    return Forecast(
        cost_usd=Spread.of(costs),
        end_s=Spread.of(ends),
        late_frac=sum(end > deadline_s + 1e-6 for end in ends) / len(ends),
        preemptions=Spread.of(preemptions).middle,
        runs=len(ends),
    )


def _regions(gap_s: float, deadline_s: float) -> int:
    """How many are made up: fewer where each takes more ticks."""
    return min(_REGIONS, max(_FEWEST_REGIONS, round(_REGIONS * _TICKS * gap_s / deadline_s)))


def _cost_usd(job: Job, outcome: Outcome, spot_usd_per_hour: float) -> float:
    """With the spot price of this market in the place of the one that the policy was told."""
    paid = outcome.spot_ticks * job.gap_s / 3600
    return outcome.cost_usd + paid * (spot_usd_per_hour - job.spot_usd_per_hour)


def _gap_s(horizon_s: float) -> float:
    """The length of a tick: whole minutes."""
    ideal_s = min(_LONG_GAP_S, max(_SHORTEST_GAP_S, horizon_s / _TICKS))
    return 60.0 * math.ceil(max(ideal_s, horizon_s / _MOST_TICKS) / 60)


def _job(
    *, horizon_s: float, work_s: float, deadline_s: float, overhead_s: float, **prices: float
) -> Job | None:
    """The job in ticks in which its deadline can be met; None if none are short enough."""
    gap_s = _gap_s(horizon_s)
    if math.isfinite(deadline_s):
        while math.ceil((work_s + overhead_s) / gap_s) > math.floor(deadline_s / gap_s):
            if gap_s <= _SHORTEST_GAP_S or work_s + overhead_s > deadline_s:
                return None
            gap_s = max(_SHORTEST_GAP_S, 60.0 * math.floor(gap_s / 2 / 60))
    return Job(gap_s=gap_s, work_s=work_s, deadline_s=deadline_s, overhead_s=overhead_s, **prices)
