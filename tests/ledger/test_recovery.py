"""What each loss cost, told from the facts alone."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotray.events import (
    Event,
    FellBack,
    JobStarted,
    MemberFencedOut,
    NodeDown,
    NoticeCancelled,
    NoticeReceived,
    ResizeAgreed,
    Restored,
    StepsDone,
    WorkerGroupLost,
    WorkerGroupStarted,
)
from spotray.ledger.recovery import (
    LIVE_PHASES,
    RESTART_PHASES,
    recoveries,
    summarize_recoveries,
)

from .story import STEP_S, Story, four_losses


def started(*node_ids: str, steps: int = 10) -> Story:
    story = Story()
    story.node_up(*node_ids)
    story.job_starts()
    story.group(*node_ids, restored=0, source="fresh")
    story.steps(steps)
    return story


def test_each_change_of_the_group_is_told_with_its_kind() -> None:
    found = recoveries(four_losses().events)
    assert [r.kind for r in found] == ["noticed", "silent", "resize", "noticed", "silent"]
    assert [r.node_ids for r in found] == [("d",), ("c",), ("e",), ("b",), ("a", "e")]
    assert [r.all_lost for r in found] == [False, False, False, False, True]
    assert [r.steps_lost for r in found] == [0, 3, 0, 0, 7]
    assert [(r.world_before, r.world_after) for r in found] == [
        (4, 3),
        (3, 2),
        (2, 3),
        (3, 2),
        (2, 2),
    ]


def test_recovery_lasts_until_the_first_step_never_done_before() -> None:
    noticed, silent, resize, _, everything = recoveries(four_losses().events)
    assert noticed.seconds == pytest.approx(3 + STEP_S)
    assert silent.seconds == pytest.approx(4 + 3 + 4 * STEP_S)
    assert resize.seconds == pytest.approx(3 + STEP_S)
    assert everything.seconds == pytest.approx(4 + 30 + 3 + 8 * STEP_S)


def test_the_parts_of_a_restart_are_told_by_its_marks() -> None:
    story = started("a", "b")
    story.silent_loss("b", detected_after_s=4)
    began_s = story.now_s
    story.group("a", restored=8, source="snapshot", reached=10)
    met = story.events[-2]
    assert isinstance(met, WorkerGroupStarted)
    story.events[-2] = dataclasses.replace(
        met, placed_at_s=began_s + 0.5, process_at_s=began_s + 0.75, imported_at_s=began_s + 1.75
    )
    story.steps(4)
    (recovery,) = recoveries(story.events)
    assert recovery.mode == "restart"
    assert recovery.parts == pytest.approx(
        {
            "detect": 4.0,
            "place": 0.5,
            "start": 0.25,
            "import": 1.0,
            "restore": 1.25,  # they met 0.25 s after the last import
            "first_step": 3 * STEP_S,
        }
    )
    assert recovery.seconds == pytest.approx(4 + 3 + 3 * STEP_S)


def test_a_phase_that_nobody_marked_is_part_of_the_next_one() -> None:
    silent = recoveries(four_losses().events)[1]
    parts = {"detect": 4.0, "import": 2.0, "restore": 1.0, "first_step": 4 * STEP_S}
    assert silent.parts == pytest.approx(parts)
    story = started("a", "b")
    story.silent_loss("b")
    story.group("a", restored=8, source="snapshot", reached=10)
    del story.events[-1]  # the one that told of the restore
    story.steps(4)
    (recovery,) = recoveries(story.events)
    assert list(recovery.parts) == ["detect", "import", "first_step"]


def test_a_process_that_ran_before_it_was_given_a_node_takes_no_time_to_start() -> None:
    story = started("a", "b")
    story.silent_loss("b", detected_after_s=4)
    began_s = story.now_s
    story.group("a", restored=10, source="snapshot", reached=10)
    met = story.events[-2]
    assert isinstance(met, WorkerGroupStarted)
    story.events[-2] = dataclasses.replace(
        met, placed_at_s=began_s + 0.5, process_at_s=began_s - 60, imported_at_s=began_s + 60
    )
    story.steps(1)
    (recovery,) = recoveries(story.events)
    assert recovery.parts["place"] == pytest.approx(0.5)
    assert recovery.parts["start"] == 0
    assert recovery.parts["import"] == pytest.approx(1.5)  # not later than when they met
    assert recovery.parts["restore"] == pytest.approx(1.0)


def test_survivors_that_kept_their_processes_recover_live() -> None:
    story = started("a", "b", "c")
    story.silent_loss("b", detected_after_s=0.05)
    story.live_group("a", "c", restored=10, source="kept")
    story.steps(4)
    (recovery,) = recoveries(story.events)
    assert (recovery.kind, recovery.mode, recovery.source) == ("silent", "live", "kept")
    assert recovery.steps_lost == 0  # the one that broke never ended
    parts = {"detect": 0.05, "agree": 0.9, "connect": 0.1, "heal": 0.2, "first_step": STEP_S}
    assert recovery.parts == pytest.approx(parts)
    assert list(recovery.parts) == list(parts)
    assert recovery.seconds == pytest.approx(1.25 + STEP_S)
    assert recovery.pause_s == pytest.approx(1.25 + STEP_S)


def test_a_live_loss_counts_although_the_node_is_known_to_be_gone_only_later() -> None:
    story = started("a", "b", "c")
    story.wait(0.1)
    lost_at_s = story.now_s
    story.note(WorkerGroupLost(at_s=lost_at_s, generation=1, cause="loss", lost_node_ids=("b",)))
    story.live_group("a", "c", restored=10)
    story.steps(4)
    story.note(NodeDown(at_s=lost_at_s + 5, node_id="b", cause="preemption"))
    (recovery,) = recoveries(story.events)
    assert (recovery.kind, recovery.node_ids) == ("silent", ("b",))
    assert recovery.lost_at_s == pytest.approx(lost_at_s - 0.1)  # the last step's end


def test_a_loss_that_was_written_down_late_counts_from_the_last_step() -> None:
    story = started("a", "b")
    last_step_s = story.now_s
    story.note(NodeDown(at_s=last_step_s + 3, node_id="b", cause="preemption"))
    story.note(WorkerGroupLost(at_s=last_step_s + 1, generation=1, cause="loss"))
    story.wait(4)
    story.group("a", restored=10, source="snapshot", reached=10)
    story.steps(1)
    (recovery,) = recoveries(story.events)
    assert recovery.lost_at_s == last_step_s
    assert recovery.parts["detect"] == pytest.approx(1)


def test_a_loss_counts_from_who_knew_it_first() -> None:
    story = started("a", "b", "c")
    story.silent_loss("b", detected_after_s=0.25)
    late = WorkerGroupLost(at_s=story.now_s + 0.5, generation=1, cause="failure", why="Ray says so")
    story.note(late)
    story.live_group("a", "c", restored=10)
    story.steps(1)
    (recovery,) = recoveries(story.events)
    assert recovery.kind == "silent"
    assert recovery.parts["detect"] == pytest.approx(0.25)


def test_a_worker_that_dies_on_a_living_node_is_told_with_its_node() -> None:
    story = started("a", "b")
    story.note(
        WorkerGroupLost(at_s=story.now_s, generation=1, cause="failure", lost_node_ids=("b",))
    )
    story.group("a", "b", restored=10, source="snapshot", reached=10)
    story.steps(1)
    (recovery,) = recoveries(story.events)
    assert (recovery.kind, recovery.node_ids, recovery.all_lost) == ("failure", ("b",), False)


def test_live_growth_is_a_resize_that_costs_a_pause() -> None:
    story = started("a", "b")
    story.grow()
    story.live_group("a", "b", "c", restored=10)
    story.steps(2)
    (recovery,) = recoveries(story.events)
    assert (recovery.kind, recovery.mode, recovery.node_ids) == ("resize", "live", ("c",))
    assert recovery.parts["detect"] == 0
    assert recovery.pause_s == pytest.approx(0.1 + 1.2 + STEP_S)  # with the snapshot before
    assert recovery.seconds == pytest.approx(1.2 + STEP_S)


def test_leaving_because_of_a_notice_is_noticed_live_too() -> None:
    story = started("a", "b")
    story.note(NoticeReceived(at_s=story.now_s, node_id="b", deadline_s=story.now_s + 30))
    story.note(ResizeAgreed(at_s=story.now_s, generation=1, step=10, why="notice"))
    story.live_group("a", restored=10, source="kept")
    story.steps(2)
    (recovery,) = recoveries(story.events)
    assert (recovery.kind, recovery.mode, recovery.steps_lost) == ("noticed", "live", 0)


def test_a_pause_ends_with_any_step_even_one_that_is_done_again() -> None:
    noticed, silent, _, _, everything = recoveries(four_losses().events)
    assert noticed.pause_s == pytest.approx(0.1 + 3 + STEP_S)
    assert silent.pause_s == pytest.approx(4 + 3 + STEP_S)
    assert everything.pause_s == pytest.approx(4 + 30 + 3 + STEP_S)


def test_steps_that_were_never_told_do_not_make_a_pause_longer() -> None:
    story = started("a", "b")
    story.wait(2 * STEP_S)  # two more steps, of which the one that died would have told
    story.silent_loss("a", detected_after_s=0.05)
    story.live_group("b", restored=12)
    story.steps(1)
    (recovery,) = recoveries(story.events)
    assert recovery.pause_s == pytest.approx(1.25 + STEP_S)


def test_two_losses_without_a_step_between_share_one_pause() -> None:
    story = started("a", "b", "c")
    story.silent_loss("c", detected_after_s=0.5)
    story.live_group("a", "b", restored=10)
    story.silent_loss("b", detected_after_s=0.5)
    story.live_group("a", restored=10)
    story.steps(1)
    first, second = recoveries(story.events)
    assert first.pause_s == second.pause_s == pytest.approx(2 * 1.7 + STEP_S)


def test_the_sums_keep_losses_apart() -> None:
    summary = summarize_recoveries(four_losses().events)
    assert summary.preemptions_noticed == 2
    assert summary.preemptions_silent == 3
    assert summary.steps_lost_noticed == 0
    assert summary.steps_lost_silent_max == 3
    assert summary.steps_lost_all_max == 7
    assert summary.recovery_s_max == pytest.approx(41)
    assert summary.recovery_s_median == pytest.approx((3.5 + 9) / 2)
    assert summary.fallbacks == summary.fenced_out == ()


def test_the_sums_keep_kinds_and_modes_apart() -> None:
    story = four_losses()
    story.members = ("f", "g")
    story.silent_loss("g", detected_after_s=0.05)
    story.live_group("f", restored=story.step)
    story.steps(2)
    story.note(FellBack(at_s=story.now_s, generation=7, why="too few", to="restart"))
    story.note(MemberFencedOut(at_s=story.now_s, generation=7, node_id="g", why="no answer"))
    summary = summarize_recoveries(story.events)
    spreads = {(one.kind, one.mode): one for one in summary.spreads}
    assert {key: one.count for key, one in spreads.items()} == {
        ("noticed", "restart"): 2,
        ("silent", "restart"): 2,
        ("silent", "live"): 1,
        ("resize", "restart"): 1,
    }
    silent = spreads["silent", "restart"]
    assert silent.seconds_median == pytest.approx((9 + 41) / 2)
    assert silent.seconds_max == pytest.approx(41)
    assert (silent.steps_lost_max, spreads["silent", "live"].steps_lost_max) == (7, 0)
    assert [e.to for e in summary.fallbacks] == ["restart"]
    assert [e.node_id for e in summary.fenced_out] == ["g"]


NODES = ("a", "b", "c")
some_nodes = st.lists(st.sampled_from(NODES), min_size=1, max_size=3, unique=True).map(tuple)


@st.composite
def chapters(draw: st.DrawFn, generation: int, before: int) -> list[Event]:
    """One group's facts, in any order, late, twice or not at all; ``before``: steps done."""
    near_s = st.floats(20.0 * generation - 12, 20.0 * generation + 12)
    maybe_s = st.none() | near_s
    restored = max(0, before - draw(st.integers(0, 3)))
    step = restored + draw(st.integers(1, 8))
    node_ids = st.sampled_from(NODES)
    of_group = {"at_s": near_s, "generation": st.just(generation)}
    kinds = [
        st.builds(
            WorkerGroupStarted,
            world_size=st.integers(1, 3),
            node_ids=some_nodes,
            live=st.booleans(),
            placed_at_s=maybe_s,
            process_at_s=maybe_s,
            imported_at_s=maybe_s,
            **of_group,
        ),
        st.builds(
            Restored,
            step=st.just(restored),
            source=st.sampled_from(["snapshot", "checkpoint", "peers", "kept"]),
            reached_step=st.none() | st.just(before) | st.just(before + 2),
            connected_at_s=maybe_s,
            **of_group,
        ),
        st.builds(
            StepsDone,
            first_step=st.just(restored + 1),
            last_step=st.just(step),
            seconds=st.floats(0, 5),
            samples=st.just(64),
            world_size=st.integers(1, 3),
            **of_group,
        ),
        st.builds(
            WorkerGroupLost,
            cause=st.sampled_from(["preemption", "loss", "failure"]),
            lost_node_ids=st.just(()) | some_nodes,
            **of_group,
        ),
        st.builds(ResizeAgreed, step=st.just(step), why=st.just("room"), **of_group),
        st.builds(
            NodeDown,
            at_s=near_s,
            node_id=node_ids,
            cause=st.sampled_from(["preemption", "failure", "shutdown"]),
            noticed=st.booleans(),
        ),
        st.builds(NoticeReceived, at_s=near_s, node_id=node_ids, deadline_s=st.none()),
    ]
    often, seldom = st.sampled_from([1, 1, 1, 2, 0]), st.sampled_from([0, 0, 1])
    counts = [draw(often if index < 4 else seldom) for index in range(len(kinds))]
    return [draw(kind) for kind, count in zip(kinds, counts, strict=True) for _ in range(count)]


@st.composite
def journals(draw: st.DrawFn) -> list[Event]:
    """Two to four groups of a job whose driver is perhaps started once more."""
    facts: list[Event] = []
    for generation in range(1, draw(st.integers(2, 4)) + 1):
        done = [event.last_step for event in facts if isinstance(event, StepsDone)]
        facts += draw(chapters(generation, max(done, default=0)))
    if draw(st.sampled_from([False, False, True])):
        facts.append(JobStarted(at_s=draw(st.floats(0, 100)), job="j", run_id="r"))
    return facts


@given(facts=journals())
def test_the_parts_of_any_recovery_add_up(facts: list[Event]) -> None:
    for recovery in recoveries(facts):
        assert recovery.kind in ("noticed", "silent", "failure", "resize")
        phases = {"live": LIVE_PHASES, "restart": RESTART_PHASES}[recovery.mode]
        assert list(recovery.parts) == [phase for phase in phases if phase in recovery.parts]
        assert all(seconds >= 0 for seconds in recovery.parts.values())
        assert recovery.pause_s is None or recovery.pause_s >= 0
        if recovery.resumed_at_s is None:
            assert (recovery.seconds, recovery.parts) == (None, {})
        else:
            assert recovery.seconds == sum(recovery.parts.values())
            took_s = max(0.0, recovery.resumed_at_s - recovery.lost_at_s)
            assert recovery.seconds == pytest.approx(took_s, abs=1e-9)


@given(facts=journals())
def test_sums_over_any_recoveries_leave_none_out(facts: list[Event]) -> None:
    summary = summarize_recoveries(facts)
    assert sum(spread.count for spread in summary.spreads) == len(summary.recoveries)
    assert len({(spread.kind, spread.mode) for spread in summary.spreads}) == len(summary.spreads)


def test_a_notice_a_moment_before_the_loss_is_none() -> None:
    story = started("a", "b")
    story.note(NoticeReceived(at_s=story.now_s - 0.5, node_id="b", deadline_s=None))
    story.silent_loss("b")
    story.group("a", restored=8, source="snapshot", reached=10)
    story.steps(4)
    assert [r.kind for r in recoveries(story.events)] == ["silent"]
    assert summarize_recoveries(story.events).preemptions_silent == 1


def test_a_cancelled_notice_does_not_count() -> None:
    story = started("a", "b")
    story.note(NoticeReceived(at_s=story.now_s - 60, node_id="b", deadline_s=None))
    story.note(NoticeCancelled(at_s=story.now_s - 30, node_id="b"))
    story.silent_loss("b")
    story.group("a", restored=8, source="snapshot", reached=10)
    story.steps(4)
    assert [r.kind for r in recoveries(story.events)] == ["silent"]


def test_steps_that_only_survivors_remember_are_lost_too() -> None:
    story = started("a", "b")
    story.silent_loss("b")
    story.group("a", restored=8, source="snapshot", reached=12)  # 11 and 12 were never told
    story.steps(6)
    (recovery,) = recoveries(story.events)
    assert recovery.steps_lost == 4
    assert recovery.resumed_at_s == pytest.approx(story.now_s - STEP_S)


def test_two_losses_in_a_row_do_not_count_a_step_twice() -> None:
    story = started("a", "b", "c")
    story.silent_loss("c")
    story.group("a", "b", restored=8, source="snapshot", reached=10)
    story.silent_loss("b")
    story.group("a", restored=8, source="snapshot", reached=8)
    story.steps(6)
    first, second = recoveries(story.events)
    assert (first.steps_lost, second.steps_lost) == (2, 0)
    assert first.resumed_at_s == story.now_s - 3 * STEP_S
    assert second.resumed_at_s is not None


def test_a_broken_group_on_living_nodes_is_a_failure() -> None:
    story = started("a", "b")
    story.wait(2)
    story.note(WorkerGroupLost(at_s=story.now_s, generation=1, cause="failure", why="OOM"))
    story.group("a", "b", restored=10, source="snapshot", reached=10)
    story.steps(1)
    (recovery,) = recoveries(story.events)
    assert recovery.kind == "failure"
    assert recovery.seconds == pytest.approx(2 + 3 + STEP_S)


def test_an_ordinary_shutdown_is_no_preemption() -> None:
    story = started("a", "b")
    story.done()
    down: list[Event] = [NodeDown(at_s=story.now_s, node_id=n, cause="shutdown") for n in "ab"]
    summary = summarize_recoveries(story.events + down)
    assert summary.preemptions_noticed == summary.preemptions_silent == 0
    assert summary.recoveries == ()


def test_a_recovery_that_is_not_over_has_no_duration() -> None:
    story = started("a", "b")
    story.silent_loss("b")
    story.group("a", restored=8, source="snapshot", reached=10)
    story.steps(1)
    (recovery,) = recoveries(story.events)
    assert recovery.seconds is None
    assert recovery.parts == {}
    assert recovery.pause_s is not None  # a step was done, though not a new one
    assert summarize_recoveries(story.events).recovery_s_max is None


def test_a_driver_started_again_is_no_recovery() -> None:
    story = started("a")
    story.wait(100)
    story.job_starts()
    story.generation = 0
    story.group("a", restored=10, source="checkpoint")
    story.steps(1)
    assert recoveries(story.events) == []
