"""Uniform Progress keeps to its line, and leaves on-demand only when well ahead of it."""

from __future__ import annotations

import pytest

from spotray.errors import ConfigError
from spotray.policy.job import Choice, Job
from spotray.policy.uniform_progress import UniformProgress
from spotray.sim.single import Moment, simulate

W, S, D = Choice.WAIT, Choice.SPOT, Choice.ON_DEMAND
JOB = Job(gap_s=600.0, work_s=6000.0, deadline_s=12_000.0, overhead_s=600.0)


def choices(job: Job, up: list[int]) -> list[Choice]:
    moments: list[Moment] = []
    ticks = job.ticks_in(job.deadline_s)
    simulate(UniformProgress(), job, bytes((up + [0] * ticks)[:ticks]), moments=moments)
    return [moment.choice for moment in moments]


def test_without_spot_it_falls_to_on_demand_once_behind_the_line() -> None:
    # On the line at the start; behind it a tick later, for half a tick is due by then.
    assert choices(JOB, [])[:2] == [W, D]


def test_it_stays_on_on_demand_until_two_overheads_ahead() -> None:
    took = choices(JOB, [0] * 4 + [1] * 30)
    # From tick 1 on, the first of them an overhead: by tick k, k - 2 ticks of work are done,
    # and it leaves when that is more than half of k + 2.
    assert took[:9] == [W, D, D, D, D, D, D, S, S]


def test_ahead_of_the_line_it_waits_for_spot() -> None:
    took = choices(JOB, [1] * 5 + [0] * 30)
    assert took[:9] == [S, S, S, S, S, W, W, W, W]
    assert took[9] is D


def test_with_room_for_one_more_start_only_it_takes_no_spot() -> None:
    tight = Job(gap_s=600.0, work_s=6000.0, deadline_s=7800.0, overhead_s=600.0)
    assert choices(tight, [1] * 20) == [S] * 11
    assert choices(tight, [0, *[1] * 20]) == [W, *[D] * 11]


def test_it_needs_a_deadline() -> None:
    with pytest.raises(ConfigError, match="needs a deadline"):
        UniformProgress().begin(Job(gap_s=600.0, work_s=6000.0))
