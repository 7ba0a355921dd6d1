"""What another policy would have done and paid by now: spot is there or not, whoever asks."""

from __future__ import annotations

from dataclasses import dataclass

from spotray.policy.job import Choice, Job, JobDecision, JobPolicy, JobView


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """How far a job is at the start of a tick."""

    running: Choice = Choice.WAIT
    done_s: float = 0.0
    overhead_left_s: float = 0.0
    cost_usd: float = 0.0

    def ready_s(self, job: Job) -> float:
        """Work done, less what has to be spent on a start before there is more."""
        waits = self.running is Choice.WAIT
        return self.done_s - (job.overhead_s if waits else self.overhead_left_s)

    def after(self, choice: Choice, job: Job) -> Standing:
        """A tick later."""
        overhead_s = self.overhead_left_s if choice is self.running else job.overhead_s
        if choice is Choice.WAIT:
            return Standing(running=choice, done_s=self.done_s, cost_usd=self.cost_usd)
        spot = choice is Choice.SPOT
        return Standing(
            running=choice,
            done_s=self.done_s + max(0.0, job.gap_s - overhead_s),
            overhead_left_s=max(0.0, overhead_s - job.gap_s),
            cost_usd=self.cost_usd + job.cost_usd(spot_ticks=spot, on_demand_ticks=not spot),
        )


class Shadow:
    """A job like this one, under another policy, on the spot that this one sees."""

    def __init__(self, policy: JobPolicy, job: Job) -> None:
        self._job = job
        self._course = policy.begin(job)
        self._view = JobView()
        self.before = Standing()  # at the start of the tick that `see` was last told of
        self.after = Standing()  # at its end
        self.decision: JobDecision | None = None  # for it; None once the job is done

    def see(self, view: JobView) -> None:
        """Decide on the tick that begins, and live through it."""
        now = self.after
        if now.done_s >= self._job.work_s - 1e-6:
            self.before, self.decision = now, None
            return
        own = self._view
        own.preempted = now.running is Choice.SPOT and not view.has_spot
        if own.preempted:
            now = Standing(done_s=now.done_s, cost_usd=now.cost_usd)
        own.tick, own.elapsed_s, own.has_spot = view.tick, view.elapsed_s, view.has_spot
        own.running, own.done_s = now.running, now.done_s
        own.overhead_left_s = now.overhead_left_s
        self.before, self.decision = now, self._course.decide(own)
        self.after = now.after(self.decision.choice, self._job)
