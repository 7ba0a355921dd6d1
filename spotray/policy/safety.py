"""What a job can still afford before only on-demand meets its deadline."""

from __future__ import annotations

import math

from spotray.policy.job import Choice, Job, JobView

_NEAR = 1e-6


class SafetyNet:
    """Which choices of this tick leave on-demand a way to meet the deadline.

    Exact: a choice is refused only if, after it, a start of on-demand at the next tick
    would come too late. Without a deadline all is allowed.
    """

    def __init__(self, job: Job) -> None:
        self._gap_s, self._overhead_s, self._work_s = job.gap_s, job.overhead_s, job.work_s
        self._last_tick = job.ticks_in(job.deadline_s) if job.has_deadline else None

    def may_wait(self, view: JobView) -> bool:
        """Whether nothing has to be done in this tick."""
        return self._in_time(view.tick, self._work_s - view.done_s)

    def may_use_spot(self, view: JobView) -> bool:
        """Whether the job may be on spot in this tick, given that there is some.

        A spot node that already works can be kept to the very end: each tick on it does
        a tick of work, so whenever it is lost on-demand is no later than it was.
        """
        overhead_s = view.overhead_left_s if view.running is Choice.SPOT else self._overhead_s
        worked_s = max(0.0, self._gap_s - overhead_s)
        return self._in_time(view.tick, self._work_s - view.done_s - worked_s)

    def _in_time(self, tick: int, work_left_s: float) -> bool:
        """Whether on-demand can start at the next tick and be in time."""
        if self._last_tick is None or work_left_s <= _NEAR:
            return True
        needed = math.ceil((work_left_s + self._overhead_s) / self._gap_s - _NEAR)
        return needed <= self._last_tick - tick - 1
