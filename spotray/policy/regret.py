"""How much dearer than another policy a job may end, and what it may still risk."""

from __future__ import annotations

from spotray.policy.job import Choice, Job, JobDecision, JobPolicy, JobView
from spotray.policy.shadow import Shadow, Standing

FRAC = 0.15  # of the least that the other policy can still cost
STAKE = 0.3  # how much of the worst that can follow is counted
STARTS = 6.0  # that many of them there shall be slack for, at the beginning; then fewer


class RegretGuard:
    """Follows another policy, in the shadow of this job, where a choice would stake too much.

    What a choice stakes is how much dearer than the other policy the job stands after it:

    - what it has paid more so far;
    - the work that it is behind, at the price of on-demand, for it may never find spot for it;
      or, if it is ahead, less the work that it is ahead, at the price of spot;
    - being behind, it may run out of slack while the other policy still has some. From then on
      it is on on-demand, and at worst the other on spot to the end. A policy that keeps to a
      straight line from start to deadline has no more work left by then than
      ``(behind + overhead) * work / (deadline - work)``. This worst is rare: ``stake`` of it is
      counted.

    A choice may be made if it stakes no more than ``frac`` of the least that the other policy
    can still cost, or if the other policy makes it too. A wait of the other is not followed if
    to work instead stakes less: with less slack than the other has, it ends on on-demand.

    Every start uses up slack. While the other stays on on-demand, this job leaves on-demand for
    spot only with slack for three starts and ``starts`` more, of which the work done takes its
    share away.
    """

    def __init__(
        self,
        other: JobPolicy,
        job: Job,
        *,
        frac: float = FRAC,
        stake: float = STAKE,
        starts: float = STARTS,
    ) -> None:
        self._job, self._frac, self._starts = job, frac, starts
        self._last_tick = job.ticks_in(job.deadline_s)
        self._shadow = Shadow(other, job)
        self._spot = job.spot_usd_per_hour / 3600
        self._on_demand = job.on_demand_usd_per_hour / 3600
        self._stake = stake * max(0.0, self._on_demand - self._spot)
        spare_s = job.deadline_s - job.work_s
        self._reach = job.work_s / spare_s if spare_s > 0 else float("inf")
        self._own = Standing()
        self._paid_usd = self._slack_s = 0.0

    def see(self, view: JobView) -> JobDecision | None:
        """What the other policy does in the tick that begins; None once it is done."""
        self._own = Standing(
            running=view.running,
            done_s=view.done_s,
            overhead_left_s=view.overhead_left_s,
            cost_usd=self._paid_usd,
        )
        left_s = (self._last_tick - view.tick) * self._job.gap_s
        self._slack_s = left_s - (self._job.work_s - view.done_s)
        self._shadow.see(view)
        return self._shadow.decision

    def staked_usd(self, choice: Choice) -> float:
        """How much dearer than the other policy the job stands after that choice."""
        own, other, job = self._own.after(choice, self._job), self._shadow.after, self._job
        paid_usd = own.cost_usd - other.cost_usd
        behind_s = other.ready_s(job) - own.ready_s(job)
        if behind_s <= 0:
            return paid_usd + behind_s * self._spot
        left_s = min(job.work_s - other.done_s, (behind_s + job.overhead_s) * self._reach)
        return paid_usd + behind_s * self._on_demand + max(0.0, left_s) * self._stake

    def allows(self, choice: Choice) -> bool:
        """Whether that choice stakes no more than it may."""
        decision, other = self._shadow.decision, self._shadow.after
        if decision is None:
            return True
        theirs = decision.choice
        if choice is theirs and choice is not Choice.WAIT:
            return True
        if choice is Choice.ON_DEMAND and theirs is Choice.WAIT:
            return True
        if choice is Choice.SPOT and theirs is self._own.running is Choice.ON_DEMAND:
            starts = 3 + self._starts * (1 - self._own.done_s / self._job.work_s)
            if self._slack_s < starts * self._job.overhead_s:
                return False
        staked_usd = self.staked_usd(choice)
        least_usd = other.cost_usd + max(0.0, self._job.work_s - other.done_s) * self._spot
        if staked_usd <= self._frac * least_usd:
            return True
        return choice is theirs and staked_usd <= self.staked_usd(Choice.ON_DEMAND)

    def chose(self, choice: Choice) -> None:
        """What the job does in this tick."""
        self._paid_usd = self._own.after(choice, self._job).cost_usd
