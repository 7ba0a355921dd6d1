"""The table against sums done by hand, in markets whose future is certain."""

from __future__ import annotations

import numpy as np
import pytest

from spotray.policy.chain import SpotChain
from spotray.policy.cost_to_go import IDLE, ON_DEMAND, SPOT, cost_to_go
from spotray.policy.job import Job

UP, DOWN = 0, 1
ALWAYS = SpotChain(gap_s=600.0, up=np.array([True, False]), step=np.eye(2), start=np.full(2, 0.5))
TURNS = SpotChain(
    gap_s=600.0,
    up=np.array([True, False]),
    step=np.array([[0.0, 1.0], [1.0, 0.0]]),
    start=np.full(2, 0.5),
)


def job(steps: int, *, overhead_s: float = 600.0, work: int = 6, hour_usd: float = 0.0) -> Job:
    """A step on on-demand is 1 USD, on spot 0.25."""
    return Job(
        gap_s=600.0,
        work_s=work * 600.0,
        deadline_s=steps * 600.0 if steps else float("inf"),
        overhead_s=overhead_s,
        on_demand_usd_per_hour=6.0,
        spot_usd_per_hour=1.5,
        time_usd_per_hour=hour_usd,
    )


def test_where_spot_stays_it_costs_spot_and_where_it_never_comes_on_demand() -> None:
    usd = cost_to_go(ALWAYS, job(10)).usd
    assert usd[IDLE, 6, 4, UP] == pytest.approx(7 * 0.25)
    assert usd[SPOT, 6, 4, UP] == pytest.approx(6 * 0.25)
    assert usd[IDLE, 6, 4, DOWN] == pytest.approx(7.0)
    assert usd[ON_DEMAND, 6, 4, DOWN] == pytest.approx(6.0)
    # To change to spot costs a start, which six steps are worth.
    assert usd[ON_DEMAND, 6, 4, UP] == pytest.approx(7 * 0.25)
    assert usd[ON_DEMAND, 1, 4, UP] == pytest.approx(2 * 0.25)
    assert not usd[:, 0].any()


def test_spot_is_started_only_with_slack_for_that_start_and_one_of_on_demand() -> None:
    usd = cost_to_go(ALWAYS, job(10)).usd
    assert usd[IDLE, 6, 2, UP] == pytest.approx(7 * 0.25)
    assert usd[IDLE, 6, 1, UP] == pytest.approx(7.0)
    assert usd[ON_DEMAND, 6, 1, UP] == pytest.approx(6.0)
    assert usd[SPOT, 6, 1, UP] == pytest.approx(6 * 0.25)  # one that works is kept


def test_a_wait_leaves_slack_for_a_start_of_on_demand() -> None:
    usd = cost_to_go(TURNS, job(13, overhead_s=0.0)).usd
    assert usd[IDLE, 1, 1, DOWN] == pytest.approx(0.25)
    assert usd[IDLE, 1, 0, DOWN] == pytest.approx(1.0)


def test_spot_that_is_lost_at_once_does_work_only_without_an_overhead() -> None:
    free = cost_to_go(TURNS, job(13, overhead_s=0.0)).usd
    assert free[IDLE, 6, 6, UP] == pytest.approx(6 * 0.25)  # every other step
    assert free[IDLE, 6, 5, DOWN] == pytest.approx(1.0 + 5 * 0.25)
    half = cost_to_go(TURNS, job(13, overhead_s=300.0)).usd
    assert half[IDLE, 6, 6, UP] > 5.0  # a step of spot does half a step's work
    whole = cost_to_go(TURNS, job(13)).usd
    assert whole[IDLE, 6, 6, UP] == pytest.approx(7.0)


def test_a_start_longer_than_a_step_is_lost_whole_with_its_node() -> None:
    table = cost_to_go(ALWAYS, job(20, overhead_s=1500.0))
    assert table.overheads_s == pytest.approx((0.0, 900.0, 300.0))
    usd = table.usd
    assert usd[IDLE, 6, 12, UP] == pytest.approx(8.5 * 0.25, rel=0.02)
    assert usd[SPOT + 1, 6, 12, UP] == pytest.approx(7.5 * 0.25, rel=0.02)
    assert usd[SPOT + 2, 6, 12, UP] == pytest.approx(6.5 * 0.25, rel=0.02)
    assert np.array_equal(usd[SPOT + 1, ..., DOWN], usd[IDLE, ..., DOWN])


def test_without_a_deadline_waiting_costs_what_time_costs() -> None:
    cheap = cost_to_go(TURNS, job(0, overhead_s=0.0)).usd[:, :, -1]
    dear = cost_to_go(TURNS, job(0, overhead_s=0.0, hour_usd=60.0)).usd[:, :, -1]
    assert cheap[IDLE, 6, UP] == pytest.approx(6 * 0.25)
    assert dear[IDLE, 6, UP] == pytest.approx(3 * 0.25 + 3 * 1.0 + 6 * 10.0)


def test_a_long_job_has_longer_steps_not_a_larger_table() -> None:
    long = Job(gap_s=60.0, work_s=400 * 3600.0, deadline_s=900 * 3600.0, overhead_s=180.0)
    table = cost_to_go(ALWAYS, long)
    assert table.usd.nbytes < 50e6
    assert table.step_s % long.gap_s == 0
