from __future__ import annotations

import math

import pytest

from spotray.errors import ConfigError
from spotray.market.prices import PriceRange
from spotray.plan.forecast import SpotNodes, Spread, in_some_zone, on_demand_only, on_spot
from spotray.sim.fleet_named import fleet_policy
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


def nodes(spot: PriceRange, on_demand: float | None = 1.0, **more: object) -> SpotNodes:
    steady = None if on_demand is None else price(on_demand)
    return SpotNodes(**{"spot": spot, "on_demand": steady, "nodes": 1, **more})  # type: ignore[arg-type]


def test_the_default_policy_is_never_late_and_mostly_cheaper_than_on_demand() -> None:
    on = nodes(price(0.3), nodes=4)
    found = on_spot(policy("lookahead"), on, work_s=4 * H, deadline_s=8 * H)
    assert found.late_frac == 0
    assert found.end_s.high <= 8 * H
    assert 4 * 4 * 0.3 <= found.cost_usd.low <= found.cost_usd.middle < 4 * 4 * 1.1
    assert found.cost_usd.low < found.cost_usd.high


def test_who_may_go_to_any_zone_is_never_late_and_pays_less_than_who_stays() -> None:
    on = nodes(price(0.3), nodes=4)
    stays = on_spot(policy("lookahead"), on, work_s=20 * H, deadline_s=26 * H)
    goes = in_some_zone(fleet_policy("multi-zone"), on, work_s=20 * H, deadline_s=26 * H)
    assert goes.late_frac == 0
    assert goes.end_s.high <= 26 * H
    assert 4 * 20 * 0.3 < goes.cost_usd.low <= goes.cost_usd.middle < stays.cost_usd.middle
    assert 3 * goes.runs == stays.runs  # the same regions


def test_the_same_arguments_give_the_same_forecast() -> None:
    on = nodes(price(0.3, 0.5), nodes=2)
    ask = {"work_s": 2 * H, "deadline_s": 3 * H}
    first, second = (on_spot(policy("uniform-progress"), on, **ask) for _ in range(2))
    assert first == second
    first, second = (in_some_zone(fleet_policy("multi-zone"), on, **ask) for _ in range(2))
    assert first == second


def test_dearer_zones_make_the_range_wider() -> None:
    narrow, wide = (
        on_spot(
            policy("spot-only"),
            nodes(spot, None, start_s=0.0),
            work_s=1 * H,
            deadline_s=40 * H,
        ).cost_usd
        for spot in (price(0.5), price(0.2, 0.8))
    )
    assert wide.high - wide.low > narrow.high - narrow.low + 0.2


def test_spot_only_may_be_late_and_its_end_unknown() -> None:
    found = on_spot(policy("spot-only"), nodes(price(0.3), None), work_s=9 * H, deadline_s=10 * H)
    assert found.late_frac > 0.3
    assert found.end_s.high > 10 * H


def test_with_no_slack_for_a_tick_it_is_on_demand() -> None:
    on = nodes(price(0.3))
    found = on_spot(policy("lookahead"), on, work_s=4 * H, deadline_s=4 * H + 200)
    assert found.cost_usd.low == found.cost_usd.high == pytest.approx(4.05)
    other = in_some_zone(fleet_policy("multi-zone"), on, work_s=4 * H, deadline_s=4 * H + 200)
    assert other == found


def test_a_long_job_is_simulated_in_fewer_runs() -> None:
    found = on_spot(
        policy("uniform-progress"), nodes(price(0.3)), work_s=1000 * H, deadline_s=1500 * H
    )
    assert 10 <= found.runs < 30


def test_an_age_at_which_nodes_end_costs_starts() -> None:
    ask = {"work_s": 48 * H, "deadline_s": 96 * H}
    free, ends = (  # seldom lost otherwise
        nodes(price(0.3), nodes=2, cloud="gcp", losses=0.05, limit_s=limit_s)
        for limit_s in (math.inf, 6 * H)
    )
    alone = [on_spot(policy("uniform-progress"), on, **ask) for on in (free, ends)]
    anywhere = [in_some_zone(fleet_policy("multi-zone"), on, **ask) for on in (free, ends)]
    for without, within in (alone, anywhere):
        assert within.preemptions > without.preemptions + 3
        assert within.late_frac == 0


def test_nodes_that_are_lost_oftener_make_it_dearer() -> None:
    ask = {"work_s": 20 * H, "deadline_s": 40 * H}
    seldom, often = (
        on_spot(policy("uniform-progress"), nodes(price(0.3), losses=losses), **ask)
        for losses in (0.1, 10.0)
    )
    assert seldom.preemptions < often.preemptions
    assert seldom.cost_usd.middle < often.cost_usd.middle


def test_to_go_anywhere_without_on_demand_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs a price of on-demand"):
        in_some_zone(
            fleet_policy("multi-zone"), nodes(price(0.3), None), work_s=H, deadline_s=2 * H
        )
