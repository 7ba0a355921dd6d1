"""Uniform Progress: stay on a straight line from start to deadline."""

from __future__ import annotations

import math

from spotray.errors import ConfigError
from spotray.policy.job import Choice, Job, JobDecision, JobView

_SPOT = JobDecision(choice=Choice.SPOT, why="spot can be had")
_WAIT = JobDecision(choice=Choice.WAIT, why="no spot, but ahead of the line to the deadline")
_BEHIND = JobDecision(choice=Choice.ON_DEMAND, why="no spot, and behind the line to the deadline")
_STAY = JobDecision(choice=Choice.ON_DEMAND, why="on on-demand until far enough ahead of the line")
_LAST = JobDecision(choice=Choice.ON_DEMAND, why="no slack is left: on-demand meets the deadline")
_LAST_SPOT = JobDecision(choice=Choice.SPOT, why="no slack is left, and this spot node works")


class UniformProgress:
    """Spot when there is some; on-demand when progress falls behind ``t * work / deadline``.

    With the published rule of hysteresis: once on on-demand, it stays until it is two
    overheads ahead of the line. The safety net takes on-demand to the end when the time
    left is no more than the work left plus an overhead.

    Source:
        Z. Wu et al., "Can't Be Late: Optimizing Spot Instance Savings under Deadlines",
        NSDI 2024.
    """

    name = "uniform progress"

    def begin(self, job: Job) -> _UniformCourse:
        if not job.has_deadline:
            raise ConfigError("uniform progress needs a deadline: give one, or another policy")
        return _UniformCourse(job)


class _UniformCourse:
    def __init__(self, job: Job) -> None:
        self._gap_s, self._overhead_s, self._work_s = job.gap_s, job.overhead_s, job.work_s
        self._deadline_s = job.deadline_s
        self._rate = job.work_s / job.deadline_s

    def decide(self, view: JobView) -> JobDecision:
        gap_s, overhead_s, running = self._gap_s, self._overhead_s, view.running
        work_left_s = self._work_s - view.done_s
        ticks_left = (self._deadline_s - view.elapsed_s) // gap_s
        if work_left_s + 2 * overhead_s + gap_s > ticks_left * gap_s:  # the exact tests cost more
            if math.ceil((work_left_s + overhead_s) / gap_s) >= ticks_left:
                works = running is Choice.SPOT and view.overhead_left_s < 1e-3
                return _LAST_SPOT if works else _LAST
            if math.ceil((work_left_s + 2 * overhead_s) / gap_s) >= ticks_left and (
                running is not Choice.SPOT
            ):
                return _LAST
        if running is Choice.ON_DEMAND:
            ahead_s = view.done_s - (view.elapsed_s + 2 * overhead_s) * self._rate
            if not view.has_spot or ahead_s <= 0:
                return _STAY
        if view.has_spot:
            return _SPOT
        return _BEHIND if view.done_s < view.elapsed_s * self._rate else _WAIT
