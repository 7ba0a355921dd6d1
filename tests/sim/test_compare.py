from __future__ import annotations

from typing import Any

import pytest

from spotray.policy.job import Job
from spotray.sim.compare import Case, Ran, run_cases, standings
from spotray.sim.named import policy


def ran(name: str, cost_usd: float, *, trace: str = "a", first: int = 0, **changes: Any) -> Ran:
    base = {"work_s": 1.0, "deadline_s": 2.0, "overhead_s": 0.0, "on_demand_usd": 10.0}
    rest = {"optimum_usd": 4.0, "ended_s": 2.0, "is_late": False, "starts": 1, "preemptions": 0}
    fields = base | rest | changes
    return Ran(policy=name, cost_usd=cost_usd, trace=trace, first_tick=first, **fields)


def test_a_standing_is_of_sums_against_the_same_jobs() -> None:
    rows = [
        ran("base", 8.0),
        ran("new", 4.0),
        ran("base", 4.0, first=9),
        ran("new", 5.0, first=9, is_late=True),
    ]
    base, new = standings(rows, baseline="base")
    assert base.cheaper_frac == 0.0
    assert (new.jobs, new.traces, new.late) == (2, 1, 1)
    assert new.of_on_demand_frac == pytest.approx(9 / 20)
    assert new.cheaper_frac == pytest.approx(3 / 12)
    assert new.above_optimum_frac == pytest.approx(1 / 8)
    assert new.worst_regret_frac == pytest.approx(1 / 4)
    assert new.dearer_jobs_frac == pytest.approx(1 / 2)
    assert new.cheaper_low_frac is None  # one trace says nothing about others


def test_confidence_is_by_trace_not_by_job() -> None:
    """A hundred jobs of two traces are two observations."""
    rows = []
    for first in range(100):
        for trace, cost in (("good", 5.0), ("bad", 10.0)):
            rows += [ran("base", 10.0, trace=trace, first=first)]
            rows += [ran("new", cost, trace=trace, first=first)]
    new = standings(rows, baseline="base")[1]
    assert new.cheaper_frac == pytest.approx(0.25)
    assert (new.cheaper_low_frac, new.cheaper_high_frac) == (0.0, 0.5)


def test_without_the_baseline_there_is_nothing_to_compare_with() -> None:
    (one,) = standings([ran("new", 4.0)], baseline="base")
    assert (one.cheaper_frac, one.worst_regret_frac) == (None, None)


def test_every_case_runs_under_every_policy() -> None:
    job = Job(gap_s=600.0, work_s=3600.0, deadline_s=9000.0, overhead_s=300.0)
    cases = [Case(trace="z", first_tick=i, job=job, up=bytes([i % 2] * 15)) for i in range(2)]
    told: list[int] = []
    names = ("on-demand-only", "greedy")
    rows = run_cases({name: policy(name) for name in names}, cases, told=told.append)
    assert [(row.first_tick, row.policy) for row in rows] == [
        (0, "on-demand-only"),
        (0, "greedy"),
        (1, "on-demand-only"),
        (1, "greedy"),
    ]
    assert told == [1, 2]
    without, with_spot = rows[1], rows[3]
    assert without.cost_usd == without.on_demand_usd == pytest.approx(without.optimum_usd)
    assert with_spot.cost_usd == pytest.approx(7 * 0.9731 / 6)
    assert with_spot.optimum_usd == pytest.approx(with_spot.cost_usd)
