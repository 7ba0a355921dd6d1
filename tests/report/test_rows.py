"""Rows for pictures say what the folds say, and no more of it than a picture can show."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotray.events import (
    Drained,
    Event,
    FellBack,
    JobEnded,
    JobStarted,
    NodeDown,
    NodeReady,
    NoticeCancelled,
    NoticeReceived,
    Reported,
    StepsDone,
    TrainingDone,
    WorkerGroupLost,
    WorkerGroupStarted,
)
from spotray.ledger.account import account
from spotray.report.figures import Axis
from spotray.report.rows import (
    DRAINING,
    NOTICED,
    SPOT,
    STARTING,
    bars_of,
    losses_of,
    money_over_time,
    rows_of,
    thinned,
    world_of,
)
from tests.ledger.story import STEP_S, Story, four_losses
from tests.ledger.test_cost import HOUR_S, down, job, markets, up
from tests.ledger.test_goodput import random_story


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
    # Each of these groups gave way to new processes, and training ended with the last one.
    assert [workers for _, workers in rows.world] == [4, 0, 3, 0, 2, 0, 3, 0, 2, 0, 2, 0]


def test_a_machine_that_came_back_is_not_lost_twice() -> None:
    first, second = up(1, "id1", name="i-1"), up(4, "id2", name="i-1")
    told = sorted([*job(0, 10), first, second, down(3, "id1")], key=lambda event: event.at_s)
    nodes = {node.node_id: node for node in account(told).nodes}
    assert [(loss.node_id, loss.machine) for loss in losses_of(told, nodes)] == [("id1", "i-1")]


def alone(*, to_go: bool = False) -> Story:
    """Two nodes at work; ``to_go``: both are lost in the middle of a live group."""
    story = Story()
    story.node_up("a", "b")
    story.job_starts()
    story.live_group("a", "b", restored=0, source="fresh")
    story.steps(8)
    if to_go:
        story.silent_loss("a", "b", detected_after_s=3.0)
    return story


def world(story: Story) -> list[tuple[float, int]]:
    """As in the page; when, in seconds since the job began."""
    told = sorted(story.events, key=lambda event: event.at_s)
    began_s = next(event.at_s for event in told if isinstance(event, JobStarted))
    return [(round(at_s - began_s, 3), workers) for at_s, workers in world_of(told)]


def test_members_that_keep_their_processes_are_no_gap() -> None:
    story = alone()
    story.silent_loss("b")
    story.live_group("a", restored=8)
    assert [workers for _, workers in world(story)] == [2, 1]


def test_nobody_works_from_the_end_of_the_last_node_to_the_next_meeting() -> None:
    story = alone(to_go=True)
    story.wait(30)
    story.live_group("c", restored=4, source="snapshot")
    lost_s = 0.9 + 0.3 + 8 * STEP_S
    assert world(story) == [(0.9, 2), (lost_s, 0), (pytest.approx(lost_s + 33.9), 1)]


@pytest.mark.parametrize("to", ["snapshot", "restart", "waiting"])
def test_nobody_works_from_where_live_recovery_cannot_go_on(to: str) -> None:
    story = alone()
    fell_s = story.now_s
    story.note(FellBack(at_s=fell_s, generation=1, why="too few", to=to))
    story.wait(20)
    story.live_group("a", restored=8)
    assert [workers for _, workers in world(story)] == [2, 0, 1]
    assert [at_s for at_s, workers in world_of(story.events) if not workers] == [fell_s]


@pytest.mark.parametrize(
    ("cause", "lost", "left"),
    [("loss", ("a", "b"), 0), ("loss", ("a",), 2), ("failure", (), 0), ("preemption", (), 0)],
)
def test_a_loss_that_is_the_last_word_leaves_who_was_not_in_it(
    cause: str, lost: tuple[str, ...], left: int
) -> None:
    story = alone()
    story.note(WorkerGroupLost(at_s=story.now_s, generation=1, cause=cause, lost_node_ids=lost))
    assert world(story)[-1][1] == left


def test_a_driver_that_died_without_a_word_leaves_no_workers_behind() -> None:
    story = alone()
    died_s = story.now_s
    story.wait(500)
    story.generation = 0
    story.job_starts()
    story.group("c", restored=4, source="checkpoint")
    assert [workers for _, workers in world(story)] == [2, 0, 1]
    assert [at_s for at_s, workers in world_of(story.events) if not workers] == [died_s]


@pytest.mark.parametrize("end", [TrainingDone, JobEnded])
def test_nobody_works_after_the_end(end: type[Event]) -> None:
    story = alone()
    whole: dict[type[Event], Event] = {
        TrainingDone: TrainingDone(at_s=story.now_s, step=8),
        JobEnded: JobEnded(at_s=story.now_s, job="vit", status="failed"),
    }
    story.note(whole[end])
    assert [workers for _, workers in world(story)] == [2, 0]


@given(seed=st.integers(0, 10_000))
def test_the_line_of_workers_goes_forward_and_has_every_meeting(seed: int) -> None:
    events = sorted(random_story(seed).events, key=lambda event: event.at_s)
    line = list(world_of(events))
    assert all(one[0] <= other[0] for one, other in pairwise(line))
    met = [e.world_size for e in events if isinstance(e, WorkerGroupStarted)]
    assert [workers for _, workers in line if workers] == met


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
        busy = [value for value in curve.values if value]
        assert 0 < len(busy) <= points + 6  # one more for each group
        assert busy == pytest.approx([128.0] * len(busy))


@pytest.mark.parametrize("points", [1, 1000])
def test_throughput_is_zero_while_nobody_works(points: int) -> None:
    story = alone(to_go=True)
    last_s = max(e.at_s for e in story.events if isinstance(e, StepsDone))
    story.wait(60)
    story.live_group("c", restored=4, source="snapshot")
    first_s = story.now_s
    story.steps(8)
    curve = rows_of(story.events, account(story.events), points=points).throughput
    idle = [at_s for at_s, value in zip(curve.at_s, curve.values, strict=True) if not value]
    assert idle == pytest.approx([last_s, first_s])
    assert list(curve.at_s) == sorted(curve.at_s)


def test_throughput_goes_on_where_somebody_works_on() -> None:
    story = alone()
    story.note(NodeDown(at_s=story.now_s, node_id="b", cause="preemption"))
    story.wait(2)
    story.live_group("a", restored=8)
    story.steps(8)
    assert all(rows_of(story.events, account(story.events)).throughput.values)


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300), points=st.integers(2, 60))
def test_a_thinned_curve_keeps_its_extremes(values: list[float], points: int) -> None:
    seen = [(float(i), value, i) for i, value in enumerate(values)]
    curve = thinned("loss", seen, points)
    assert len(curve.values) <= points + 2
    assert (curve.values[-1], curve.steps[-1]) == (values[-1], len(values) - 1)
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
