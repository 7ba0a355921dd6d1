"""What an event cost, from the lines of workers that are made up here."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from benchmarks.recovery.measure import Cost, Line, Lines, cost, members, new_steps_since

STEP_S = 0.1
EVENT_S = 3.05  # in the middle of step 31


def steps(numbers: Iterable[int], *, start_s: float, pids: Iterable[int]) -> list[Line]:
    """Steps one after the other; the workers end each a few milliseconds apart."""
    group = list(pids)
    return [
        Line(
            at_s=start_s + STEP_S * index + 0.002 * rank,
            step=number,
            world_size=len(group),
            rank=rank,
            pid=pid,
            node=f"node-{pid}",
        )
        for index, number in enumerate(numbers)
        for rank, pid in enumerate(group)
    ]


def undisturbed(count: int = 30, pids: Iterable[int] = (1, 2, 3, 4)) -> list[Line]:
    return steps(range(1, count + 1), start_s=0.1, pids=pids)


def of(lines: list[Line], *, is_loss: bool = True, expected: int = 3) -> Cost:
    return cost(
        sorted(lines, key=lambda line: line.at_s),
        event_s=EVENT_S,
        is_loss=is_loss,
        world_expected=expected,
    )


def test_a_restart_counts_to_the_first_step_that_was_never_done_before() -> None:
    # Back after 10 s at step 21, with other processes: 10 steps are done once more.
    again = steps(range(21, 60), start_s=EVENT_S + 10, pids=(11, 12, 13))
    found = of(undisturbed() + again)
    assert found.seconds_to_next_step == pytest.approx(11.0)
    assert found.seconds_to_size == pytest.approx(11.0)
    assert found.longest_pause_s == pytest.approx(EVENT_S + 10 - 3.006)
    assert found.steps_redone == 10
    assert (found.world_before, found.world_after) == (4, 3)
    assert found.step_s == pytest.approx(STEP_S)


def test_the_step_under_way_at_the_event_is_the_old_groups() -> None:
    under_way = steps([31], start_s=3.1, pids=(1, 2, 3, 4))[:-1]  # but for the lost worker
    later = steps(range(32, 50), start_s=EVENT_S + 1.2, pids=(1, 2, 3))
    found = of(undisturbed() + under_way + later)
    assert found.seconds_to_next_step == pytest.approx(1.2)
    assert found.steps_redone == 0


def test_workers_that_live_and_go_back_repeat_steps() -> None:
    again = steps(range(29, 50), start_s=EVENT_S + 1, pids=(1, 2, 3))
    found = of(undisturbed() + again)
    assert found.steps_redone == 2  # 29 and 30
    assert found.seconds_to_next_step == pytest.approx(1.2)


def test_a_newcomer_that_ends_a_step_later_than_the_others_repeats_nothing() -> None:
    with_it = steps(range(31, 50), start_s=3.4, pids=(1, 2, 3, 9))
    found = of(undisturbed(pids=(1, 2, 3)) + with_it, is_loss=False, expected=4)
    assert found.steps_redone == 0
    assert found.seconds_to_next_step == pytest.approx(0.4)  # from the end of step 30
    assert found.seconds_to_size == pytest.approx(3.4 - EVENT_S)
    assert (found.world_before, found.world_after) == (3, 4)


def test_a_notice_costs_the_pause_wherever_it_falls() -> None:
    on = steps(range(31, 61), start_s=3.1, pids=(1, 2, 3, 4))  # 3 s more, undisturbed
    moved = steps(range(61, 90), start_s=6.0 + 0.5, pids=(1, 2, 3))
    found = of(undisturbed() + on + moved, is_loss=False)
    assert found.seconds_to_next_step == pytest.approx(0.5)
    assert found.longest_pause_s == pytest.approx(0.5 - 0.006)
    assert found.seconds_to_size == pytest.approx(6.5 - EVENT_S)


def test_a_group_that_is_whole_again_only_later_is_told_apart() -> None:
    three = steps(range(31, 51), start_s=EVENT_S + 1, pids=(1, 2, 3))
    four = steps(range(51, 70), start_s=EVENT_S + 5, pids=(1, 2, 3, 9))
    found = of(undisturbed() + three + four, expected=4)
    assert found.seconds_to_next_step == pytest.approx(1.0)
    assert found.seconds_to_size == pytest.approx(5.0)


def test_a_job_that_never_comes_back_has_no_seconds() -> None:
    under_way = steps([31], start_s=3.1, pids=(1, 2, 3, 4))[:-1]
    found = of(undisturbed() + under_way)
    assert found.seconds_to_next_step is None
    assert found.seconds_to_size is None
    assert found.longest_pause_s is None


def test_steps_that_are_done_again_are_not_new() -> None:
    lines = undisturbed() + steps(range(21, 35), start_s=10.0, pids=(11,))
    assert new_steps_since(lines, EVENT_S) == 4
    assert new_steps_since(lines, 0.0) == 34


def test_members_are_those_of_the_newest_group() -> None:
    lines = undisturbed() + steps(range(31, 33), start_s=4.0, pids=(1, 9, 3))
    assert {rank: line.pid for rank, line in members(lines).items()} == {0: 1, 1: 9, 2: 3}


def test_half_a_line_waits_for_its_other_half(tmp_path: Path) -> None:
    line = undisturbed(1, (1,))[0]
    text = json.dumps(line.__dict__) + "\n"
    file = tmp_path / "1.jsonl"
    lines = Lines(tmp_path)
    assert lines.read() == []
    file.write_text(text + text[:20])
    assert lines.read() == [line]
    file.write_text(text + text)
    assert lines.read() == [line, line]
