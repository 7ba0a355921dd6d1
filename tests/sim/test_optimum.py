"""The optimum is the least over all courses of a job, tried one by one."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotray.errors import ConfigError, TraceError
from spotray.policy.job import Choice, Course, Job, JobDecision, JobView
from spotray.policy.on_demand_only import OnDemandOnly
from spotray.sim.optimum import optimum_usd
from spotray.sim.single import simulate

TICKS = 8


class Fixed:
    """One course, decided beforehand."""

    def __init__(self, choices: tuple[Choice, ...]) -> None:
        self._choices = choices

    def begin(self, job: Job) -> Course:
        return self

    def decide(self, view: JobView) -> JobDecision:
        return JobDecision(choice=self._choices[view.tick], why="fixed")


def cheapest_of_all(job: Job, up: bytes) -> float:
    costs = []
    options = [tuple(Choice) if there else (Choice.WAIT, Choice.ON_DEMAND) for there in up]
    for choices in itertools.product(*options):
        outcome = simulate(Fixed(choices), job, up)
        if outcome.ended_s is not None and not outcome.is_late:
            costs.append(outcome.cost_usd)
    return min(costs)


@given(
    up=st.lists(st.integers(0, 1), min_size=TICKS, max_size=TICKS).map(bytes),
    work_s=st.sampled_from([1200.0, 1500.0, 1560.0, 2400.0]),
    overhead_s=st.sampled_from([0.0, 120.0, 600.0, 840.0]),
    spot_usd=st.sampled_from([0.9, 2.9, 4.0]),
)
@settings(max_examples=40)
def test_no_course_of_the_job_is_cheaper(
    up: bytes, work_s: float, overhead_s: float, spot_usd: float
) -> None:
    job = Job(
        gap_s=600.0,
        work_s=work_s,
        deadline_s=TICKS * 600.0,
        overhead_s=overhead_s,
        spot_usd_per_hour=spot_usd,
    )
    assert optimum_usd(job, up) == pytest.approx(cheapest_of_all(job, up))


def test_without_spot_it_is_on_demand() -> None:
    job = Job(gap_s=195.0, work_s=36_000.0, deadline_s=50_000.0, overhead_s=72.0)
    up = bytes(300)
    assert optimum_usd(job, up) == pytest.approx(simulate(OnDemandOnly(), job, up).cost_usd)


def test_what_it_cannot_solve_it_says() -> None:
    job = Job(gap_s=600.0, work_s=3600.0, deadline_s=7200.0, overhead_s=60.0)
    with pytest.raises(TraceError, match="after 11 ticks, the deadline is after 12"):
        optimum_usd(job, b"\1" * 11)
    with pytest.raises(ConfigError, match="needs a deadline"):
        optimum_usd(Job(gap_s=600.0, work_s=3600.0), b"\1" * 12)
    odd = Job(gap_s=600.0, work_s=3600.0, deadline_s=7200.0, overhead_s=60.123456)
    with pytest.raises(ConfigError, match="no common unit"):
        optimum_usd(odd, b"\1" * 12)
