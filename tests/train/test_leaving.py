from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotray.train.leaving import time_to_leave
from spotray.train.session import Progress, StopRequest

NOW_S = 1000.0
GROUP = ("a", "b", "c", "d")


def decide(**changes: Any) -> StopRequest | None:
    values: dict[str, Any] = {
        "deadline_s": NOW_S + 120,
        "leaving": ["b"],
        "group": GROUP,
        "progress": Progress(step=9, epoch=0, loss=1.0, step_s=1.0, snapshot_s=0.5),
        "room": 3,
        "margin_s": 4.0,
        "now_s": NOW_S,
    }
    return time_to_leave(**{**values, **changes})


def test_a_node_that_is_not_in_the_group_does_not_matter() -> None:
    assert decide(leaving=["x"], deadline_s=NOW_S) is None


def test_the_workers_stay_while_there_is_time_and_nobody_to_take_over() -> None:
    assert decide() is None


def test_without_snapshots_they_leave_in_time_to_write() -> None:
    def at(left_s: float, checkpoint_s: float) -> StopRequest | None:
        progress = Progress(
            step=9, epoch=0, loss=1.0, step_s=1.0, checkpoint_s=checkpoint_s, no_snapshots=True
        )
        return decide(progress=progress, deadline_s=NOW_S + left_s)

    assert at(27.0, checkpoint_s=10.0) is None
    stop = at(26.0, checkpoint_s=10.0)  # margin, two steps, twice the time to write
    assert stop is not None
    assert stop.durable
    unknown = at(1000.0, checkpoint_s=0.0)
    assert unknown is not None
    assert unknown.durable


def test_they_leave_when_others_are_ready() -> None:
    stop = decide(room=4)
    assert stop is not None
    assert not stop.durable


@pytest.mark.parametrize(("left_s", "leaves"), [(6.6, False), (6.4, True), (-3.0, True)])
def test_they_leave_a_margin_two_steps_and_a_snapshot_before_the_deadline(
    left_s: float, leaves: bool
) -> None:
    assert (decide(deadline_s=NOW_S + left_s) is not None) == leaves


def test_a_notice_without_a_deadline_is_for_now() -> None:
    assert decide(deadline_s=None) is not None


@pytest.mark.parametrize("room", [0, 4])
def test_when_no_node_stays_the_state_reaches_storage_first(room: int) -> None:
    stop = decide(leaving=GROUP, room=room, deadline_s=NOW_S + 8)
    assert stop is not None
    assert stop.durable


def test_when_no_node_stays_time_for_a_checkpoint_is_kept() -> None:
    known = Progress(step=9, epoch=0, loss=1.0, step_s=1.0, snapshot_s=0.5, checkpoint_s=10.0)
    assert decide(leaving=GROUP, room=0, progress=known, deadline_s=NOW_S + 27) is None
    assert decide(leaving=GROUP, room=0, progress=known, deadline_s=NOW_S + 26) is not None
    # Nobody knows how long the first one takes.
    assert decide(leaving=GROUP, room=0, deadline_s=NOW_S + 3600) is not None


def test_where_there_is_time_the_state_reaches_storage_even_if_nodes_stay() -> None:
    # Ray may start the next worker group on nodes that hold no snapshot.
    known = Progress(step=9, epoch=0, loss=1.0, step_s=1.0, snapshot_s=0.5, checkpoint_s=5.0)
    stop = decide(progress=known, room=4)
    assert stop is not None
    assert stop.durable
    late = decide(progress=known, room=4, deadline_s=NOW_S + 9)
    assert late is not None
    assert not late.durable
    assert decide(progress=known, deadline_s=NOW_S + 17) is None
    assert decide(progress=known, deadline_s=NOW_S + 16) is not None


@given(
    left_s=st.floats(-100, 1000), later_s=st.floats(0, 100), leaving=st.sets(st.sampled_from(GROUP))
)
def test_who_leaves_now_would_leave_later_too(
    left_s: float, later_s: float, leaving: set[str]
) -> None:
    deadline_s = NOW_S + left_s
    if decide(leaving=leaving, deadline_s=deadline_s) is not None:
        assert decide(leaving=leaving, deadline_s=deadline_s, now_s=NOW_S + later_s) is not None
