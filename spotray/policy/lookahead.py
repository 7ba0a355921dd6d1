"""The default: believe in what the market does next, and weigh all that can follow."""

from __future__ import annotations

import math

from spotray.policy.chain import Belief, SpotChain, shipped
from spotray.policy.cost_to_go import IDLE, ON_DEMAND, SPOT, CostToGo, cost_to_go
from spotray.policy.job import Choice, Job, JobDecision, JobView
from spotray.policy.regret import FRAC, RegretGuard
from spotray.policy.safety import SafetyNet
from spotray.policy.uniform_progress import UniformProgress

_LAST = JobDecision(
    choice=Choice.ON_DEMAND, why="no slack is left: only on-demand is sure to meet the deadline"
)
_NAMES = {Choice.WAIT: "wait", Choice.SPOT: "spot", Choice.ON_DEMAND: "on-demand"}
_KEPT_TABLES = 4
# A wait must save that much of what spot saves: the table takes the state of the market as known
# from the next step on, which makes waiting for it look better than it is. What a tick of waiting
# must save is bounded by two starts: where a start costs little, so does not to know.
WAIT_FRAC = 0.37


class Lookahead:
    """Takes what is expected to cost least to the end, and never risks the deadline.

    A filter over the hidden states of the market says what spot will probably do; a table,
    solved once for jobs of the same size, says what each choice then costs. `SafetyNet` has
    the last word: with no slack left it is on-demand, or a spot node that already works.

    A market unlike all that the filter was fitted to may lead it astray. With a deadline it
    therefore watches what Uniform Progress would have done and paid by now, and does the same
    where its own choice would stake more than ``regret_frac`` against it (`RegretGuard`).
    """

    name = "lookahead"

    def __init__(self, chain: SpotChain | None = None, *, regret_frac: float = FRAC) -> None:
        self._chain = chain or shipped()
        self._regret_frac = regret_frac
        self._tables: dict[tuple[float, ...], CostToGo] = {}

    def begin(self, job: Job) -> _Course:
        return _Course(job, self._chain, self._table(job), self._regret_frac)

    def _table(self, job: Job) -> CostToGo:
        key = (
            job.gap_s,
            job.work_s,
            job.deadline_s,
            job.overhead_s,
            job.on_demand_usd_per_hour,
            job.spot_usd_per_hour,
            job.time_usd_per_hour,
        )
        table = self._tables.pop(key, None) or cost_to_go(self._chain, job)
        self._tables[key] = table  # the latest last
        while len(self._tables) > _KEPT_TABLES:
            del self._tables[next(iter(self._tables))]
        return table


class _Course:
    def __init__(self, job: Job, chain: SpotChain, table: CostToGo, regret_frac: float) -> None:
        self._job = job
        self._guard = (
            RegretGuard(UniformProgress(), job, frac=regret_frac) if job.has_deadline else None
        )
        self._belief = Belief(chain, job.gap_s)
        self._table = table
        self._net = SafetyNet(job)
        self._last_tick = job.ticks_in(job.deadline_s) if job.has_deadline else None
        self._spot_usd = job.cost_usd(spot_ticks=1, on_demand_ticks=0)
        self._on_demand_usd = job.cost_usd(spot_ticks=0, on_demand_ticks=1)
        saves = max(0.0, job.on_demand_usd_per_hour - job.spot_usd_per_hour) / 3600
        wait_s = min(job.gap_s, 2 * job.overhead_s) if job.has_deadline else 0.0
        self._wait_usd = WAIT_FRAC * saves * wait_s

    def decide(self, view: JobView) -> JobDecision:
        self._ahead = self._belief.see(view.has_spot)
        other = self._guard.see(view) if self._guard else None
        may_wait, may_spot = self._net.may_wait(view), self._may_spot(view)
        if may_wait or may_spot:
            usd = self._expected_usd(view, may_wait=may_wait, may_spot=may_spot)
            choice = min(usd, key=usd.__getitem__)
            decision = self._checked(choice, usd, other, has_spot=view.has_spot)
        else:
            decision = _LAST
        if self._guard:
            self._guard.chose(decision.choice)
        return decision

    def _may_spot(self, view: JobView) -> bool:
        """Whether there is spot, and slack for the whole start that it takes."""
        if not view.has_spot or not self._net.may_use_spot(view):
            return False
        if self._last_tick is None or view.running is Choice.SPOT:
            return True
        job = self._job
        slack_s = (self._last_tick - view.tick) * job.gap_s - (job.work_s - view.done_s)
        return slack_s >= 2 * job.overhead_s

    def _expected_usd(
        self, view: JobView, *, may_wait: bool, may_spot: bool
    ) -> dict[Choice, float]:
        """What each choice costs to the end; on equal terms the first is taken."""
        running, job = view.running, self._job
        left_s, gap_s = job.work_s - view.done_s, job.gap_s
        self._time_left_s = (
            (self._last_tick - view.tick - 1) * gap_s if self._last_tick is not None else math.inf
        )
        usd = {}
        if may_spot:
            overhead_s = view.overhead_left_s if running is Choice.SPOT else job.overhead_s
            usd[Choice.SPOT] = self._spot_usd + self._usd_on_spot(
                left_s - max(0.0, gap_s - overhead_s), max(0.0, overhead_s - gap_s)
            )
        if may_wait:
            usd[Choice.WAIT] = self._wait_usd + self._usd(IDLE, left_s)
        overhead_s = view.overhead_left_s if running is Choice.ON_DEMAND else job.overhead_s
        usd[Choice.ON_DEMAND] = self._on_demand_usd + self._usd(
            ON_DEMAND, left_s - gap_s + overhead_s
        )
        return usd

    def _checked(
        self, choice: Choice, usd: dict[Choice, float], other: JobDecision | None, *, has_spot: bool
    ) -> JobDecision:
        """The choice with its reason, or what the guard has instead of it."""
        guard = self._guard
        if guard is None or other is None or guard.allows(choice):
            return JobDecision(choice=choice, why=_why(choice, usd, has_spot=has_spot))
        allowed = [one for one in usd if guard.allows(one)]
        # None is, where what the other does would risk the deadline.
        instead = min(allowed, key=usd.__getitem__) if allowed else min(usd, key=guard.staked_usd)
        return JobDecision(
            choice=instead,
            why=f"{_NAMES[instead]}, not {_NAMES[choice]}: that stakes "
            f"{guard.staked_usd(choice):.2f} USD more than {UniformProgress.name} pays",
        )

    def _usd(self, kind: int, work_s: float) -> float:
        """The table at this much work, by the belief; all lines between its rows straight."""
        if work_s <= 0:
            return 0.0
        usd, step_s = self._table.usd, self._table.step_s
        works, slacks = usd.shape[1] - 1, usd.shape[2] - 1
        work = work_s / step_s
        slack = min(max(0.0, (self._time_left_s - work_s) / step_s), slacks)
        low, at = min(int(work), works - 1), min(int(slack), slacks - 1)
        (a, b), (c, d) = (usd[kind, low : low + 2, at : at + 2] @ self._ahead).tolist()
        slack -= at
        less, more = a + slack * (b - a), c + slack * (d - c)
        return float(less + (work - low) * (more - less))

    def _usd_on_spot(self, work_s: float, overhead_s: float) -> float:
        """With what is left of a start between those of two kinds, between their costs."""
        if overhead_s <= 0:
            return self._usd(SPOT, work_s)
        lefts = self._table.overheads_s
        below = max(
            (k for k, left in enumerate(lefts) if left <= overhead_s), key=lefts.__getitem__
        )
        above = [k for k, left in enumerate(lefts) if left > overhead_s]
        low = self._usd(SPOT + below, work_s)
        if not above:
            return low
        over = min(above, key=lefts.__getitem__)
        part = (overhead_s - lefts[below]) / (lefts[over] - lefts[below])
        return low + part * (self._usd(SPOT + over, work_s) - low)


def _why(choice: Choice, usd: dict[Choice, float], *, has_spot: bool) -> str:
    others = [
        f"{_NAMES[one]} {usd[one]:.2f}" if one in usd else "no spot"
        for one in (Choice.ON_DEMAND, Choice.WAIT, Choice.SPOT)
        if one is not choice and (one in usd or (one is Choice.SPOT and not has_spot))
    ]
    return f"{_NAMES[choice]}: {usd[choice]:.2f} USD to the end expected, {', '.join(others)}"
