from __future__ import annotations

import pytest

from spotray.train.moves import growth_pays, time_to_part, time_to_swap

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
