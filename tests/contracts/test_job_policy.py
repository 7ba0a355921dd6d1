"""What every job policy keeps, on any market. A new policy joins `POLICIES` of `sim.named`."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotray.policy.job import Choice, Job, JobPolicy
from spotray.sim.named import POLICIES, policy
from spotray.sim.optimum import optimum_usd
from spotray.sim.single import Moment, Outcome, simulate

KEEPS_DEADLINES = sorted(set(POLICIES) - {"spot-only"})
NAMES = sorted(POLICIES)


def job(work_h: float, slack_ticks: int, overhead_s: float, gap_s: float = 600.0) -> Job:
    """A job whose deadline leaves on-demand ``slack_ticks`` ticks."""
    fits = Job(gap_s=gap_s, work_s=work_h * 3600, overhead_s=overhead_s)
    ticks = fits.ticks_needed(fits.work_s) + slack_ticks
    return Job(gap_s=gap_s, work_s=work_h * 3600, deadline_s=ticks * gap_s, overhead_s=overhead_s)


# Few, for some policies work out a table for each size of job.
JOBS = (
    job(2.0, 0, 600.0),
    job(2.0, 1, 0.0),
    job(3.0, 5, 72.0),
    job(3.0, 12, 1440.0),
    job(1.7, 30, 700.0),
    job(2.5, 9, 500.0, gap_s=195.0),
)
TICKS = max(one.ticks_in(one.deadline_s) for one in JOBS)
KEPT: dict[str, JobPolicy] = {name: policy(name) for name in NAMES}  # with their tables

# Runs of spot and of none, of any lengths: an even mixture of single ticks is no market.
markets = st.lists(st.tuples(st.booleans(), st.integers(1, 20)), min_size=1, max_size=TICKS).map(
    lambda runs: (b"".join(bytes([up]) * length for up, length in runs) * TICKS)[:TICKS]
)
jobs = st.sampled_from(JOBS)


def course(name: str, one: Job, up: bytes) -> tuple[Outcome, list[Moment]]:
    moments: list[Moment] = []
    return simulate(KEPT[name], one, up, moments=moments), moments


@pytest.mark.parametrize("name", KEEPS_DEADLINES)
@given(one=jobs, up=markets)
@settings(max_examples=150)
def test_a_deadline_that_on_demand_can_meet_is_met(name: str, one: Job, up: bytes) -> None:
    outcome, _ = course(name, one, up)
    assert outcome.ended_s is not None
    assert outcome.ended_s <= one.deadline_s
    assert not outcome.is_late


@pytest.mark.parametrize("name", NAMES)
@given(one=jobs, up=markets)
def test_it_takes_spot_only_where_there_is_some_and_says_why(
    name: str, one: Job, up: bytes
) -> None:
    _, moments = course(name, one, up)
    assert all(moment.has_spot for moment in moments if moment.choice is Choice.SPOT)
    assert all(moment.why and "\n" not in moment.why for moment in moments)


@pytest.mark.parametrize("name", NAMES)
@given(one=jobs, up=markets)
def test_the_same_job_on_the_same_market_goes_the_same_way(name: str, one: Job, up: bytes) -> None:
    assert course(name, one, up) == course(name, one, up)


@pytest.mark.parametrize("name", NAMES)
@given(one=jobs, up=markets, later=markets)
def test_what_comes_later_changes_nothing_before(
    name: str, one: Job, up: bytes, later: bytes
) -> None:
    """No policy knows the future."""
    cut = TICKS // 3
    _, moments = course(name, one, up)
    _, others = course(name, one, up[:cut] + later[cut:])
    assert moments[:cut] == others[:cut]


@pytest.mark.parametrize("name", KEEPS_DEADLINES)
@given(one=jobs, up=markets)
def test_it_never_costs_less_than_the_optimum(name: str, one: Job, up: bytes) -> None:
    outcome, _ = course(name, one, up)
    assert outcome.cost_usd >= optimum_usd(one, up) - 1e-9


@pytest.mark.parametrize("name", NAMES)
@given(one=jobs, up=markets, at=st.integers(0, TICKS))
def test_the_cost_is_the_sum_of_the_costs_of_any_two_parts(
    name: str, one: Job, up: bytes, at: int
) -> None:
    outcome, moments = course(name, one, up)
    parts = [
        one.cost_usd(
            spot_ticks=sum(moment.choice is Choice.SPOT for moment in part),
            on_demand_ticks=sum(moment.choice is Choice.ON_DEMAND for moment in part),
        )
        for part in (moments[:at], moments[at:])
    ]
    if outcome.ended_s is not None:
        assert outcome.cost_usd == pytest.approx(sum(parts))
    else:  # the rest is charged as on-demand
        assert outcome.cost_usd > sum(parts)
