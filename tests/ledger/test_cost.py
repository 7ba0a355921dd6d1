"""Node time is paid once, at the price in force, and nothing unknown is free."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotray.events import Event, JobEnded, JobStarted, NodeDown, NodeUp, PriceChanged
from spotray.events import WorkerGroupStarted as GroupStarted
from spotray.ledger.cost import CostSummary, cost

from .story import ON_DEMAND_USD, SPOT, SPOT_USD, four_losses

HOUR_S = 3600.0


def up(at_h: float, node_id: str = "n", **fields: object) -> NodeUp:
    values: dict[str, object] = {
        "market": SPOT,
        "spot": True,
        "usd_per_hour": 0.4,
        "on_demand_usd_per_hour": 1.0,
        "name": node_id,
    }
    return NodeUp(at_s=at_h * HOUR_S, node_id=node_id, **{**values, **fields})  # type: ignore[arg-type]


def down(at_h: float, node_id: str = "n") -> NodeDown:
    return NodeDown(at_s=at_h * HOUR_S, node_id=node_id, cause="preemption")


def price(at_h: float, usd: float, market: str = SPOT) -> PriceChanged:
    return PriceChanged(at_s=at_h * HOUR_S, market=market, usd_per_hour=usd)


def job(from_h: float, to_h: float | None = None) -> list[Event]:
    start = JobStarted(at_s=from_h * HOUR_S, job="j", run_id="r")
    if to_h is None:
        return [start]
    return [start, JobEnded(at_s=to_h * HOUR_S, job="j", status="finished")]


def test_a_node_is_paid_from_up_to_down() -> None:
    result = cost([*job(0, 10), up(1), down(3)])
    assert result.total.cost_usd == pytest.approx(0.8)
    assert result.total.on_demand_cost_usd == pytest.approx(2.0)
    assert result.saved_frac == pytest.approx(0.6)
    assert result.total.seconds == pytest.approx(2 * HOUR_S)


def test_a_node_that_is_still_up_is_paid_until_now() -> None:
    assert cost([*job(0), up(1)], until_s=2 * HOUR_S).total.cost_usd == pytest.approx(0.4)


def test_only_the_jobs_own_time_counts() -> None:
    result = cost([up(0), *job(1, 2), *job(5, 6), down(8)])
    assert result.total.cost_usd == pytest.approx(0.8)
    assert (result.nodes[0].start_s, result.nodes[0].end_s) == (1 * HOUR_S, 6 * HOUR_S)


def test_a_new_price_holds_from_then_on() -> None:
    result = cost([*job(0, 4), price(0.5, 9.0), up(1), price(2, 0.8), price(2, 5.0, "other")])
    assert result.total.cost_usd == pytest.approx(0.4 + 2 * 0.8)


def test_a_market_price_serves_a_node_without_its_own() -> None:
    result = cost([*job(0, 3), price(0.5, 0.2), up(1, usd_per_hour=None), down(2)])
    assert result.total.cost_usd == pytest.approx(0.2)


def test_an_unknown_price_is_unknown_and_not_free() -> None:
    result = cost([*job(0, 2), up(0, "a", usd_per_hour=None, market=""), up(0, "b")])
    assert result.total.cost_usd == pytest.approx(0.8)
    assert result.total.unpriced_s == pytest.approx(2 * HOUR_S)
    assert result.saved_frac == pytest.approx(0.6)  # of the node with both prices
    nothing = cost([*job(0, 2), up(0, "a", usd_per_hour=None)])
    assert nothing.total.cost_usd is None
    assert nothing.saved_frac is None


def test_members_that_nobody_saw_come_up_are_counted() -> None:
    group = GroupStarted(at_s=1.0, generation=1, world_size=2, node_ids=("x", "y"))
    assert cost([*job(0, 1), group]).unseen_nodes == 2


def test_a_machine_that_rejoins_is_paid_once() -> None:
    first, second = up(0, "id1", name="i-1"), up(1, "id2", name="i-1")
    result = cost([*job(0, 3), first, second, down(1.5, "id1"), down(2, "id2")])
    assert result.total.cost_usd == pytest.approx(2 * 0.4)
    assert result.total.seconds == pytest.approx(2 * HOUR_S)


def test_the_first_price_of_a_node_wins() -> None:
    seen = [up(0, usd_per_hour=None), up(0.1, usd_per_hour=0.5), up(0.2, usd_per_hour=7.0)]
    assert cost([*job(0, 1), *seen]).total.cost_usd == pytest.approx(0.5)


def test_an_on_demand_node_is_its_own_comparison() -> None:
    node = up(0, spot=False, on_demand_usd_per_hour=None, market="m/on-demand")
    result = cost([*job(0, 1), node])
    assert result.total.on_demand_cost_usd == pytest.approx(0.4)
    assert list(result.by_kind) == ["on-demand"]


def test_a_whole_job_is_split_by_kind_and_market_without_rest() -> None:
    story = four_losses()
    result = cost(story.events)
    for groups in (result.by_kind, result.by_market):
        assert sum(m.seconds for m in groups.values()) == pytest.approx(result.total.seconds)
        assert sum(m.cost_usd or 0 for m in groups.values()) == pytest.approx(usd(result))
    spot = result.by_kind["spot"]
    assert spot.cost_usd == pytest.approx(spot.seconds / HOUR_S * SPOT_USD)
    assert spot.on_demand_cost_usd == pytest.approx(spot.seconds / HOUR_S * ON_DEMAND_USD)


def test_no_events_cost_nothing_known() -> None:
    result = cost([])
    assert result.total.cost_usd is None
    assert result.nodes == ()


def usd(result: CostSummary) -> float:
    return result.total.cost_usd or 0.0


@st.composite
def markets(draw: st.DrawFn) -> list[Event]:
    """A job among nodes that come and go while prices move; times collide on purpose."""
    hour = st.integers(0, 12).map(lambda half: half / 2)
    dollars = st.sampled_from([None, 0.25, 0.5, 1.0])
    events: list[Event] = [*job(draw(hour), draw(st.none() | hour))]
    if len(events) == 2 and events[1].at_s <= events[0].at_s:
        events.pop()
    for i in range(draw(st.integers(1, 5))):
        name = draw(st.sampled_from(["", "i-1", f"i-{i}"]))
        market = draw(st.sampled_from(["", "m1", "m2"]))
        born = draw(hour)
        events.append(up(born, f"n{i}", name=name, market=market, usd_per_hour=draw(dollars)))
        if draw(st.booleans()):
            events.append(down(born + draw(hour), f"n{i}"))
    for _ in range(draw(st.integers(0, 4))):
        events.append(
            price(
                draw(hour), draw(st.sampled_from([0.1, 0.7])), draw(st.sampled_from(["m1", "m2"]))
            )
        )
    return events


@given(events=markets(), cut_h=st.floats(0, 14))
def test_cost_adds_up_over_split_time(events: list[Event], cut_h: float) -> None:
    end_s, cut_s = 14 * HOUR_S, cut_h * HOUR_S
    whole = cost(events, until_s=end_s)
    before, after = cost(events, until_s=cut_s), cost(events, from_s=cut_s, until_s=end_s)
    assert usd(before) + usd(after) == pytest.approx(usd(whole), abs=1e-9)
    for name in ("seconds", "unpriced_s"):
        parts = getattr(before.total, name) + getattr(after.total, name)
        assert parts == pytest.approx(getattr(whole.total, name), abs=1e-6)


@given(events=markets(), seed=st.integers(0, 100))
def test_the_order_of_the_events_does_not_matter(events: list[Event], seed: int) -> None:
    shuffled = list(events)
    random.Random(seed).shuffle(shuffled)
    assert cost(shuffled, until_s=14 * HOUR_S) == cost(events, until_s=14 * HOUR_S)
