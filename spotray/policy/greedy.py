"""Spot while there is slack, then on-demand to the end."""

from __future__ import annotations

from spotray.policy.job import Choice, Job, JobDecision, JobView
from spotray.policy.safety import SafetyNet

_SPOT = JobDecision(choice=Choice.SPOT, why="spot can be had")
_WAIT = JobDecision(choice=Choice.WAIT, why="no spot, and slack is left")
_LAST = JobDecision(choice=Choice.ON_DEMAND, why="no slack is left: on-demand meets the deadline")


class Greedy:
    """Waits for spot as long as on-demand could still meet the deadline."""

    name = "greedy"

    def begin(self, job: Job) -> _GreedyCourse:
        return _GreedyCourse(job)


class _GreedyCourse:
    def __init__(self, job: Job) -> None:
        self._net = SafetyNet(job)

    def decide(self, view: JobView) -> JobDecision:
        if view.has_spot:
            if self._net.may_use_spot(view):
                return _SPOT
        elif self._net.may_wait(view):
            return _WAIT
        return _LAST
