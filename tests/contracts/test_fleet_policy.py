"""What every policy for several nodes keeps, on any market. A new one joins `FLEET_POLICIES`."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotray.market.offer import Market
from spotray.policy.fleet import FleetJob, Place
from spotray.sim.fleet import FleetMoment, FleetOutcome, simulate_fleet
from spotray.sim.fleet_market import FleetMarket
from spotray.sim.fleet_named import FLEET_POLICIES, fleet_policy

NAMES = sorted(FLEET_POLICIES)
GAP_S, TICKS = 300.0, 60
ZONES = ("us-east-1a", "us-east-1b", "us-west-2a")


def places(cloud: str) -> tuple[Place, ...]:
    return tuple(
        Place(
            market=Market(cloud=cloud, zone=zone, instance_type="node", spot=True),
            on_demand_usd_per_hour=3.0 + index,
            # Shorter than the job, so that a limit is among the cases.
            limit_s=3600.0 if cloud == "gcp" else math.inf,
        )
        for index, zone in enumerate(ZONES)
    )


def job(cloud: str, speeds: tuple[float, ...], slack_s: float, **changes: float) -> FleetJob:
    """A job of about two hours whose deadline leaves on-demand so much."""
    work_s = 7000.0 * speeds[-1]
    free = FleetJob(gap_s=GAP_S, work_s=work_s, speeds=speeds, places=places(cloud))
    return FleetJob(
        gap_s=GAP_S,
        work_s=work_s,
        speeds=speeds,
        places=places(cloud),
        deadline_s=free.earliest_end_s + slack_s,
        **changes,
    )


JOBS = {
    "no slack": ("aws", (0.0, 1.0, 1.9, 2.7, 3.4), 0.0),
    "some": ("aws", (0.0, 1.0, 1.9, 2.7, 3.4), 1200.0),
    "much": ("azure", (0.0, 1.0, 1.5, 1.8), 8000.0),
    "only pairs": ("gcp", (0.0, 0.0, 2.0, 2.0, 4.0), 4000.0),
}
jobs = st.sampled_from(sorted(JOBS))
# Runs of capacity, of any lengths.
rows = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 20)), min_size=1, max_size=12).map(
    lambda runs: ([count for count, length in runs for _ in range(length)] * TICKS)[:TICKS]
)
capacities = st.tuples(rows, rows, rows)
costs = st.lists(
    st.lists(st.sampled_from([0.4, 0.9, 1.5, 2.9, 3.5]), min_size=3, max_size=3),
    min_size=3,
    max_size=3,
).map(lambda three: [[one for one in row for _ in range(TICKS // 3)] for row in three])
silent = st.sampled_from([0.0, 0.5, 1.0])


def market(
    cloud: str, capacity: tuple[list[int], ...], usd: list[list[float]], silent_frac: float
) -> FleetMarket:
    return FleetMarket(
        places(cloud), capacity, usd, gap_s=GAP_S, silent_frac=silent_frac, notice_s=0.0
    )


def course(name: str, one: FleetJob, there: FleetMarket) -> tuple[FleetOutcome, list[FleetMoment]]:
    moments: list[FleetMoment] = []
    return simulate_fleet(fleet_policy(name), one, there, moments=moments), moments


@pytest.mark.parametrize("name", NAMES)
@given(which=jobs, capacity=capacities, usd=costs, quiet=silent)
@settings(max_examples=60)
def test_a_deadline_that_on_demand_can_meet_is_met(
    name: str,
    which: str,
    capacity: tuple[list[int], ...],
    usd: list[list[float]],
    quiet: float,
) -> None:
    one = job(*JOBS[which])
    outcome, moments = course(name, one, market(JOBS[which][0], capacity, usd, quiet))
    assert outcome.ended_s is not None
    assert not outcome.is_late
    # And on the way: spot only where there is some, each decision with its reason.
    for moment in moments:
        assert all(map(int.__le__, moment.spot, moment.capacity))
        assert moment.why
        assert "\n" not in moment.why


@pytest.mark.parametrize("name", NAMES)
@given(which=jobs, capacity=capacities, usd=costs, later=capacities)
@settings(max_examples=25)
def test_the_past_is_the_same_whatever_comes_later(
    name: str,
    which: str,
    capacity: tuple[list[int], ...],
    usd: list[list[float]],
    later: tuple[list[int], ...],
) -> None:
    """No policy knows the future; and the same input gives the same output."""
    one, cloud, cut = job(*JOBS[which]), JOBS[which][0], TICKS // 3
    changed = tuple(row[:cut] + other[cut:] for row, other in zip(capacity, later, strict=True))
    outcome, moments = course(name, one, market(cloud, capacity, usd, 0.5))
    _, others = course(name, one, market(cloud, changed, usd, 0.5))
    assert moments[:cut] == others[:cut]
    assert course(name, one, market(cloud, capacity, usd, 0.5)) == (outcome, moments)


@pytest.mark.parametrize("name", NAMES)
@given(which=jobs, capacity=capacities, usd=costs)
@settings(max_examples=25)
def test_the_cost_is_the_sum_of_what_each_tick_costs(
    name: str, which: str, capacity: tuple[list[int], ...], usd: list[list[float]]
) -> None:
    one = job("azure", *JOBS[which][1:])  # where nothing is free
    outcome, moments = course(name, one, market("azure", capacity, usd, 0.0))
    hour = GAP_S / 3600
    paid = 0.0
    for before, after in pairwise(moments):
        cost = hour * sum(
            count * usd[place][before.tick] for place, count in enumerate(before.spot)
        )
        cost += hour * sum(
            count * one.places[place].on_demand_usd_per_hour
            for place, count in enumerate(before.on_demand)
        )
        assert after.usd - before.usd == pytest.approx(cost, abs=1e-9)
        paid = after.usd
    assert outcome.cost_usd >= paid - 1e-9
    assert outcome.free_usd == 0


@pytest.mark.parametrize("name", NAMES)
@given(which=jobs, capacity=capacities, usd=costs)
@settings(max_examples=25)
def test_only_ec2_gives_an_hour_and_only_for_what_it_took(
    name: str, which: str, capacity: tuple[list[int], ...], usd: list[list[float]]
) -> None:
    speeds, slack_s = JOBS[which][1:]
    paid = {
        cloud: course(name, job(cloud, speeds, slack_s), market(cloud, capacity, usd, 1.0))[0]
        for cloud in ("aws", "azure")
    }
    aws, azure = paid["aws"], paid["azure"]
    assert min(aws.spot_usd, aws.on_demand_usd, aws.free_usd) >= 0
    assert aws.cost_usd + aws.free_usd == pytest.approx(azure.cost_usd)
    assert aws.preemptions or not aws.free_usd
