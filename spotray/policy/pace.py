"""What time a job on several nodes still has: the line to its deadline, and its safety net."""

from __future__ import annotations

import math

from spotray.policy.fleet import FleetJob, FleetView


class Pace:
    """Whether a job may wait, may be on spot, and whether it lags behind its line."""

    def __init__(self, job: FleetJob) -> None:
        self._job = job
        self._rate = 1 - job.pauses.save_frac
        # What vanishes without a word takes that much with it.
        self._at_stake_s = min(job.pauses.checkpoint_s * job.speeds[-1] * self._rate, job.work_s)
        # A start, and that nodes which are there already meet those that come.
        pauses = job.pauses
        self._start_s = job.start_s + pauses.noticed_s + pauses.silent_s + pauses.joined_s

    def may_risk(self, view: FleetView) -> bool:
        """Whether on-demand meets the deadline even if this tick brings nothing.

        Even if all nodes vanish, all of them start anew on on-demand at the next tick, and
        what no checkpoint holds is done again.
        """
        job = self._job
        if not job.has_deadline:
            return True
        left_s = job.deadline_s - view.elapsed_s - job.gap_s
        work_s = job.work_s - view.done_s + min(self._at_stake_s, view.done_s)
        return self._start_s + job.fastest_s(work_s) <= left_s - 1e-6

    def pays_for_on_demand(
        self, view: FleetView, *, is_there: bool, more_usd_per_hour: float
    ) -> bool:
        """Whether to be on on-demand while spot is out, or to wait for spot.

        With a deadline as in Uniform Progress: to stay on the line, and once there until two
        starts ahead of it. Without one, if an hour is worth what on-demand costs more.
        """
        job = self._job
        if not job.has_deadline:
            return job.time_usd_per_hour >= more_usd_per_hour
        if is_there:
            return self.ahead_s(view, later_s=2 * job.start_s) <= 0
        return self.ahead_s(view) < 0

    def ahead_s(self, view: FleetView, *, later_s: float = 0.0) -> float:
        """Work done beyond the straight line from start to deadline, ``later_s`` from now.

        Infinite without a deadline.
        """
        job = self._job
        if not job.has_deadline:
            return math.inf
        at_s = min(view.elapsed_s + later_s, job.deadline_s)
        return view.done_s - at_s * job.work_s / job.deadline_s

    def needed_speed(self, view: FleetView) -> float:
        """How fast the rest must be done to be in time, beside one node; 0 without a deadline."""
        job = self._job
        if not job.has_deadline:
            return 0.0
        left_s = job.deadline_s - view.elapsed_s - job.start_s
        if left_s <= 0:
            return math.inf
        return (job.work_s - view.done_s) / left_s / self._rate
