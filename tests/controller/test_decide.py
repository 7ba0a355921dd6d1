from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotray.controller.actions import (
    AllowOnDemand,
    Ask,
    End,
    HoldWorkers,
    Hurry,
    Leave,
    Replaced,
    Withdraw,
)
from spotray.controller.decide import GRACE_S, LIFETIME_LEAD_S, STAGGER_S, decide
from spotray.controller.view import Pool, State
from spotray.policy.spot_first import SpotFirst
from tests.controller.small_cloud import (
    CONFIG,
    GPU,
    ON_DEMAND,
    SPOT_A,
    SPOT_B,
    START_S,
    SmallCloud,
)

DAY_S = 86400.0


def cloud(**settings_: object) -> SmallCloud:
    """Two on-demand workers that came while spot was out."""
    made = SmallCloud(**settings_)  # type: ignore[arg-type]
    made.add(ON_DEMAND)
    made.add(ON_DEMAND)
    return made


def kinds(made: SmallCloud) -> list[str]:
    return [type(action).__name__ for _, action in made.done]


def test_on_demand_workers_go_back_to_spot_one_after_the_other() -> None:
    made = cloud(has_spot=True)
    made.run(200)
    one = ["Ask", "AllowOnDemand", "Withdraw", "Leave", "Replaced"]
    assert kinds(made) == one * 2
    assert len(made.on(True)) == 2
    assert not made.on(False)
    assert made.state.swap is None
    first, second = made.actions(Replaced)
    assert isinstance(first, Replaced)
    assert isinstance(second, Replaced)
    assert {first.node_id, second.node_id} == {"n1", "n2"}
    assert first.seconds == pytest.approx(made.boots_s + 3, abs=3)


def test_an_on_demand_worker_that_just_came_is_left_alone() -> None:
    made = SmallCloud(has_spot=True, applications=1)
    made.add(ON_DEMAND, age_s=0)
    made.run(CONFIG.settle_s - 1)
    assert not made.done
    made.tick()
    assert kinds(made) == ["Ask"]


def test_a_worker_without_work_is_left_to_the_autoscaler() -> None:
    made = cloud(has_spot=True)
    for node_id, worker in made.workers.items():
        made.workers[node_id] = replace(worker, busy=False)
    made.run(300)
    assert not made.done


def test_spot_that_is_refused_is_asked_for_ever_more_rarely_and_never_on_demand() -> None:
    made = cloud()
    made.run(6 * 3600, step_s=2)
    asked = [at_s for at_s, action in made.done if isinstance(action, Ask)]
    gaps = [later - earlier for earlier, later in zip(asked, asked[1:], strict=False)]
    assert gaps == sorted(gaps)
    assert gaps[0] >= CONFIG.rest_s
    assert gaps[-1] >= CONFIG.rest_max_s
    assert len(made.workers) == 2, "a probe must not launch what it wants to be rid of"
    assert not made.actions(Leave)
    assert all(isinstance(one, Withdraw) and one.in_vain for one in made.actions(Withdraw))


def test_a_success_clears_the_back_off() -> None:
    made = cloud()
    made.run(3000)
    made.has_spot = True
    made.run(7200, step_s=2)
    assert len(made.on(True)) == 2
    assert made.state.rests["gpu"].failures == 0


def test_a_node_that_never_joins_is_given_up() -> None:
    made = cloud(has_spot=True, boots_s=1e9)
    made.run(CONFIG.join_s + CONFIG.ask_s)
    assert kinds(made) == ["Ask", "AllowOnDemand", "Withdraw"]
    assert not made.actions(Leave)


def test_an_on_demand_node_that_slips_in_ends_the_attempt() -> None:
    made = cloud()
    made.has_spot = True
    made.boots_s = 50
    made.tick()
    made.tick()
    assert kinds(made) == ["Ask", "AllowOnDemand"]
    made.add(ON_DEMAND, age_s=0)
    made.tick()
    assert kinds(made)[-1] == "Withdraw"
    assert not made.actions(Leave)


def test_the_floor_of_on_demand_workers_stays() -> None:
    made = cloud(has_spot=True, pool=replace(GPU, on_demand_floor=1))
    made.run(600)
    assert len(made.on(False)) == 1
    assert len(made.actions(Replaced)) == 1


def test_a_full_pool_says_what_would_help() -> None:
    made = cloud(has_spot=True, pool=replace(GPU, max_workers=2))
    made.run(10)
    assert not made.done
    assert "raise its max_workers by one" in made.plans[-1].waits_for
    assert not cloud().tick().waits_for


def test_a_job_that_is_nearly_done_is_not_disturbed() -> None:
    made = cloud(has_spot=True)
    made.deadline_s = made.now_s + CONFIG.deadline_s - 10
    made.run(100)
    assert kinds(made) == ["Hurry"]
    made.deadline_s = float("inf")  # it ended
    made.tick()
    assert kinds(made) == ["Hurry", "Hurry", "Ask"]


def test_a_deadline_that_comes_near_ends_the_wait_for_spot_and_puts_on_demand_first() -> None:
    made = cloud(has_spot=True, deadline_s=START_S + CONFIG.deadline_s + 10)
    asked = decide(made.view(), State(), config=CONFIG, policy=SpotFirst())
    assert [type(one) for one in asked.actions] == [Ask]
    made.now_s += 11  # and nothing was launched yet
    plan = decide(made.view(), asked.state, config=CONFIG, policy=SpotFirst())
    hurry, withdraw = plan.actions
    assert isinstance(withdraw, Withdraw)
    assert withdraw.why == "a job's deadline is near"
    assert isinstance(hurry, Hurry)
    assert hurry.until_s == made.deadline_s
    assert "on-demand first" in hurry.why
    assert plan.state.swap is None
    again = decide(made.view(), plan.state, config=CONFIG, policy=SpotFirst())
    assert again.actions == ()


def test_a_deadline_that_is_gone_ends_the_hurry_once() -> None:
    made = cloud(deadline_s=START_S + CONFIG.deadline_s / 2)
    made.run(10)
    made.deadline_s = float("inf")  # the job is done
    made.run(10)
    first, last = made.actions(Hurry)
    assert isinstance(first, Hurry)
    assert isinstance(last, Hurry)
    assert last.until_s <= made.now_s < first.until_s


def test_a_budget_that_is_used_up_lets_nothing_begin_and_ends_what_was_begun() -> None:
    made = cloud(has_spot=True, boots_s=1e9)
    made.run(5)
    assert kinds(made) == ["Ask", "AllowOnDemand"]
    made.is_spent = True
    made.take("n1")
    made.run(60)
    assert kinds(made) == ["Ask", "AllowOnDemand", "Withdraw"]
    assert made.state.wanted == 0


def test_return_can_be_switched_off() -> None:
    made = cloud(has_spot=True, config=replace(CONFIG, return_to_spot=False))
    made.run(600)
    assert not made.done


def test_a_node_that_does_not_leave_is_ended_once() -> None:
    made = cloud(has_spot=True, leaves_after_s=None)
    made.run(400)
    (end, *_) = made.actions(End)
    assert isinstance(end, End)
    (at_s,) = [at for at, action in made.done if action is end]
    (left_s,) = [at for at, one in made.done if isinstance(one, Leave) and one.name == end.name]
    assert at_s - left_s == pytest.approx(CONFIG.drain_s + GRACE_S, abs=1)
    names = [one.name for one in made.actions(End) if isinstance(one, End)]
    assert len(names) == len(set(names))


def test_a_node_that_even_the_cloud_does_not_end_is_given_up() -> None:
    made = cloud(has_spot=True, leaves_after_s=None, obeys_end=False)
    made.run(CONFIG.drain_s + CONFIG.end_s + 60)
    assert made.state.swap is None or made.state.swap.node_id != "n1"
    assert len(made.actions(End)) == 1


def test_a_node_that_ray_refuses_to_drain_is_not_ended() -> None:
    made = cloud(has_spot=True, drains=False)
    made.run(CONFIG.drain_s + 100)
    assert not made.actions(End)
    assert made.state.swap is None
    assert made.state.rests["gpu"].failures == 1


def test_a_node_that_goes_by_itself_meanwhile_ends_the_attempt() -> None:
    made = cloud(has_spot=True)
    made.tick()
    assert made.state.swap is not None
    del made.workers[made.state.swap.node_id]
    made.tick()
    assert kinds(made) == ["Ask", "Withdraw"]


def test_taken_workers_are_asked_for_again_until_they_are_there_or_time_is_up() -> None:
    made = SmallCloud(applications=0, has_spot=True)
    made.add(SPOT_A)
    gone = made.add(SPOT_B)
    made.take(gone.node_id)
    made.tick()
    (held,) = made.actions(HoldWorkers)
    assert isinstance(held, HoldWorkers)
    assert (held.workers, made.state.wanted) == (2, 2)
    made.run(made.boots_s + 2)
    assert made.state.wanted == 0
    assert len(made.workers) == 2
    made.boots_s = 1e9
    made.take(next(iter(made.workers)))
    made.run(CONFIG.hold_s + 2)
    assert made.state.wanted == 0


def test_a_loss_that_is_heard_of_late_asks_for_no_more_than_there_were() -> None:
    """Ray sees the silent end of a node after seconds; the cloud may have told at once."""
    made = SmallCloud(applications=0, has_spot=True)
    made.add(SPOT_A)
    gone = made.add(SPOT_B)
    made.take(gone.node_id)
    made.now_s += 10.0
    replacement = made.add(SPOT_A, age_s=3.0)
    made.tick()
    assert not made.actions(HoldWorkers)
    assert made.state.wanted == 0
    # The same of two, one of which was replaced.
    made.take(replacement.node_id)
    made.take(next(iter(made.workers)))
    made.now_s += 10.0
    made.add(SPOT_A, age_s=3.0)
    made.tick()
    assert made.state.wanted == 2


def test_nodes_that_end_together_are_replaced_one_by_one_before_that() -> None:
    pool = Pool(name="gpu", max_workers=4, lifetime_s=DAY_S, candidates=(SPOT_A,))
    made = SmallCloud(pool=pool, applications=3, has_spot=True, boots_s=200)
    born = made.now_s
    for _ in range(3):
        made.add(SPOT_A, age_s=0)
    made.run(DAY_S, step_s=20)
    gone = [(at_s - born, one) for at_s, one in made.done if isinstance(one, Replaced)]
    assert len(gone) == 3
    assert all(at_s < DAY_S - 1200 for at_s, _ in gone)
    asked = [at_s - born for at_s, one in made.done if isinstance(one, Ask)]
    assert asked[0] == pytest.approx(DAY_S - LIFETIME_LEAD_S - 2 * STAGGER_S, abs=20)
    assert all(not one.spot_only for one in made.actions(Ask) if isinstance(one, Ask))


def test_a_restart_in_the_middle_goes_on_with_what_was_begun() -> None:
    made = cloud(has_spot=True)
    made.run(made.boots_s + 3)
    assert made.state.swap is not None
    assert made.state.swap.leaves_by_s is not None
    made.run(10)
    assert made.actions(Replaced)
    # Without its state it begins anew, and harms nobody.
    made.state = State()
    made.run(200)
    assert len(made.on(True)) == 2


ticks = st.lists(
    st.sampled_from(
        [
            *["wait"] * 6,
            "spot out",
            "spot back",
            "take spot",
            "take any",
            "notice",
            "slow boot",
            "fast boot",
            "stuck",
            "leaves",
            "no drain",
            "drains",
            "restart",
            "more",
            "less",
        ]
    ),
    min_size=5,
    max_size=80,
)


@settings(max_examples=150)
@given(script=ticks, floor=st.integers(0, 2), room=st.integers(2, 6))
def test_whatever_happens_the_promises_are_kept(script: list[str], floor: int, room: int) -> None:
    made = SmallCloud(pool=replace(GPU, on_demand_floor=floor, max_workers=room), applications=2)
    for _ in range(2):
        made.add(ON_DEMAND)
    for happens in script:
        _happen(made, happens)
        for _ in range(8):
            before = made.state
            plan = made.tick(5.0)
            leaves = [one for one in plan.actions if isinstance(one, Leave)]
            for leave in leaves:
                swap = plan.state.swap
                assert swap is not None
                assert swap.node_id == leave.node_id
                new = [
                    w
                    for w in made.workers.values()
                    if w.node_id not in swap.before and w.market.spot
                ]
                if before.swap is not None and before.swap.leaves_by_s is None:
                    assert new, "told to leave before its replacement was up"
                    on_demand = made.on(False)
                    told = 0 if made.drains else 1
                    assert len(on_demand) - told >= floor
            assert len(leaves) <= 1
            asks = [one for one in plan.actions if isinstance(one, Ask)]
            assert len(asks) <= 1
            if asks:
                assert before.swap is None, "two attempts at once"
            if plan.state.swap is not None:
                horizon_s = max(CONFIG.join_s, CONFIG.drain_s, CONFIG.end_s) + GRACE_S
                assert plan.state.swap.until_s <= made.now_s + horizon_s
                assert made.now_s - plan.state.swap.began_s <= 2 * horizon_s
    asked = len(made.actions(Ask))
    hours = (made.now_s - SmallCloud().now_s) / 3600
    attempts_in_vain = [one for one in made.actions(Withdraw) if getattr(one, "in_vain", False)]
    assert len(attempts_in_vain) <= 1 + hours * 3600 / CONFIG.rest_s
    told = [at_s for at_s, one in made.done if isinstance(one, End)]
    assert len(told) <= asked


def _happen(made: SmallCloud, what: str) -> None:
    spot = made.on(True)
    if what == "take spot" and spot:
        made.take(spot[0].node_id)
    elif what == "take any" and made.workers:
        del made.workers[next(iter(made.workers))]
    elif what == "notice" and spot:
        one = replace(spot[-1], leaves_by_s=made.now_s + 30)
        made.workers[one.node_id] = one
        made._going_s[one.node_id] = made.now_s + 30
    elif what == "restart":
        made.state = State()
    elif what == "more":
        made.applications = min(4, made.applications + 1)
    elif what == "less":
        made.applications = max(0, made.applications - 1)
    elif what in ("spot out", "spot back"):
        made.has_spot = what == "spot back"
    elif what in ("slow boot", "fast boot"):
        made.boots_s = 1e9 if what == "slow boot" else 30.0
    elif what in ("stuck", "leaves"):
        made.leaves_after_s = None if what == "stuck" else 3.0
    elif what in ("no drain", "drains"):
        made.drains = what == "drains"


def test_with_time_and_spot_every_worker_ends_on_spot() -> None:
    made = cloud()
    made.run(1800, step_s=2)
    made.has_spot = True
    made.run(3 * 3600, step_s=2)
    assert not made.on(False)
    assert isinstance(made.actions(AllowOnDemand)[0], AllowOnDemand)
