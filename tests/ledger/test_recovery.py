"""What each loss cost, told from the facts alone."""

from __future__ import annotations

import pytest

from spotray.events import Event, NodeDown, NoticeCancelled, NoticeReceived, WorkerGroupLost
from spotray.ledger.recovery import recoveries, summarize_recoveries

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


def test_the_parts_of_a_recovery_add_up() -> None:
    for recovery in recoveries(four_losses().events):
        assert recovery.seconds is not None
        parts = [recovery.detect_s, recovery.form_s, recovery.restore_s, recovery.replay_s]
        assert sum(part for part in parts if part is not None) == pytest.approx(recovery.seconds)
    silent = recoveries(four_losses().events)[1]
    assert (silent.detect_s, silent.form_s, silent.restore_s) == pytest.approx((4, 2, 1))


def test_the_sums_keep_losses_apart() -> None:
    summary = summarize_recoveries(four_losses().events)
    assert summary.preemptions_noticed == 2
    assert summary.preemptions_silent == 3
    assert summary.steps_lost_noticed == 0
    assert summary.steps_lost_silent_max == 3
    assert summary.steps_lost_all_max == 7
    assert summary.recovery_s_max == pytest.approx(41)
    assert summary.recovery_s_median == pytest.approx((3.5 + 9) / 2)


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
    assert summarize_recoveries(story.events).recovery_s_max is None


def test_a_driver_started_again_is_no_recovery() -> None:
    story = started("a")
    story.wait(100)
    story.job_starts()
    story.generation = 0
    story.group("a", restored=10, source="checkpoint")
    story.steps(1)
    assert recoveries(story.events) == []
