"""Every choice that facts tell of is told with its reason."""

from __future__ import annotations

import pytest

from spotray.events import (
    BudgetReached,
    CheckpointCommitted,
    ClusterWentDown,
    DeadlineNear,
    Drained,
    DrainRefused,
    Event,
    FellBack,
    InstanceEnded,
    LaunchTried,
    LaunchWaited,
    MemberFencedOut,
    NodeReplaced,
    NodeUp,
    ReplacementAsked,
    ReplacementGivenUp,
    ResizeAgreed,
    SnapshotTaken,
    TrialHeldBack,
    WorkersHeld,
)
from spotray.report.decisions import decisions

NODE = {"node_id": "abcdefghijkl", "name": "i-1", "node_type": "w"}
CHOICES: list[tuple[Event, str]] = [
    (
        LaunchTried(at_s=1, market="m", node_type="w", wanted=2, names=("i-5",), why="because"),
        "ask m for 2 w: launched i-5",
    ),
    (
        LaunchTried(
            at_s=1,
            market="m",
            node_type="w",
            wanted=1,
            refused="capacity",
            code="ICE",
            why="because",
        ),
        "ask m for 1 w: refused, capacity (ICE)",
    ),
    (LaunchWaited(at_s=1, node_type="w", wanted=1, until_s=61, why="because"), "wait 1 min 0 s"),
    (ReplacementAsked(at_s=1, **NODE, until_s=9, spot_only=True, why="because"), "spot only"),
    (ReplacementGivenUp(at_s=1, **NODE, why="because"), "keep i-1"),
    (Drained(at_s=1, node_id="abcdefghijkl", deadline_s=9, why="because"), "drain i-1"),
    (DrainRefused(at_s=1, node_id="zzzzzzzzzzzz", why="because"), "does not drain zzzzzzzz"),
    (InstanceEnded(at_s=1, name="i-1", why="because", failed="no"), "which failed: no"),
    (ResizeAgreed(at_s=1, generation=1, step=7, why="because"), "after step 7"),
    (FellBack(at_s=1, generation=1, why="because", to="restart"), "falls back to restart"),
    (
        MemberFencedOut(at_s=1, generation=1, node_id="abcdefghijkl", why="because"),
        "without the worker on i-1",
    ),
    (TrialHeldBack(at_s=1, trial="t1", why="because"), "trial t1"),
    (
        SnapshotTaken(at_s=1, generation=1, step=7, seconds=1, size_bytes=1, why="because"),
        "snapshot of step 7",
    ),
    (
        CheckpointCommitted(
            at_s=1, step=7, path="p", seconds=1, blocked_s=0, size_bytes=1, why="because"
        ),
        "checkpoint of step 7",
    ),
    (WorkersHeld(at_s=1, workers=3, until_s=9, why="because"), "hold 3 workers"),
    (DeadlineNear(at_s=1, until_s=9, why="because"), "on-demand before spot"),
    (ClusterWentDown(at_s=1, names=("a", "b"), head=True, why="because"), "2 nodes down"),
]


@pytest.mark.parametrize(("event", "what"), CHOICES)
def test_a_choice_is_told_with_its_reason(event: Event, what: str) -> None:
    name = NodeUp(at_s=0, node_id="abcdefghijkl", name="i-1")
    (told,) = decisions([event, name])
    assert what in told.what
    assert told.why == "because"
    assert told.about in ("nodes", "job", "saving", "cluster")


def test_a_budget_tells_its_sums_and_a_replacement_its_time() -> None:
    budget = BudgetReached(at_s=2, job="j", spent_usd=3, max_cost_usd=2.5)
    first, then = decisions([budget, NodeReplaced(at_s=1, **NODE, seconds=90)])
    assert first.what == "i-1 has been replaced in 1 min 30 s"
    assert then.why == "$3.00 of $2.50 spent"


def test_what_is_done_at_every_interval_is_no_decision() -> None:
    routine = [
        SnapshotTaken(at_s=1, generation=1, step=7, seconds=1, size_bytes=1),
        CheckpointCommitted(at_s=1, step=7, path="p", seconds=1, blocked_s=0, size_bytes=1),
    ]
    assert decisions(routine) == []
