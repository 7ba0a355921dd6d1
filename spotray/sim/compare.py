"""Policies side by side: the same jobs under each, and what the costs say together."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from spotray.policy.job import Job, JobPolicy
from spotray.sim.optimum import optimum_usd
from spotray.sim.savings import savings_of
from spotray.sim.single import simulate


@dataclass(frozen=True, kw_only=True)
class Case:
    """One job at one place of one trace."""

    trace: str  # which market: the unit of confidence
    first_tick: int
    job: Job
    up: bytes


@dataclass(frozen=True, kw_only=True)
class Ran:
    """One job under one policy."""

    trace: str
    first_tick: int
    work_s: float
    deadline_s: float
    overhead_s: float
    policy: str
    cost_usd: float
    on_demand_usd: float  # of the same job on on-demand alone
    optimum_usd: float | None  # None: not asked for, or no deadline
    ended_s: float | None
    is_late: bool
    starts: int
    preemptions: int


def run_cases(
    policies: Mapping[str, JobPolicy],
    cases: Iterable[Case],
    *,
    optimum: bool = True,
    told: Callable[[int], None] | None = None,
) -> list[Ran]:
    """Run every case under every policy.

    Args:
        policies: by the name that the results give.
        cases: the jobs.
        optimum: also find the least that each job could have cost.
        told: called after each case with the number of cases done.

    Raises:
        PolicyError: a policy failed; the message names it, the trace and the tick.
        TraceError: a case's trace ends before its deadline.
    """
    found = []
    for index, case in enumerate(cases, start=1):
        job = case.job
        on_demand_usd = job.cost_usd(spot_ticks=0, on_demand_ticks=job.ticks_needed(job.work_s))
        best = optimum_usd(job, case.up) if optimum and job.has_deadline else None
        for name, policy in policies.items():
            outcome = simulate(policy, job, case.up)
            found.append(
                Ran(
                    trace=case.trace,
                    first_tick=case.first_tick,
                    work_s=job.work_s,
                    deadline_s=job.deadline_s,
                    overhead_s=job.overhead_s,
                    policy=name,
                    cost_usd=outcome.cost_usd,
                    on_demand_usd=on_demand_usd,
                    optimum_usd=best,
                    ended_s=outcome.ended_s,
                    is_late=outcome.is_late,
                    starts=outcome.starts,
                    preemptions=outcome.preemptions,
                )
            )
        if told is not None:
            told(index)
    return found


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One policy over a set of jobs. Fractions are of sums of costs, not means of ratios."""

    policy: str
    jobs: int
    traces: int
    late: int
    cost_usd: float  # mean
    of_on_demand_frac: float
    cheaper_frac: float | None  # than the baseline, of its cost; None without one
    cheaper_low_frac: float | None  # 95 % confidence by resampling traces; None of one trace
    cheaper_high_frac: float | None
    above_optimum_frac: float | None
    worst_regret_frac: float | None  # of the job that costs most more than under the baseline
    dearer_jobs_frac: float | None  # jobs that cost more than under the baseline


def standings(rows: Sequence[Ran], *, baseline: str) -> list[Standing]:
    """How each policy stands, in the order of the rows; against ``baseline`` if it ran too."""
    by_policy: dict[str, dict[object, Ran]] = {}
    for row in rows:
        key = (row.trace, row.first_tick, row.work_s, row.deadline_s, row.overhead_s)
        by_policy.setdefault(row.policy, {})[key] = row
    base = by_policy.get(baseline)
    return [
        _standing(name, mine, [base[key].cost_usd for key in mine] if base else None)
        for name, mine in by_policy.items()
    ]


def _standing(name: str, runs: Mapping[object, Ran], base: Sequence[float] | None) -> Standing:
    rows = list(runs.values())
    costs = [row.cost_usd for row in rows]
    best = [row.optimum_usd for row in rows if row.optimum_usd is not None]
    traces = sorted({row.trace for row in rows})
    saved = savings_of([row.trace for row in rows], costs, base, order=traces)
    return Standing(
        policy=name,
        jobs=len(rows),
        traces=len(traces),
        late=sum(row.is_late for row in rows),
        cost_usd=statistics.fmean(costs),
        of_on_demand_frac=sum(costs) / sum(row.on_demand_usd for row in rows),
        cheaper_frac=saved.cheaper_frac,
        cheaper_low_frac=saved.low_frac,
        cheaper_high_frac=saved.high_frac,
        above_optimum_frac=sum(costs) / sum(best) - 1 if len(best) == len(rows) else None,
        worst_regret_frac=saved.worst_regret_frac,
        dearer_jobs_frac=(
            None
            if base is None
            else statistics.fmean(a > b * 1.0001 for a, b in zip(costs, base, strict=True))
        ),
    )
