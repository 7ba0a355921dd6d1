"""Policies for several nodes side by side: the same jobs under each, and their sums."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from spotray.policy.fleet import FleetPolicy
from spotray.policy.fleet_on_demand import FleetOnDemand
from spotray.sim.fleet import FleetOutcome, simulate_fleet
from spotray.sim.fleet_cases import FleetCase
from spotray.sim.savings import savings_of


@dataclass(frozen=True, kw_only=True)
class FleetRan:
    """One job under one policy."""

    world: str
    first_tick: int
    policy: str
    nodes: int
    deadline_s: float
    on_demand_usd: float  # of the same job with all nodes on on-demand
    outcome: FleetOutcome


def run_fleet_cases(
    policies: Mapping[str, FleetPolicy], cases: Iterable[FleetCase]
) -> list[FleetRan]:
    """Run every case under every policy.

    Raises:
        PolicyError: a policy failed; the message names it and the tick.
        TraceError: a case's market ends before its deadline.
    """
    found = []
    for case in cases:
        on_demand = simulate_fleet(FleetOnDemand(), case.job, case.market)
        for name, policy in policies.items():
            is_that = type(policy) is FleetOnDemand
            outcome = on_demand if is_that else simulate_fleet(policy, case.job, case.market)
            found.append(
                FleetRan(
                    world=case.world,
                    first_tick=case.first_tick,
                    policy=name,
                    nodes=case.job.max_nodes,
                    deadline_s=case.job.deadline_s,
                    on_demand_usd=on_demand.cost_usd,
                    outcome=outcome,
                )
            )
    return found


@dataclass(frozen=True, kw_only=True)
class FleetStanding:
    """One policy over a set of jobs. Fractions are of sums of costs, not means of ratios."""

    policy: str
    jobs: int
    worlds: int
    late: int
    cost_usd: float  # mean
    hours: float  # until the end, mean of the jobs that ended
    of_on_demand_frac: float
    cheaper_frac: float | None  # than the baseline; None without one
    cheaper_low_frac: float | None  # 95 % by resampling worlds; None of one world
    cheaper_high_frac: float | None
    worst_regret_frac: float | None  # of the job that costs most more than under the baseline
    preemptions: float  # nodes, mean
    restarts: float  # mean
    moves: float  # from region to region, mean


def fleet_standings(rows: Sequence[FleetRan], *, baseline: str) -> list[FleetStanding]:
    """Each policy's sums, in the order of their first row."""
    by_policy: dict[str, list[FleetRan]] = {}
    for row in rows:
        by_policy.setdefault(row.policy, []).append(row)
    base = by_policy.get(baseline)
    return [_standing(name, mine, base) for name, mine in by_policy.items()]


def _standing(
    name: str, rows: Sequence[FleetRan], base: Sequence[FleetRan] | None
) -> FleetStanding:
    outcomes = [row.outcome for row in rows]
    costs = [one.cost_usd for one in outcomes]
    worlds = list(dict.fromkeys(row.world for row in rows))
    bases = None if base is None else [row.outcome.cost_usd for row in base]
    saved = savings_of([row.world for row in rows], costs, bases, order=worlds)
    return FleetStanding(
        policy=name,
        jobs=len(rows),
        worlds=len(worlds),
        late=sum(one.is_late for one in outcomes),
        cost_usd=statistics.fmean(costs),
        hours=statistics.fmean(
            [one.ended_s / 3600 for one in outcomes if one.ended_s is not None] or [float("nan")]
        ),
        of_on_demand_frac=sum(costs) / sum(row.on_demand_usd for row in rows),
        cheaper_frac=saved.cheaper_frac,
        cheaper_low_frac=saved.low_frac,
        cheaper_high_frac=saved.high_frac,
        worst_regret_frac=saved.worst_regret_frac,
        preemptions=statistics.fmean(one.preemptions for one in outcomes),
        restarts=statistics.fmean(one.restarts for one in outcomes),
        moves=statistics.fmean(one.moves for one in outcomes),
    )
