from __future__ import annotations

import math

import pytest

from spotray.market.prices import PriceRange
from spotray.plan.forecast import Spread, on_demand_only, on_spot
from spotray.sim.named import policy

H = 3600.0


def price(low: float, high: float | None = None) -> PriceRange:
    return PriceRange(low_usd_per_hour=low, high_usd_per_hour=low if high is None else high)


def test_a_spread_is_by_rank_and_may_be_infinite() -> None:
    found = Spread.of([5.0, 1.0, math.inf, 3.0, 2.0, 4.0, 6.0, 7.0, 8.0, 9.0, math.inf])
    assert (found.low, found.middle, found.high) == (2.0, 6.0, math.inf)


def test_on_demand_is_paid_from_the_start_of_the_machines() -> None:
    found = on_demand_only(price(1.0, 2.0), nodes=4, work_s=9 * H, start_s=1 * H)
    assert found.end_s.low == found.end_s.high == 10 * H
    assert (found.cost_usd.low, found.cost_usd.high) == (40.0, 80.0)


def test_the_default_policy_is_never_late_and_mostly_cheaper_than_on_demand() -> None:
    found = on_spot(
        policy("lookahead"),
        spot=price(0.3),
        on_demand=price(1.0),
        nodes=4,
        work_s=4 * H,
        deadline_s=8 * H,
    )
    assert found.late_frac == 0
    assert found.end_s.high <= 8 * H
    assert 4 * 4 * 0.3 <= found.cost_usd.low <= found.cost_usd.middle < 4 * 4 * 1.1
    assert found.cost_usd.low < found.cost_usd.high


def test_the_same_arguments_give_the_same_forecast() -> None:
    ask = {
        "spot": price(0.3, 0.5),
        "on_demand": price(1.0),
        "nodes": 2,
        "work_s": 2 * H,
        "deadline_s": 3 * H,
    }
    first, second = (on_spot(policy("uniform-progress"), **ask) for _ in range(2))  # type: ignore[arg-type]
    assert first == second


def test_dearer_zones_make_the_range_wider() -> None:
    narrow, wide = (
        on_spot(
            policy("spot-only"),
            spot=spot,
            on_demand=None,
            nodes=1,
            work_s=1 * H,
            deadline_s=40 * H,
            start_s=0.0,
        ).cost_usd
        for spot in (price(0.5), price(0.2, 0.8))
    )
    assert wide.high - wide.low > narrow.high - narrow.low + 0.2


def test_spot_only_may_be_late_and_its_end_unknown() -> None:
    found = on_spot(
        policy("spot-only"),
        spot=price(0.3),
        on_demand=None,
        nodes=1,
        work_s=9 * H,
        deadline_s=10 * H,
    )
    assert found.late_frac > 0.3
    assert found.end_s.high > 10 * H


def test_with_no_slack_for_a_tick_it_is_on_demand() -> None:
    found = on_spot(
        policy("lookahead"),
        spot=price(0.3),
        on_demand=price(1.0),
        nodes=1,
        work_s=4 * H,
        deadline_s=4 * H + 200,
        start_s=180.0,
    )
    assert found.cost_usd.low == found.cost_usd.high == pytest.approx(4.05)


def test_a_long_job_is_simulated_in_fewer_runs() -> None:
    found = on_spot(
        policy("uniform-progress"),
        spot=price(0.3),
        on_demand=price(1.0),
        nodes=1,
        work_s=1000 * H,
        deadline_s=1500 * H,
    )
    assert 10 <= found.runs < 40
