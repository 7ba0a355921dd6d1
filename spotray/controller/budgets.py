"""Stops a job when its cluster has cost what the job allows."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

from spotray.controller.limits import JobLimits, NodeSpan, spent
from spotray.events import BudgetReached, Event, Warned

log = logging.getLogger(__name__)


class BudgetWatch:
    """Looks at the budgets of the running jobs. For one thread.

    Args:
        stop: has Ray stop the job of a driver: why it cannot, empty if it does.
        tell: takes events.
    """

    def __init__(self, *, stop: Callable[[str], str], tell: Callable[[Event], None]) -> None:
        self._stop, self._tell = stop, tell
        self._stopped: set[tuple[str, float]] = set()  # runs of jobs, by name and start
        self._said: dict[tuple[str, float], str] = {}  # the last words on each, told once

    def look(
        self, jobs: Sequence[JobLimits], nodes: Callable[[], list[NodeSpan]], *, now_s: float
    ) -> bool:
        """Whether the budget of one that still runs is used up; it is told to stop once."""
        limited = [job for job in jobs if not math.isinf(job.max_cost_usd)]
        if not limited:
            return False
        spans = nodes()
        return any([self._is_used_up(job, spans, now_s) for job in limited])

    def _is_used_up(self, job: JobLimits, spans: Sequence[NodeSpan], now_s: float) -> bool:
        run = (job.name, job.began_s)
        so_far = spent(spans, from_s=job.began_s, now_s=now_s)
        if so_far.usd < job.max_cost_usd:
            if so_far.unknown:
                what = (
                    f"the budget of job {job.name} counts only nodes whose price is known: none "
                    f"is known of {', '.join(so_far.unknown[:3])}"
                )
                self._say_once(run, what, Warned(at_s=now_s, what=what))
            return False
        if run not in self._stopped:
            failed = self._stop(job.driver)
            if not failed:
                self._stopped.add(run)
            reached = BudgetReached(
                at_s=now_s,
                job=job.name,
                spent_usd=so_far.usd,
                max_cost_usd=job.max_cost_usd,
                failed=failed,
            )
            words = f"job {job.name}: its budget is used up: {failed or 'it is stopped'}"
            self._say_once(run, words, reached)
        return True

    def _say_once(self, run: tuple[str, float], words: str, event: Event) -> None:
        if self._said.get(run) != words:
            self._said[run] = words
            log.warning("%s", words)
            self._tell(event)
