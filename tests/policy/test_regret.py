"""The guard's sums, done by hand for a job whose hour costs 1 USD on spot and 3 on on-demand."""

from __future__ import annotations

import pytest

from spotray.policy.job import Choice, Job, JobDecision, JobView
from spotray.policy.regret import RegretGuard

HOUR = 3600.0
W, S, D = Choice.WAIT, Choice.SPOT, Choice.ON_DEMAND
JOB = Job(
    gap_s=HOUR,
    work_s=20 * HOUR,
    deadline_s=30 * HOUR,
    overhead_s=0.0,
    on_demand_usd_per_hour=3.0,
    spot_usd_per_hour=1.0,
)


class Always:
    """The same choices at every job; the last of them on and on."""

    def __init__(self, *choices: Choice) -> None:
        self._choices = choices

    def begin(self, job: Job) -> Always:
        return self

    def decide(self, view: JobView) -> JobDecision:
        at = min(view.tick, len(self._choices) - 1)
        return JobDecision(choice=self._choices[at], why="always")


def guard(other: Choice, *, frac: float = 0.15, stake: float = 0.0, job: Job = JOB) -> RegretGuard:
    made = RegretGuard(Always(other), job, frac=frac, stake=stake)
    made.see(JobView(has_spot=other is S))
    return made


def test_to_wait_while_the_other_works_stakes_the_work_at_the_dearer_price() -> None:
    assert guard(D).staked_usd(W) == pytest.approx(-3.0 + 3.0)
    assert guard(S).staked_usd(W) == pytest.approx(-1.0 + 3.0)


def test_to_work_while_the_other_waits_is_worth_the_work_at_the_cheaper_price() -> None:
    assert guard(W).staked_usd(D) == pytest.approx(3.0 - 1.0)


def test_being_behind_stakes_what_is_left_when_the_slack_runs_out() -> None:
    # One hour behind, two hours' work of the other for each: both of them at 2 USD more.
    assert guard(D, stake=1.0).staked_usd(W) == pytest.approx(2 * 2.0)
    assert guard(D, stake=0.5).staked_usd(W) == pytest.approx(2.0)


def test_a_start_puts_a_job_behind() -> None:
    slow = Job(gap_s=HOUR, work_s=20 * HOUR, deadline_s=30 * HOUR, overhead_s=2 * HOUR)
    watch = guard(D, job=slow)
    watch.chose(D)
    watch.see(JobView(tick=1, running=D, overhead_left_s=HOUR, has_spot=True))
    assert watch.staked_usd(D) == 0.0
    # Spot for an hour and one to go, where on-demand would have worked by then.
    assert watch.staked_usd(S) == pytest.approx(0.9731 - 3.06 + 3.06)


def test_to_work_as_the_other_does_is_always_allowed_and_the_rest_up_to_the_bound() -> None:
    # The least that the other can cost is 3 USD and 19 hours of spot.
    assert guard(D, frac=0.0).allows(D)
    assert guard(S, frac=2.1 / 20).allows(W)
    assert not guard(S, frac=1.9 / 20).allows(W)


def test_it_follows_the_other_into_waiting_only_with_as_much_work_done() -> None:
    for first, follows in ((S, True), (W, False)):
        watch = RegretGuard(Always(S, W), JOB, frac=0.0, stake=1.0)
        watch.see(JobView(has_spot=True))
        watch.chose(first)
        done_s = HOUR if first is S else 0.0
        watch.see(JobView(tick=1, done_s=done_s))
        assert watch.allows(W) == follows
        assert watch.allows(D)


def test_alone_it_leaves_on_demand_only_with_slack_for_more_starts() -> None:
    def leaves(slack_ticks: int, *, other: Choice, done_ticks: int = 0) -> bool:
        tight = Job(
            gap_s=HOUR,
            work_s=40 * HOUR,
            deadline_s=(40 + slack_ticks) * HOUR,
            overhead_s=HOUR,
        )
        watch = RegretGuard(Always(other), tight, frac=9.0, starts=4.0)
        watch.see(JobView(running=D, done_s=done_ticks * HOUR, tick=done_ticks, has_spot=True))
        return watch.allows(S)

    assert leaves(7, other=D)
    assert not leaves(6, other=D)
    assert leaves(6, other=S)
    assert leaves(6, other=D, done_ticks=10)


def test_what_was_paid_before_counts() -> None:
    watch = guard(S, frac=0.15)
    assert watch.allows(D)  # 2 USD of the 3 that it may
    watch.chose(D)
    watch.see(JobView(tick=1, running=D, done_s=HOUR, has_spot=True))
    assert watch.staked_usd(S) == pytest.approx(4.0 - 2.0)
    assert watch.staked_usd(D) == pytest.approx(6.0 - 2.0)
    assert not watch.allows(D)


def test_once_the_other_is_done_everything_is_allowed() -> None:
    short = Job(gap_s=HOUR, work_s=HOUR, deadline_s=30 * HOUR)
    watch = RegretGuard(Always(D), short, frac=0.0)
    assert watch.see(JobView()) is not None
    watch.chose(W)
    assert watch.see(JobView(tick=1)) is None
    assert watch.allows(W)
    assert watch.allows(D)
