"""How many nodes: by price, by speed, by the time that is left."""

from __future__ import annotations

from spotray.policy.elastic import Elastic
from spotray.policy.multi_zone import MultiZone
from tests.policy.fleets import EAST_A, EAST_B, HOUR, course

# Four nodes are twice as fast as one: each further one makes the work dearer.
SLOW = (0.0, 1.0, 1.4, 1.7, 2.0)
FAST = (0.0, 1.0, 2.0, 3.0, 4.0)


def test_nodes_that_help_little_are_not_taken_while_there_is_time() -> None:
    _, moments = course(
        Elastic(), (EAST_A,), [[4] * 144], [1.0], speeds=SLOW, work_s=4 * HOUR, deadline_s=12 * HOUR
    )
    assert sum(moments[0].spot) == 1
    assert moments[0].why.startswith("1 nodes: 1.")


def test_a_near_deadline_takes_more_of_them() -> None:
    outcome, moments = course(
        Elastic(), (EAST_A,), [[4] * 72], [1.0], speeds=SLOW, work_s=9 * HOUR, deadline_s=6 * HOUR
    )
    assert sum(moments[0].spot) >= 3
    assert not outcome.is_late


def test_an_hour_that_is_worth_something_takes_more_of_them() -> None:
    _, moments = course(Elastic(), (EAST_A,), [[4] * 9], [1.0], speeds=SLOW, time_usd_per_hour=9.0)
    assert sum(moments[0].spot) == 4


def test_nodes_that_help_fully_are_all_taken() -> None:
    _, moments = course(Elastic(), (EAST_A,), [[4] * 9], [1.0], speeds=FAST)
    assert {one.spot for one in moments} == {(4,)}


def test_what_spot_there_is_trains_while_a_fixed_number_waits() -> None:
    few = [[1] * 100, [1] * 100]
    asked = {"speeds": FAST, "work_s": 12 * HOUR, "deadline_s": 8 * HOUR}
    elastic, moments = course(Elastic(), (EAST_A, EAST_B), few, [1.0, 1.0], **asked)
    fixed, _ = course(MultiZone(), (EAST_A, EAST_B), few, [1.0, 1.0], **asked)
    assert all(sum(one.spot) == 2 for one in moments)
    assert fixed.spot_usd == 0
    assert elastic.cost_usd < 0.75 * fixed.cost_usd
    assert not elastic.is_late


def test_on_demand_nodes_come_beside_spot_only_when_it_lags_and_say_so() -> None:
    outcome, moments = course(
        Elastic(), (EAST_A,), [[1] * 100], [1.0], speeds=FAST, work_s=9 * HOUR, deadline_s=8 * HOUR
    )
    helped = [one for one in moments if any(one.on_demand) and any(one.spot)]
    assert helped
    assert any("behind the line to the deadline" in one.why for one in helped)
    assert moments[0].on_demand == (0,)
    assert not outcome.is_late


def test_a_slightly_better_number_is_no_reason_to_change() -> None:
    """Prices that swing a little would make another number best at each tick."""
    speeds = (0.0, 1.0, 1.98)
    swing = [1.0, 1.03] * 40
    _, moments = course(
        Elastic(), (EAST_A, EAST_B), [[1] * 80, [1] * 80], [1.0, swing], speeds=speeds
    )
    assert len({one.spot for one in moments}) == 1


def test_in_one_zone_it_stays_where_it_began() -> None:
    _, moments = course(
        Elastic(one_zone=True),
        (EAST_A, EAST_B),
        [[4, 4, 4, 0, 0, 4], [4] * 6],
        [0.9, 1.0],
        speeds=FAST,
    )
    assert all(one.spot[1] == 0 for one in moments)


def test_a_thousand_numbers_are_not_all_weighed() -> None:
    speeds = (0.0, *(float(n) for n in range(1, 1001)))
    _, moments = course(Elastic(), (EAST_A,), [[1000] * 5], [1.0], speeds=speeds, work_s=1e9)
    assert moments[0].spot == (1000,)
