"""A sweep starts no trial that might take it past its budget, and never waits for nobody."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotray.errors import ConfigError
from spotray.events import PriceChanged
from spotray.ledger.sweep import watch_sweep
from spotray.tune.budget import Spending, check_prices, may_launch, spending
from tests.ledger.sweep_story import HOUR_S, SPOT, SweepStory, two_trials


def verdict(spent: Spending, budget: float | None = 10.0, room: int = 4) -> tuple[str, str]:
    found = may_launch(spent, max_cost_usd=budget, room=room)
    return found.kind, found.why


NOTHING = Spending(spent_usd=None)


def test_without_a_budget_every_trial_starts() -> None:
    assert verdict(Spending(spent_usd=None, unpriced_s=9.0), None)[0] == "launch"


def test_the_first_trials_start_as_many_as_there_is_room_for() -> None:
    assert verdict(NOTHING)[0] == "launch"
    assert verdict(replace(NOTHING, running_usd=(0.0,) * 3))[0] == "launch"
    kind, why = verdict(replace(NOTHING, running_usd=(0.0,) * 4))
    assert (kind, why) == ("wait", "4 trials run, and there is room for 4")
    assert verdict(NOTHING, room=0)[0] == "launch"  # nodes will come for the first


def test_a_trial_that_fits_beside_the_others_starts() -> None:
    spent = Spending(spent_usd=4.0, ended_usd=(1.0, 2.0), running_usd=(0.5, 0.5))
    assert spent.to_come_usd == pytest.approx(3.0)
    assert verdict(spent, 9.0)[0] == "launch"
    kind, why = verdict(spent, 8.99)
    assert kind == "wait"
    assert why.startswith("one more trial may bring the cost to $9.00 of $8.99")


def test_what_no_trial_used_is_part_of_what_a_trial_costs() -> None:
    spent = Spending(spent_usd=3.0, ended_usd=(2.0,), overhead_frac=0.5)
    assert verdict(spent, 6.0)[0] == "launch"
    assert verdict(spent, 5.99)[0] == "stop"


def test_a_trial_that_runs_and_is_the_dearest_counts_as_one() -> None:
    spent = Spending(spent_usd=6.0, ended_usd=(1.0,), running_usd=(5.0,))
    assert verdict(spent, 10.99)[0] == "wait"
    assert verdict(spent, 11.0)[0] == "launch"


def test_when_nothing_runs_that_could_change_it_no_is_final() -> None:
    assert verdict(Spending(spent_usd=9.0, ended_usd=(4.5, 4.5)))[0] == "stop"


def test_a_budget_that_is_spent_is_the_end_whatever_runs() -> None:
    spent = Spending(spent_usd=10.0, ended_usd=(5.0,), running_usd=(5.0,))
    assert verdict(spent) == ("stop", "$10.00 of $10.00 are spent")


def test_money_that_nobody_knows_is_not_taken_for_nothing() -> None:
    spent = Spending(spent_usd=1.0, unpriced_s=90.0)
    kind, why = verdict(spent)
    assert kind == "stop"
    assert "no price is known for 1 min 30 s of node time" in why
    assert verdict(replace(spent, running_usd=(0.5,)))[0] == "wait"  # the price may yet come
    kind, why = verdict(Spending(spent_usd=1.0, unseen_nodes=2))
    assert (kind, why.split(",")[0]) == ("stop", "2 nodes that trained are in no journal")


def test_spending_is_taken_from_the_ledger() -> None:
    state = watch_sweep(two_trials().told(), until_s=3.5 * HOUR_S)
    spent = spending(state, running=["two", "about to start"])
    assert spent.spent_usd == pytest.approx(2 * 3.5 - 2.5 + 0.5 * 3.5)
    assert spent.ended_usd == pytest.approx((2.5,))
    assert spent.running_usd == pytest.approx((0.0, 2.0))
    assert spent.overhead_frac == pytest.approx(0.5 * 3.5 / 4.5)


def test_a_sweep_that_just_began_is_not_judged_by_what_idled() -> None:
    story = SweepStory()
    story.up("head", "a")
    story.starts("one", "a")
    state = watch_sweep(story.told(), until_s=HOUR_S)
    assert spending(state, running=["one"]).overhead_frac == 0.0
    assert spending(state, running=[]).overhead_frac == pytest.approx(1.0)


def test_a_budget_without_prices_is_refused_before_anything_starts() -> None:
    story = SweepStory()
    story.up("gone", usd=None)
    story.at(1).down("gone")
    story.up("a")
    check_prices(story.nodes, max_cost_usd=5.0, now_s=2 * HOUR_S)
    story.up(*"bcde", usd=None)
    check_prices(story.nodes, max_cost_usd=None, now_s=2 * HOUR_S)
    with pytest.raises(ConfigError) as caught:
        check_prices(story.nodes, max_cost_usd=5.0, now_s=2 * HOUR_S)
    assert str(caught.value).startswith(
        "max_cost_usd is 5, and no price is known of 4 nodes (i-b, i-c, i-d, ...): name a journal"
    )
    dearer = PriceChanged(at_s=1.5 * HOUR_S, market=SPOT, usd_per_hour=1.0)
    check_prices([*story.nodes, dearer], max_cost_usd=5.0, now_s=2 * HOUR_S)


@given(
    costs=st.lists(st.floats(0.1, 3.0), min_size=1, max_size=30),
    budget=st.floats(1.0, 30.0),
    room=st.integers(1, 4),
    alike=st.booleans(),
)
def test_trials_that_cost_alike_pass_a_budget_only_if_the_first_of_them_do(
    costs: list[float], budget: float, room: int, alike: bool
) -> None:
    if alike:
        costs = [costs[0]] * len(costs)
    waiting, running, ended = list(costs), dict[int, float](), list[float]()
    spent = 0.0
    while True:
        now = Spending(spent_usd=spent, ended_usd=tuple(ended), running_usd=tuple(running.values()))
        found = may_launch(now, max_cost_usd=budget, room=room)
        if found.kind == "launch" and waiting:
            running[len(waiting)] = 0.0
            waiting.pop()
            continue
        if not running:
            assert found.kind == "stop" or not waiting  # nobody waits for ever
            break
        # Each that runs takes the same money until the first of them ends.
        left = {name: costs[name - 1] - so_far for name, so_far in running.items()}
        part = min(left.values())
        for name in list(running):
            running[name] += part
            spent += part
            if left[name] == part:
                ended.append(running.pop(name))
    assert ended
    if alike:
        assert spent <= max(budget, room * costs[0]) + 1e-6
