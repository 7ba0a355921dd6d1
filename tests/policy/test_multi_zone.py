"""Where to go next, and when to stay."""

from __future__ import annotations

from spotray.market.hazards import learn
from spotray.market.lives import NodeLife
from spotray.policy.multi_zone import MultiZone
from tests.policy.fleets import EAST_A, EAST_B, GAP, HOUR, WEST, course

DAY = 288


def test_it_begins_where_the_nodes_cost_least() -> None:
    _, moments = course(MultiZone(), (EAST_A, EAST_B), [[2] * 9, [2] * 9], [1.2, 1.0])
    assert [one.spot for one in moments] == [(0, 2)] * 9
    assert "2 in us-east-1b at" in moments[0].why


def test_it_spreads_over_the_zones_of_a_region_but_not_over_two_regions() -> None:
    there = [[1] * 5, [1] * 5, [1] * 5]
    _, moments = course(MultiZone(), (EAST_A, EAST_B, WEST), there, [1.2, 1.0, 0.9])
    assert [one.spot for one in moments] == [(1, 1, 0)] * 5


def test_it_does_not_move_for_less_than_a_move_costs() -> None:
    b = [1.01] * 40 + [0.99] * 40
    _, moments = course(MultiZone(), (EAST_A, EAST_B), [[2] * 80, [2] * 80], [1.0, b])
    assert {one.spot for one in moments} == {(2, 0)}


def test_it_moves_to_a_zone_that_became_much_cheaper_the_new_nodes_first() -> None:
    b = [1.0] * 40 + [0.4] * 40
    outcome, moments = course(MultiZone(), (EAST_A, EAST_B), [[2] * 80, [2] * 80], [0.9, b])
    assert moments[39].spot == (2, 0)
    assert moments[40].spot == (2, 2)  # the old ones train on
    assert moments[41].spot == (0, 2)
    assert "from us-east-1a to us-east-1b: saves" in moments[40].why
    assert (outcome.restarts, outcome.moves) == (0, 0)


def test_another_region_must_save_a_restart_and_the_way_of_the_data() -> None:
    there, cheap = [[2] * 80, [2] * 80], [1.0] * 40 + [0.6] * 40
    near, _ = course(MultiZone(), (EAST_A, WEST), there, [0.9, cheap], move_usd=0.5)
    assert near.moves == 1
    far, moments = course(MultiZone(), (EAST_A, WEST), there, [0.9, cheap], move_usd=500.0)
    assert far.moves == 0
    assert {one.spot for one in moments} == {(2, 0)}


def test_it_leaves_a_zone_that_lost_its_spot_for_one_that_has_some() -> None:
    there = [[2] * 10 + [0] * 10, [2] * 20]
    outcome, moments = course(MultiZone(), (EAST_A, WEST), there, [0.9, 1.2])
    assert moments[9].spot == (2, 0)
    assert [one.spot for one in moments[10:]] == [(0, 2)] * 10
    assert outcome.moves == 1


def test_a_zone_that_keeps_losing_is_left_for_a_calm_one_at_the_same_price() -> None:
    rough = ([2] * 3 + [0]) * 30
    _, moments = course(MultiZone(), (EAST_A, WEST), [rough, [2] * 120], [1.0, 1.0])
    assert {one.spot for one in moments[60:]} == {(0, 2)}


def test_what_ones_own_nodes_lived_is_believed_before_anything_is_seen() -> None:
    """Both zones cost the same, and nodes in the first were all lost within minutes."""
    short = [
        NodeLife(
            market=str(EAST_A.market), name=f"i-{index}", start_s=0.0, seconds=300.0, ended=True
        )
        for index in range(40)
    ]
    long = [
        NodeLife(market=str(WEST.market), name=f"i-{index}", start_s=0.0, seconds=9e5, ended=False)
        for index in range(40)
    ]
    there = [[2] * 3, [2] * 3]
    for hazards, spot in ((None, (2, 0)), (learn([*short, *long]), (0, 2))):
        _, moments = course(MultiZone(hazards), (EAST_A, WEST), there, [1.0, 1.0])
        assert moments[0].spot == spot


def test_without_spot_and_with_time_it_waits_and_then_is_in_time_on_on_demand() -> None:
    nothing = [[0] * DAY]
    outcome, moments = course(
        MultiZone(), (EAST_A,), nothing, [1.0], work_s=8 * HOUR, deadline_s=20 * HOUR
    )
    assert "there is time: wait" in moments[0].why
    assert not outcome.is_late
    assert outcome.spot_usd == 0
    assert any("no spot for 2 nodes: on-demand" in one.why for one in moments)


def test_without_a_deadline_it_pays_for_on_demand_only_if_time_is_worth_it() -> None:
    nothing = [[0] * 50]
    for worth, used in ((3.9, False), (4.1, True)):
        outcome, _ = course(
            MultiZone(), (EAST_A,), nothing, [1.0], time_usd_per_hour=worth, work_s=HOUR
        )
        assert (outcome.ended_s is not None) == used


def test_from_on_demand_it_goes_back_to_spot_without_a_restart() -> None:
    there = [[0] * 30 + [2] * 60]
    outcome, moments = course(
        MultiZone(), (EAST_A,), there, [1.0], time_usd_per_hour=9.0, work_s=1e6
    )
    assert moments[20].on_demand == (2,)
    assert (moments[30].spot, moments[30].on_demand) == ((2,), (2,))
    assert (moments[31].spot, moments[31].on_demand) == ((2,), (0,))
    assert outcome.restarts == 0


def test_no_slack_is_on_demand_from_the_first_tick() -> None:
    work_s = 4 * HOUR
    needed_s = 180 + 28.62 + work_s / 2 / 0.99
    outcome, moments = course(
        MultiZone(), (EAST_A,), [[2] * 40], [1.0], work_s=work_s, deadline_s=needed_s + 1
    )
    assert {one.on_demand for one in moments} == {(2,)}
    assert moments[0].why == "no slack is left: on-demand is sure"
    assert outcome.ended_s is not None
    assert outcome.ended_s <= needed_s + GAP
    assert not outcome.is_late
