"""Rows for pictures say what the folds say, and no more of it than a picture can show."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotray.events import Drained, Event, NodeReady, NoticeCancelled, NoticeReceived, Reported
from spotray.ledger.account import account
from spotray.report.figures import Axis
from spotray.report.rows import (
    DRAINING,
    NOTICED,
    SPOT,
    STARTING,
    bars_of,
    money_over_time,
    rows_of,
    thinned,
)
from tests.ledger.story import four_losses
from tests.ledger.test_cost import HOUR_S, down, job, markets, up


def bars(*events: Event) -> list[tuple[str, float, float]]:
    told = sorted([*job(0, 10), *events], key=lambda event: event.at_s)
    found = bars_of(told, account(told).nodes)
    return [(bar.state, bar.start_s / HOUR_S, bar.end_s / HOUR_S) for bar in found]


def notice(at_h: float) -> NoticeReceived:
    return NoticeReceived(at_s=at_h * HOUR_S, node_id="n", deadline_s=None)


def test_a_node_starts_runs_hears_of_its_end_and_drains() -> None:
    found = bars(
        up(1),
        NodeReady(at_s=2 * HOUR_S, node_id="n"),
        notice(5),
        Drained(at_s=6 * HOUR_S, node_id="n", deadline_s=7 * HOUR_S),
        notice(6.5),
        down(7),
    )
    assert found == [(STARTING, 1, 2), (SPOT, 2, 5), (NOTICED, 5, 6), (DRAINING, 6, 7)]


def test_a_notice_that_was_taken_back_ends() -> None:
    cancel = NoticeCancelled(at_s=4 * HOUR_S, node_id="n")
    assert bars(up(1), notice(3), cancel, down(7)) == [
        *((SPOT, 1, 3), (NOTICED, 3, 4), (SPOT, 4, 7))
    ]


@given(events=markets(), notices=st.lists(st.tuples(st.integers(0, 4), st.floats(0, 14))))
def test_bars_cover_each_nodes_paid_time_once(
    events: list[Event], notices: list[tuple[int, float]]
) -> None:
    told = [*events, *(replace(notice(at_h), node_id=f"n{i}") for i, at_h in notices)]
    told.sort(key=lambda event: event.at_s)
    nodes = account(told).nodes
    found = list(bars_of(told, nodes))
    spans = sum(node.end_s - node.start_s for node in nodes)
    assert sum(bar.end_s - bar.start_s for bar in found) == pytest.approx(spans)
    assert all(bar.end_s > bar.start_s for bar in found)


def test_losses_are_told_by_kind_and_shutdowns_are_none() -> None:
    events = sorted(four_losses().events, key=lambda event: event.at_s)
    rows = rows_of(events, account(events))
    kinds = {loss.machine: loss.kind for loss in rows.losses}
    silent = dict.fromkeys(("i-c", "i-a", "i-e"), "silent")
    assert kinds == {"i-d": "noticed", "i-b": "noticed", **silent}
    assert [workers for _, workers in rows.world] == [4, 3, 2, 3, 2, 2]


@given(events=markets())
def test_money_over_time_never_falls_and_ends_at_the_bill(events: list[Event]) -> None:
    events = sorted(events, key=lambda event: event.at_s)
    bill = account(events)
    rows = list(money_over_time(events, bill, parts=7))
    paid = [row.cost_usd for row in rows]
    assert paid == sorted(paid)
    if bill.nodes:
        assert paid[-1] == pytest.approx(bill.total.cost_usd or 0.0)
        assert rows[-1].on_demand_usd == pytest.approx(bill.total.on_demand_cost_usd or 0.0)


def test_throughput_is_samples_over_seconds_however_many_batches_are_one_point() -> None:
    events = sorted(four_losses().events, key=lambda event: event.at_s)
    for points in (1, 5, 1000):
        curve = rows_of(events, account(events), points=points).throughput
        assert 0 < len(curve.values) <= max(points, 1)
        assert curve.values == pytest.approx([128.0] * len(curve.values))


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300), points=st.integers(2, 60))
def test_a_thinned_curve_keeps_its_extremes(values: list[float], points: int) -> None:
    seen = [(float(i), value, i) for i, value in enumerate(values)]
    curve = thinned("loss", seen, points)
    assert len(curve.values) <= points + 1
    assert (min(curve.values), max(curve.values)) == (min(values), max(values))
    assert list(curve.at_s) == sorted(curve.at_s)


def test_metrics_that_are_no_numbers_have_no_curve() -> None:
    metrics = {"accuracy": 0.5, "name": "x", "done": True, "nan": float("nan"), "loss": 1}
    events: list[Event] = [*job(0, 1), Reported(at_s=5.0, step=1, epoch=0, metrics=metrics)]
    names = [curve.name for curve in rows_of(events, account(events)).curves]
    assert names == ["accuracy", "loss (reported)"]
    many = {f"m{i:02d}": float(i) for i in range(20)}
    events.append(Reported(at_s=6.0, step=1, epoch=0, metrics=many))
    rows = rows_of(events, account(events))
    assert len(rows.curves) + len(rows.more_metrics) == 22
    assert "m19" in rows.more_metrics


@pytest.mark.parametrize(
    ("lasts_s", "unit", "end"),
    [(600, "minutes", 10), (7200, "minutes", 120), (36000, "hours", 10), (30 * 86400, "days", 30)],
)
def test_an_axis_has_a_unit_that_suits_its_length(lasts_s: float, unit: str, end: float) -> None:
    axis = Axis(1000.0, 1000.0 + lasts_s)
    assert (axis.unit[1], axis.at(1000.0 + lasts_s)) == (unit, end)
