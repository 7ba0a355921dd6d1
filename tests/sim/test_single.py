"""The job model, tick by tick, against sums done by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from spotray.errors import ConfigError, PolicyError, TraceError
from spotray.policy.job import Choice, Job, JobDecision, JobPolicy, JobView
from spotray.policy.on_demand_only import OnDemandOnly
from spotray.policy.spot_only import SpotOnly
from spotray.sim.single import Moment, simulate

W, S, D = Choice.WAIT, Choice.SPOT, Choice.ON_DEMAND


@dataclass
class Scripted:
    """Answers what it was told to, and remembers what it saw; on-demand when that is over."""

    answers: list[Any]
    saw: list[dict[str, Any]] = field(default_factory=list)

    def begin(self, job: Job) -> Scripted:
        return self

    def decide(self, view: JobView) -> JobDecision:
        names = ("tick", "running", "preempted", "done_s", "overhead_left_s")
        self.saw.append({name: getattr(view, name) for name in names})
        answer = self.answers[view.tick] if view.tick < len(self.answers) else D
        return JobDecision(choice=answer, why="scripted")


def job(**changes: Any) -> Job:
    base = {"gap_s": 600.0, "work_s": 3000.0, "deadline_s": 12_000.0, "overhead_s": 900.0}
    prices = {"on_demand_usd_per_hour": 6.0, "spot_usd_per_hour": 1.8}
    return Job(**base | prices | changes)


def test_a_start_takes_its_overhead_before_work_is_done() -> None:
    policy = Scripted([D] * 7)
    outcome = simulate(policy, job(), b"\0" * 20)
    assert [seen["done_s"] for seen in policy.saw] == [0, 0, 300, 900, 1500, 2100, 2700]
    assert [seen["overhead_left_s"] for seen in policy.saw] == [0, 300, 0, 0, 0, 0, 0]
    assert outcome.ended_s == 7 * 600
    assert outcome.cost_usd == pytest.approx(7.0)  # a tick on on-demand is a dollar


def test_a_change_of_kind_costs_an_overhead_and_replaces_what_was_left_of_one() -> None:
    policy = Scripted([S, D, D, D, D, D, D, D])
    outcome = simulate(policy, job(), b"\1" * 20)
    assert [seen["done_s"] for seen in policy.saw] == [0, 0, 0, 300, 900, 1500, 2100, 2700]
    assert outcome.starts == 2
    assert outcome.cost_usd == pytest.approx(0.3 + 7.0)


def test_a_preemption_keeps_the_work_and_costs_a_start() -> None:
    policy = Scripted([S, S, S, W, S, S, S, S, S, S])
    outcome = simulate(policy, job(work_s=1500.0), bytes([1, 1, 1, 0] + [1] * 16))
    lost = policy.saw[3]
    assert (lost["preempted"], lost["running"], lost["done_s"]) == (True, W, 900)
    assert policy.saw[4]["preempted"] is False
    assert (outcome.preemptions, outcome.starts) == (1, 2)
    assert outcome.ended_s == 7 * 600  # 300 + 600 done, then 0, 300 and 300 more
    assert outcome.cost_usd == pytest.approx(6 * 0.3)


def test_to_wait_and_come_back_is_a_start() -> None:
    outcome = simulate(Scripted([D, D, W, D, D, D, D, D, D]), job(), b"\0" * 20)
    assert outcome.starts == 2
    assert outcome.preemptions == 0


def test_the_last_tick_is_paid_in_full() -> None:
    outcome = simulate(OnDemandOnly(), job(work_s=3001.0), b"\0" * 20)
    assert outcome.on_demand_ticks == 7
    assert simulate(OnDemandOnly(), job(work_s=3301.0), b"\0" * 20).on_demand_ticks == 8


def test_a_job_that_its_trace_does_not_see_to_the_end_is_late_and_pays_for_the_rest() -> None:
    outcome = simulate(SpotOnly(), job(), bytes(20))
    assert outcome.is_late
    assert outcome.ended_s is None
    assert outcome.cost_usd == pytest.approx(7.0)  # all of it, on on-demand


def test_an_end_after_the_deadline_is_late() -> None:
    slow = Scripted([W] * 15)
    outcome = simulate(slow, job(), b"\0" * 40)
    assert outcome.ended_s == 22 * 600
    assert outcome.is_late


def test_moments_tell_every_tick() -> None:
    moments: list[Moment] = []
    simulate(Scripted([W, D]), job(), b"\1" * 20, moments=moments)
    assert [moment.tick for moment in moments] == list(range(8))
    assert (moments[0].choice, moments[0].has_spot, moments[0].why) == (W, True, "scripted")


def test_a_trace_that_ends_before_the_deadline_is_refused() -> None:
    with pytest.raises(TraceError, match=r"ends after 3\.2 h.*3\.3 h after"):
        simulate(OnDemandOnly(), job(), b"\1" * 19)


def fails(view: JobView) -> JobDecision:
    raise KeyError("zone") if view.tick == 3 else RuntimeError("too soon")


@pytest.mark.parametrize(
    ("decide", "told"),
    [
        (lambda view: {}["zone"], r"Mine failed at tick 0: KeyError: 'zone'"),
        (lambda view: None, r"Mine failed at tick 0: AttributeError"),
        (lambda view: JobDecision(choice=1, why="x"), r"Mine at tick 0 answered 1: answer a"),
        (lambda view: JobDecision(choice=7, why="x"), r"Mine at tick 0 answered 7"),
        (
            lambda view: JobDecision(choice=S if view.tick == 2 else W, why="x"),
            r"Mine at tick 2 chose spot, of which there is none",
        ),
    ],
)
def test_a_policy_that_fails_or_answers_nonsense_is_named_with_its_tick(
    decide: Callable[[JobView], JobDecision], told: str
) -> None:
    class Mine:
        def begin(self, job: Job) -> Any:
            return self

        def decide(self, view: JobView) -> JobDecision:
            return decide(view)

    policy: JobPolicy = Mine()
    with pytest.raises(PolicyError, match=told):
        simulate(policy, job(), b"\0" * 20)


def test_a_policy_that_fails_to_begin_is_named() -> None:
    class Broken:
        name = "my broken one"

        def begin(self, job: Job) -> Any:
            raise ZeroDivisionError("slack")

    with pytest.raises(PolicyError, match="my broken one failed before the first tick: ZeroDiv"):
        simulate(Broken(), job(), b"\0" * 20)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"deadline_s": 4100.0}, r"1\.14 h cannot be met even on on-demand.*take 1\.17 h"),
        ({"gap_s": 0.0}, "gap_s is 0.0"),
        ({"work_s": float("inf")}, "work_s is inf"),
        ({"spot_usd_per_hour": -1.0}, "spot_usd_per_hour is -1.0"),
        ({"on_demand_usd_per_hour": float("nan")}, "on_demand_usd_per_hour is nan"),
        ({"overhead_s": -1.0}, "overhead_s is -1.0"),
        ({"deadline_s": float("nan")}, "deadline_s is nan"),
    ],
)
def test_a_job_that_cannot_be_is_refused_in_one_line(changes: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        job(**changes)


def test_a_spot_node_ends_at_its_limit_though_there_is_spot() -> None:
    policy = Scripted([S] * 20)
    outcome = simulate(policy, job(work_s=6000.0), b"\1" * 20, limit_ticks=4)
    lost = [seen["tick"] for seen in policy.saw if seen["preempted"]]
    assert lost == [4, 8, 12]
    assert outcome.preemptions == 3
    assert outcome.starts == 4  # each with its overhead of a tick and a half
    assert [seen["done_s"] for seen in policy.saw if seen["preempted"]] == [1500, 3000, 4500]


def test_an_on_demand_node_has_no_limit() -> None:
    policy = Scripted([D] * 20)
    outcome = simulate(policy, job(work_s=6000.0), b"\1" * 20, limit_ticks=4)
    assert (outcome.preemptions, outcome.starts) == (0, 1)
