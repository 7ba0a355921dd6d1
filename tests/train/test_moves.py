from __future__ import annotations

from collections.abc import Mapping

import pytest

from spotray.train.moves import (
    Move,
    Newcomers,
    Planner,
    growth_pays,
    time_to_part,
    time_to_swap,
)
from spotray.train.session import Progress

NOW_S = 1000.0


@pytest.mark.parametrize(("noticed_for_s", "swaps"), [(0.0, False), (59.0, False), (60.0, True)])
def test_a_swap_waits_for_more_notices_of_the_same_minute(
    noticed_for_s: float, swaps: bool
) -> None:
    assert time_to_swap(noticed_for_s=noticed_for_s) is swaps


def test_a_node_without_a_deadline_is_left_at_once() -> None:
    assert time_to_part(deadline_s=None, step_s=0.0, margin_s=0.0, now_s=NOW_S)


@pytest.mark.parametrize(("left_s", "parts"), [(120.0, False), (15.0, False), (14.0, True)])
def test_a_node_is_left_while_there_is_time_for_the_step_under_way(
    left_s: float, parts: bool
) -> None:
    # A step has just begun, and another may be needed to agree on the meeting.
    deadline_s = NOW_S + left_s
    assert time_to_part(deadline_s=deadline_s, step_s=2.0, margin_s=10.0, now_s=NOW_S) is parts


def test_a_deadline_that_is_over_means_now() -> None:
    assert time_to_part(deadline_s=NOW_S - 5.0, step_s=0.0, margin_s=0.0, now_s=NOW_S)


def test_growth_pays_if_the_new_node_outlives_what_all_stand_still_for() -> None:
    # Seven wait 0.3 s each, and so does the new one: 2.4 s of work.
    assert not growth_pays(pause_s=0.3, workers=7, expected_life_s=2.4)
    assert growth_pays(pause_s=0.3, workers=7, expected_life_s=2.5)


def test_growth_that_costs_long_pauses_does_not_pay_on_nodes_that_live_shortly() -> None:
    assert not growth_pays(pause_s=30.0, workers=8, expected_life_s=120.0)


# -- the planner -----------------------------------------------------------------------------

NOBODY = Newcomers(ready=0, waited_s=0.0, on_the_way=0)
ONE = Newcomers(ready=1, waited_s=0.0, on_the_way=0)
PROGRESS = Progress(step=5, epoch=0, loss=1.0, step_s=1.0)


def planner(
    deadlines: Mapping[str, float | None] | None = None, *, mtbp_s: float = 3600.0
) -> Planner:
    made = Planner(margin_s=5.0, mtbp_s=mtbp_s)
    made.set_notices(deadlines or {}, monotonic_s=0.0)
    return made


def decided(
    plans: Planner,
    newcomers: Newcomers = NOBODY,
    *,
    monotonic_s: float = 0.0,
    most: int = 4,
    share: int = 4,
) -> Move:
    """What members on nodes a and b should do."""
    return plans.decide(
        ["a", "b"],
        newcomers,
        progress=PROGRESS,
        most=most,
        share=share,
        now_s=NOW_S,
        monotonic_s=monotonic_s,
    )


def test_members_go_on_while_nothing_happens() -> None:
    assert decided(planner()) == Move()


def test_a_node_under_notice_comes_along_to_meetings_until_it_must_go() -> None:
    assert decided(planner({"b": NOW_S + 60})) == Move()
    grows = decided(planner({"b": NOW_S + 60}), ONE)
    assert grows == Move(why="1 worker(s) are ready")
    parts = decided(planner({"b": NOW_S + 6}))
    assert parts.why == "1 node(s) are about to be taken"
    assert parts.leaving_nodes == {"b"}
    assert not parts.durable


def test_members_beyond_the_jobs_share_are_let_go() -> None:
    assert decided(planner(), share=2) == Move()
    assert decided(planner(), share=1) == Move(why="1 worker(s) are needed elsewhere")


def test_members_that_are_of_no_use_stay_as_long_as_nobody_else_needs_them() -> None:
    assert decided(planner(), most=1) == Move()


def test_one_deadline_that_nobody_knows_counts_as_now() -> None:
    assert decided(planner({"a": NOW_S + 60, "b": None}), ONE).leaving_nodes == {"a", "b"}


def test_nodes_of_others_under_notice_are_never_let_in() -> None:
    assert decided(planner({"c": NOW_S + 60})) == Move(leaving_nodes=frozenset({"c"}))


def test_where_nobody_stays_the_state_goes_to_storage() -> None:
    move = decided(planner({"a": NOW_S + 6, "b": NOW_S + 6}))
    assert move.durable
    assert move.leaving_nodes == {"a", "b"}


def test_a_notice_that_is_repeated_keeps_its_time_and_one_that_was_withdrawn_loses_it() -> None:
    plans = planner({"b": NOW_S + 3600})
    plans.set_notices({"b": NOW_S + 3600}, monotonic_s=30.0)
    assert decided(plans, ONE, monotonic_s=60.0).why.endswith("others are ready")
    plans.set_notices({}, monotonic_s=61.0)
    plans.set_notices({"b": NOW_S + 3600}, monotonic_s=62.0)
    assert decided(plans, ONE, monotonic_s=90.0).leaving_nodes == frozenset()


def test_newcomers_wait_for_the_next_one_but_not_for_ever() -> None:
    plans = planner()
    assert decided(plans, Newcomers(ready=1, waited_s=0.9, on_the_way=1)) == Move()
    assert decided(plans, Newcomers(ready=1, waited_s=1.0, on_the_way=1)).why
    assert decided(plans, Newcomers(ready=1, waited_s=0.0, on_the_way=0)).why


def test_newcomers_without_work_are_not_let_in() -> None:
    assert decided(planner(), ONE, most=2) == Move()


def test_what_a_meeting_cost_is_measured_once_and_only_where_all_had_agreed() -> None:
    # Three would stand still for a pause; a new node lives 30 s.
    plans = planner(mtbp_s=30.0)
    plans.met(planned=False, monotonic_s=0.0)
    plans.stepped(PROGRESS, monotonic_s=50.0)
    assert decided(plans, ONE).why, "a loss says nothing of a planned meeting"
    plans.met(planned=True, monotonic_s=100.0)
    plans.stepped(PROGRESS, monotonic_s=111.0)
    assert decided(plans, ONE) == Move(), "10 s beside the step itself"
    plans.stepped(PROGRESS, monotonic_s=112.0)
    assert decided(plans, ONE) == Move(), "later steps were no meeting"
    plans.met(planned=True, monotonic_s=200.0)
    plans.stepped(PROGRESS, monotonic_s=202.0)
    assert decided(plans, ONE).why
