"""Spot, until spot nodes do not live long enough to be worth their start."""

from __future__ import annotations

import math

from spotray.errors import ConfigError
from spotray.policy.greedy import Greedy
from spotray.policy.job import Choice, Course, Job, JobDecision, JobPolicy, JobView


class LoopGuard:
    """Another policy's choices, but no endless round of starts and preemptions.

    A spot node pays if it lives longer than its start, and the start of what replaces it,
    cost: that is the break-even life. When the last ``losses`` spot nodes lived less than that
    in the mean, on-demand takes over for ``cooldown_s``, twice as long each further time, until
    a node outlives it. So how often is too often follows from prices, overhead and
    the hazard that the job itself has met.
    """

    def __init__(
        self,
        inner: JobPolicy | None = None,
        *,
        losses: int = 3,
        cooldown_s: float = 1800.0,
        cooldown_max_s: float = 4 * 3600.0,
    ) -> None:
        if losses < 1:
            raise ConfigError(f"losses is {losses!r}: give a whole number of at least 1")
        if not 0 < cooldown_s <= cooldown_max_s < math.inf:
            raise ConfigError(
                f"cooldown_s is {cooldown_s!r}, cooldown_max_s {cooldown_max_s!r}: "
                "give numbers above 0, the second at least the first"
            )
        self._inner = inner or Greedy()
        self._losses, self._cooldown_s, self._max_s = losses, cooldown_s, cooldown_max_s
        self.name = "loop guard"

    def begin(self, job: Job) -> _GuardedCourse:
        return _GuardedCourse(
            job,
            self._inner.begin(job),
            losses=self._losses,
            cooldown_s=self._cooldown_s,
            max_s=self._max_s,
        )


def break_even_life_s(job: Job) -> float:
    """How long a spot node must live to cost no more than on-demand, seconds.

    It saves the difference of the prices while it lives, and costs an overhead at its own
    price and one at on-demand's, for what comes after it. Infinite if spot is not cheaper.

    >>> round(break_even_life_s(Job(gap_s=60, work_s=3600, overhead_s=360)))
    696
    """
    saves = job.on_demand_usd_per_hour - job.spot_usd_per_hour
    if saves <= 0:
        return math.inf
    both = job.on_demand_usd_per_hour + job.spot_usd_per_hour
    return job.overhead_s * both / saves


class _GuardedCourse:
    def __init__(
        self, job: Job, inner: Course, *, losses: int, cooldown_s: float, max_s: float
    ) -> None:
        self._inner, self._needed = inner, losses
        self._cooldown_s, self._max_s = cooldown_s, max_s
        self._pays_s = break_even_life_s(job)
        self._born_s: float | None = None
        self._lives: list[float] = []  # of the latest spot nodes that were taken, seconds
        self._trips = 0
        self._until_s = -math.inf

    def decide(self, view: JobView) -> JobDecision:
        now_s = view.elapsed_s
        if view.preempted and self._born_s is not None:
            self._lost(now_s - self._born_s, now_s)
        decision = self._inner.decide(view)
        if now_s < self._until_s:
            minutes = (self._until_s - now_s) / 60
            decision = JobDecision(
                choice=Choice.ON_DEMAND,
                why=f"loop guard: spot nodes lived less than {self._pays_s / 60:.0f} min; "
                f"no spot for {minutes:.0f} min",
            )
        if decision.choice is not Choice.SPOT:
            self._born_s = None
        elif view.running is not Choice.SPOT:
            self._born_s = now_s
        return decision

    def _lost(self, lived_s: float, now_s: float) -> None:
        if lived_s >= self._pays_s:
            self._trips = 0
        self._lives = [*self._lives, lived_s][-self._needed :]
        if len(self._lives) == self._needed and sum(self._lives) < self._needed * self._pays_s:
            self._until_s = now_s + min(self._cooldown_s * 2.0 ** min(self._trips, 30), self._max_s)
            self._trips += 1
            self._lives = []
