"""What another policy would have done and paid by now: spot is there or not, whoever asks."""

from __future__ import annotations

from spotray.policy.job import Choice, Job, JobDecision, JobPolicy, JobView


class Shadow:
    """A job like this one, under another policy, on the spot that this one sees."""

    def __init__(self, policy: JobPolicy, job: Job) -> None:
        self._job = job
        self._course = policy.begin(job)
        self._view = JobView()
        self._prices = (
            0.0,
            job.cost_usd(spot_ticks=1, on_demand_ticks=0),
            job.cost_usd(spot_ticks=0, on_demand_ticks=1),
        )
        self.cost_usd = 0.0  # before the tick that `see` was last told of
        self.done_s = 0.0  # at its start
        self.running = Choice.WAIT  # before it
        self.decision: JobDecision | None = None  # for it; None once the job is done
        self._overhead_left_s = 0.0

    def see(self, view: JobView) -> None:
        """Live through the tick before, and decide on the one that begins."""
        if self.decision is not None:
            self._live(self.decision.choice)
        if self.done_s >= self._job.work_s - 1e-6:
            self.decision, self.running = None, Choice.WAIT
            return
        own = self._view
        own.preempted = self.running is Choice.SPOT and not view.has_spot
        if own.preempted:
            self.running = Choice.WAIT
        own.tick, own.elapsed_s, own.has_spot = view.tick, view.elapsed_s, view.has_spot
        own.running, own.done_s = self.running, self.done_s
        own.overhead_left_s = 0.0 if self.running is Choice.WAIT else self._overhead_left_s
        self.decision = self._course.decide(own)

    def _live(self, choice: Choice) -> None:
        if choice is not self.running:
            self._overhead_left_s = self._job.overhead_s
        self.running = choice
        self.cost_usd += self._prices[choice]
        if choice is not Choice.WAIT:
            gap_s = self._job.gap_s
            self.done_s += max(0.0, gap_s - self._overhead_left_s)
            self._overhead_left_s = max(0.0, self._overhead_left_s - gap_s)
