from __future__ import annotations

import math

import pytest

from spotray.market.offer import Market
from spotray.policy.decision import Attempt, Launch, Wait
from spotray.policy.view import LaunchView, SpotOnly

SPOT = Market.parse("aws/us-west-2a/g5.xlarge/spot")
ON_DEMAND = SPOT.on_demand()


def test_a_head_cannot_even_be_asked_about_with_spot_among_its_markets() -> None:
    with pytest.raises(ValueError, match="head"):
        LaunchView(now_s=0.0, wanted=1, candidates=(SPOT, ON_DEMAND), head=True)
    LaunchView(now_s=0.0, wanted=1, candidates=(ON_DEMAND,), head=True)


@pytest.mark.parametrize("wrong", [{"wanted": 0}, {"candidates": ()}])
def test_a_launch_of_nothing_or_nowhere_is_no_launch(wrong: dict[str, object]) -> None:
    fields: dict[str, object] = {"now_s": 0.0, "wanted": 1, "candidates": (SPOT,)}
    with pytest.raises(ValueError, match="wanted|candidate"):
        LaunchView(**{**fields, **wrong})  # type: ignore[arg-type]


def test_a_probe_for_spot_hides_on_demand_until_it_ends_or_is_called_off() -> None:
    def left(now_s: float, *facts: SpotOnly) -> tuple[Market, ...]:
        view = LaunchView(now_s=now_s, wanted=1, candidates=(SPOT, ON_DEMAND), facts=facts)
        return view.left

    probe = SpotOnly(at_s=10.0, until_s=70.0)
    assert left(69.0, probe) == (SPOT,)
    assert left(70.0, probe) == (SPOT, ON_DEMAND)
    assert left(30.0, probe, SpotOnly(at_s=20.0, until_s=0.0)) == (SPOT, ON_DEMAND)


def test_what_this_launch_has_asked_is_not_left() -> None:
    view = LaunchView(now_s=0.0, wanted=1, candidates=(SPOT, ON_DEMAND), tried=(SPOT,))
    assert view.left == (ON_DEMAND,)


def test_a_decision_without_a_reason_or_an_end_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="reason"):
        Attempt(market=SPOT, why=" ")
    with pytest.raises(ValueError, match="one line"):
        Wait(until_s=1.0, why="two\nlines")
    with pytest.raises(ValueError, match="end"):
        Wait(until_s=math.inf, why="for ever")
    with pytest.raises(ValueError, match="wait"):
        Launch(attempts=())
