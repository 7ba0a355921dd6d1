from __future__ import annotations

import time

import numpy as np
import pytest

from spotray.market.zones import generate_zone
from spotray.policy.chain import SpotChain
from spotray.policy.job import Choice, Job, JobView
from spotray.policy.lookahead import Lookahead
from spotray.policy.uniform_progress import UniformProgress
from spotray.sim.single import Moment, simulate
from spotray.sim.windows import availability

HOUR = 3600.0
W, S, D = Choice.WAIT, Choice.SPOT, Choice.ON_DEMAND


def lasting(up_s: float, down_s: float) -> SpotChain:
    """Spot stays and stays away for such times in the mean."""
    leave, come = 600.0 / up_s, 600.0 / down_s
    return SpotChain(
        gap_s=600.0,
        up=np.array([True, False]),
        step=np.array([[1 - leave, leave], [come, 1 - come]]),
        start=np.full(2, 0.5),
    )


def first_choice(chain: SpotChain, job: Job, *, has_spot: bool) -> Choice:
    return Lookahead(chain).begin(job).decide(JobView(has_spot=has_spot)).choice


def job(**changes: float) -> Job:
    base = {"gap_s": 600.0, "work_s": 20 * HOUR, "deadline_s": 30 * HOUR, "overhead_s": 720.0}
    return Job(**base | changes)


def test_it_waits_where_spot_soon_comes_and_not_where_it_does_not() -> None:
    hurry = job(time_usd_per_hour=1.0)
    assert first_choice(lasting(10 * HOUR, HOUR), hurry, has_spot=False) is W
    assert first_choice(lasting(HOUR, 200 * HOUR), hurry, has_spot=False) is D


def test_it_takes_spot_that_lasts_and_not_spot_that_is_gone_before_it_works() -> None:
    long_start = job(overhead_s=1800.0)
    assert first_choice(lasting(10 * HOUR, HOUR), long_start, has_spot=True) is S
    assert first_choice(lasting(1200.0, 50 * HOUR), long_start, has_spot=True) is not S


def test_it_waits_where_a_start_is_free_and_works_where_slack_is_for_few_starts() -> None:
    even = lasting(2 * HOUR, 2 * HOUR)
    assert first_choice(even, job(overhead_s=0.0), has_spot=False) is W
    assert first_choice(even, job(overhead_s=900.0, deadline_s=24 * HOUR), has_spot=False) is D


def test_with_no_slack_it_is_on_demand_and_says_so() -> None:
    tight = job(deadline_s=20 * HOUR + 1200.0)
    moments: list[Moment] = []
    outcome = simulate(Lookahead(), tight, bytes(122), moments=moments)
    assert not outcome.is_late
    assert moments[0].choice is D
    assert "no slack" in moments[0].why


def test_a_reason_tells_what_each_choice_is_expected_to_cost() -> None:
    decision = Lookahead(lasting(10 * HOUR, HOUR)).begin(job()).decide(JobView(has_spot=False))
    assert decision.why.startswith("wait: ")
    assert "on-demand" in decision.why
    assert "no spot" in decision.why


@pytest.mark.parametrize("dear", [False, True])
def test_without_a_deadline_the_price_of_time_decides_on_waiting(dear: bool) -> None:
    chain, price = lasting(5 * HOUR, 5 * HOUR), 40.0 if dear else 0.05
    endless = job(deadline_s=float("inf"), time_usd_per_hour=price)
    assert first_choice(chain, endless, has_spot=False) is (D if dear else W)


@pytest.mark.parametrize("deadline_h", [52.0, 70.0, 92.0])
def test_on_made_up_zones_its_regret_is_bounded(deadline_h: float) -> None:
    """These are not what it was fitted to."""
    one = Job(gap_s=600.0, work_s=48 * HOUR, deadline_s=deadline_h * HOUR, overhead_s=720.0)
    policy = Lookahead()
    for seed in range(12):
        zone = generate_zone(seed, duration_s=one.deadline_s + HOUR, gap_s=600.0)
        up = availability(zone)
        mine = simulate(policy, one, up)
        uniform = simulate(UniformProgress(), one, up)
        assert mine.cost_usd <= 1.2 * uniform.cost_usd
        assert not mine.is_late


def test_a_decision_takes_at_most_100_microseconds() -> None:
    one = Job(gap_s=195.0, work_s=48 * HOUR, deadline_s=70 * HOUR, overhead_s=720.0)
    up = availability(generate_zone(5, duration_s=one.deadline_s, gap_s=195.0))
    policy = Lookahead()
    policy.begin(one)  # works out its table
    took_s = []
    for _ in range(3):
        began_s = time.process_time()  # of this process: others may be busy
        outcome = simulate(policy, one, up)
        ticks = outcome.wait_ticks + outcome.spot_ticks + outcome.on_demand_ticks
        took_s.append((time.process_time() - began_s) / ticks)
    assert min(took_s) <= 100e-6
