"""The default: believe in what the market does next, and weigh all that can follow."""

from __future__ import annotations

import math

from spotray.policy.chain import Belief, SpotChain, shipped
from spotray.policy.cost_to_go import IDLE, ON_DEMAND, SPOT, CostToGo, cost_to_go
from spotray.policy.job import Choice, Job, JobDecision, JobView
from spotray.policy.safety import SafetyNet
from spotray.policy.shadow import Shadow
from spotray.policy.uniform_progress import UniformProgress

_LAST = JobDecision(
    choice=Choice.ON_DEMAND, why="no slack is left: only on-demand is sure to meet the deadline"
)
_KEPT_TABLES = 4
REGRET = 0.12  # of the least that Uniform Progress can still cost


class Lookahead:
    """Takes what is expected to cost least to the end, and never risks the deadline.

    A filter over the hidden states of the market says what spot will probably do; a table,
    solved once for jobs of the same size, says what each choice then costs. `SafetyNet` has
    the last word: with no slack left it is on-demand, or a spot node that already works.

    A market unlike all that the filter was fitted to may lead it astray. With a deadline it
    therefore watches what Uniform Progress would have done and paid by now, and does the same
    while it stands to end more than ``regret_frac`` dearer.
    """

    name = "lookahead"

    def __init__(self, chain: SpotChain | None = None, *, regret_frac: float = REGRET) -> None:
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


class _Regret:
    """How much dearer than Uniform Progress the job may still end, at worst."""

    def __init__(self, job: Job, regret_frac: float) -> None:
        self._job, self._frac = job, regret_frac
        self._other = Shadow(UniformProgress(), job)
        self._spent_usd = 0.0
        self._prices = (
            0.0,
            job.cost_usd(spot_ticks=1, on_demand_ticks=0),
            job.cost_usd(spot_ticks=0, on_demand_ticks=1),
        )

    def chose(self, choice: Choice) -> None:
        self._spent_usd += self._prices[choice]

    def see(self, view: JobView) -> JobDecision | None:
        """What Uniform Progress does in this tick, if it is to be followed; else None.

        From here on doing what it does costs what it costs. Being behind it is made up for
        on on-demand, being ahead saves spot time at least; and a change costs an overhead.
        """
        job, other = self._job, self._other
        other.see(view)
        if other.decision is None:
            return None
        ahead_s = view.done_s - other.done_s
        if view.running is not other.running and other.running is not Choice.WAIT:
            ahead_s -= job.overhead_s
        rate = job.spot_usd_per_hour if ahead_s > 0 else job.on_demand_usd_per_hour
        excess_usd = self._spent_usd - other.cost_usd - ahead_s / 3600 * rate
        least_usd = other.cost_usd + (job.work_s - other.done_s) / 3600 * job.spot_usd_per_hour
        if excess_usd <= self._frac * least_usd:
            return None
        return JobDecision(
            choice=other.decision.choice,
            why=f"as uniform progress, which may end {excess_usd:.2f} USD cheaper: "
            f"{other.decision.why}",
        )


class _Course:
    def __init__(self, job: Job, chain: SpotChain, table: CostToGo, regret_frac: float) -> None:
        self._job = job
        self._guard = _Regret(job, regret_frac) if job.has_deadline else None
        self._belief = Belief(chain, job.gap_s)
        self._table = table
        self._net = SafetyNet(job)
        self._last_tick = job.ticks_in(job.deadline_s) if job.has_deadline else None
        self._spot_usd = job.cost_usd(spot_ticks=1, on_demand_ticks=0)
        self._on_demand_usd = job.cost_usd(spot_ticks=0, on_demand_ticks=1)

    def decide(self, view: JobView) -> JobDecision:
        self._ahead = self._belief.see(view.has_spot)
        instead = self._guard.see(view) if self._guard else None
        decision = self._own(view, instead)
        if self._guard:
            self._guard.chose(decision.choice)
        return decision

    def _own(self, view: JobView, instead: JobDecision | None) -> JobDecision:
        net, running, job = self._net, view.running, self._job
        may_wait = net.may_wait(view)
        may_spot = view.has_spot and net.may_use_spot(view)
        if not may_wait and not may_spot:
            return _LAST
        if instead is not None and may_wait and (may_spot or instead.choice is not Choice.SPOT):
            return instead
        left_s, gap_s = job.work_s - view.done_s, job.gap_s
        self._look_from(view.tick)
        wait = self._usd(IDLE, left_s) if may_wait else math.inf
        overhead_s = view.overhead_left_s if running is Choice.ON_DEMAND else job.overhead_s
        on_demand = self._on_demand_usd + self._usd(ON_DEMAND, left_s - gap_s + overhead_s)
        spot = math.inf
        if may_spot:
            overhead_s = view.overhead_left_s if running is Choice.SPOT else job.overhead_s
            spot = self._spot_usd + self._usd_on_spot(
                left_s - max(0.0, gap_s - overhead_s), max(0.0, overhead_s - gap_s)
            )
        return self._least(wait, spot, on_demand, has_spot=view.has_spot)

    def _least(self, wait: float, spot: float, on_demand: float, *, has_spot: bool) -> JobDecision:
        if spot <= wait and spot <= on_demand:
            why = f"spot: {spot:.2f} USD to the end expected, on-demand {on_demand:.2f}"
            return JobDecision(choice=Choice.SPOT, why=why)
        rest = f"spot {spot:.2f}" if has_spot else "no spot"
        if wait <= on_demand:
            why = f"wait: {wait:.2f} USD to the end expected, on-demand {on_demand:.2f}, {rest}"
            return JobDecision(choice=Choice.WAIT, why=why)
        why = f"on-demand: {on_demand:.2f} USD to the end expected, waiting {wait:.2f}, {rest}"
        return JobDecision(choice=Choice.ON_DEMAND, why=why)

    def _look_from(self, tick: int) -> None:
        """Weigh the two rows of the table around the end of this tick by the belief."""
        table, usd = self._table, self._table.usd
        if self._last_tick is None:
            at = float(len(usd) - 1)
        else:
            at = max(0.0, (self._last_tick - tick - 1) * self._job.gap_s / table.step_s)
        low = min(int(at), len(usd) - 2)
        self._low, self._high = usd[low], usd[low + 1]
        self._part = at - low

    def _usd(self, kind: int, work_s: float) -> float:
        if work_s <= 0:
            return 0.0
        at = work_s / self._table.step_s
        low = min(int(at), self._low.shape[1] - 2)
        part, rows = at - low, slice(low, low + 2)
        less, more = (
            self._low[kind, rows] * (1 - self._part) + self._high[kind, rows] * self._part
        ) @ self._ahead
        return float(less + part * (more - less))

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
