"""Which trial gets how many workers."""

from __future__ import annotations

import doctest

from hypothesis import given
from hypothesis import strategies as st

from spotray.tune import shares as module
from spotray.tune.shares import Demand, plan, shares


def demand(trial: str, least: int = 1, most: int = 4) -> Demand:
    return Demand(trial=trial, least=least, most=most)


@st.composite
def demands(draw: st.DrawFn) -> list[Demand]:
    count = draw(st.integers(0, 6))
    sizes = st.tuples(st.integers(1, 3), st.integers(0, 4))
    return [
        demand(f"t{i}", least, least + more)
        for i, (least, more) in enumerate(draw(st.lists(sizes, min_size=count, max_size=count)))
    ]


def test_its_examples_hold() -> None:
    assert doctest.testmod(module).failed == 0


@given(st.integers(0, 20), demands())
def test_nobody_gets_less_than_the_least_or_more_than_the_most(
    slots: int, wanted: list[Demand]
) -> None:
    given_to = shares(slots, wanted)
    assert sum(given_to.values()) <= slots
    for one in wanted:
        assert given_to[one.trial] == 0 or one.least <= given_to[one.trial] <= one.most


@given(st.integers(0, 20), demands())
def test_no_slot_is_left_that_a_trial_could_use(slots: int, wanted: list[Demand]) -> None:
    given_to = shares(slots, wanted)
    left = slots - sum(given_to.values())
    if left:
        for one in wanted:
            if given_to[one.trial]:
                assert given_to[one.trial] == one.most
            else:
                assert one.least > left


@given(st.integers(0, 20), demands())
def test_one_slot_more_takes_none_away_from_trials_of_one_size(
    slots: int, wanted: list[Demand]
) -> None:
    alike = [demand(one.trial) for one in wanted]
    before, after = shares(slots, alike), shares(slots + 1, alike)
    assert all(after[trial] >= before[trial] for trial in before)


def test_who_started_first_gets_what_it_needs_first() -> None:
    assert shares(3, [demand("a", 2), demand("b", 2)]) == {"a": 3, "b": 0}


def test_the_last_trial_gets_all_that_it_can_use() -> None:
    assert shares(8, [demand("a", 1, 4)]) == {"a": 4}


def test_a_trial_that_waits_gets_a_worker_of_the_one_with_most() -> None:
    wanted = [demand("a"), demand("b"), demand("c")]
    found = plan(4, wanted, {"a": 2, "b": 2}, free=0)
    assert found.shares == {"a": 2, "b": 1, "c": 1}
    assert found.to_give == {"b": 1}


def test_nobody_gives_while_a_slot_is_free() -> None:
    wanted = [demand("a"), demand("b")]
    assert plan(3, wanted, {"a": 2}, free=1).to_give == {}


def test_nobody_gives_what_nobody_waits_for() -> None:
    # Both have what they need at least; one more would only be fairer.
    wanted = [demand("a", 1, 3), demand("b", 1, 1)]
    assert plan(4, wanted, {"a": 3, "b": 1}, free=0).to_give == {}


def test_who_has_the_least_keeps_it_though_an_earlier_trial_lost_its_nodes() -> None:
    wanted = [demand("a"), demand("b")]
    found = plan(1, wanted, {"a": 0, "b": 1}, free=0)
    assert found.shares == {"a": 0, "b": 1}
    assert found.to_give == {}


def test_of_two_that_lost_too_many_the_first_gets_the_others_workers() -> None:
    # Each holds one of the two that it needs: nobody would ever step.
    wanted = [demand("a", 2), demand("b", 2)]
    found = plan(2, wanted, {"a": 1, "b": 1}, free=0)
    assert found.shares == {"a": 2, "b": 0}
    assert found.to_give == {"b": 0}


@given(demands(), st.data())
def test_to_give_and_free_are_enough_for_all_shares(
    wanted: list[Demand], data: st.DataObject
) -> None:
    have = {one.trial: data.draw(st.integers(0, one.most)) for one in wanted}
    free = data.draw(st.integers(0, 6))
    found = plan(sum(have.values()) + free, wanted, have, free)
    missing = sum(max(0, found.shares[t] - have[t]) for t in have)
    given_up = sum(have[t] - kept for t, kept in found.to_give.items())
    assert given_up + free >= missing
    for trial, kept in found.to_give.items():
        assert kept >= found.shares[trial]
