"""On-demand from start to end: what all costs are compared with."""

from __future__ import annotations

from spotray.policy.job import Choice, Job, JobDecision, JobView

_DECISION = JobDecision(choice=Choice.ON_DEMAND, why="on-demand only")


class OnDemandOnly:
    """Never waits, is never preempted."""

    name = "on-demand only"

    def begin(self, job: Job) -> OnDemandOnly:
        return self

    def decide(self, view: JobView) -> JobDecision:
        return _DECISION
