"""Spot whenever there is some, whatever the deadline: what waiting alone would give."""

from __future__ import annotations

from spotray.policy.job import Choice, Job, JobDecision, JobView

_SPOT = JobDecision(choice=Choice.SPOT, why="spot can be had")
_WAIT = JobDecision(choice=Choice.WAIT, why="no spot: wait for it")


class SpotOnly:
    """Cheap, and done when it is done: it does not look at the deadline."""

    name = "spot only"

    def begin(self, job: Job) -> SpotOnly:
        return self

    def decide(self, view: JobView) -> JobDecision:
        return _SPOT if view.has_spot else _WAIT
