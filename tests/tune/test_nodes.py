"""Room on nodes, facts about them, and their memory. Ray's answers are given."""

from __future__ import annotations

import doctest
from pathlib import Path
from typing import Any

import pytest

from spotray.events import NodeDown, NodeReady, NodeUp
from spotray.storage import Store
from spotray.train.shelf import COPIES
from spotray.train.snapshot import SnapshotSlots
from spotray.tune import nodes as module
from spotray.tune.memory import forget_runs, held_runs
from spotray.tune.nodes import NodeFacts, count_fits
from tests.train.test_snapshot import write


def node(node_id: str, *, alive: bool = True, **fields: Any) -> dict[str, Any]:
    return {
        "NodeID": node_id,
        "Alive": alive,
        "Resources": {"CPU": 4.0},
        "Labels": {"ray.io/market-type": "spot"},
        **fields,
    }


def test_its_examples_hold() -> None:
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    ("needs", "resources", "count"),
    [
        ({"CPU": 1.0}, {"CPU": 4.0}, 4),
        ({"CPU": 1.0, "GPU": 1.0}, {"CPU": 8.0, "GPU": 2.0}, 2),
        ({"GPU": 1.0}, {"CPU": 8.0}, 0),
        ({}, {"CPU": 8.0}, 0),  # nobody can say how many
    ],
)
def test_workers_are_counted_by_what_is_scarcest(
    needs: dict[str, float], resources: dict[str, float], count: int
) -> None:
    assert count_fits(needs, resources) == count


def test_a_node_is_told_when_it_comes_and_when_it_goes(tmp_path: Path) -> None:
    facts = NodeFacts(Store.at(tmp_path))
    try:
        first = facts._changes([node("a"), node("b")])
        assert [(type(e), e.node_id) for e in first] == [
            (NodeUp, "a"),
            (NodeReady, "a"),
            (NodeUp, "b"),
            (NodeReady, "b"),
        ]
        assert facts._changes([node("a"), node("b")]) == []
        gone = facts._changes([node("a"), node("b", alive=False)])
        assert [(type(e), e.node_id, e.cause) for e in gone] == [(NodeDown, "b", "preemption")]
        assert facts._changes([node("a"), node("b", alive=False)]) == []
    finally:
        facts.close()


def test_only_runs_that_are_over_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPOTRAY_SHM_DIR", raising=False)
    for run in ("over", "goes-on"):
        (tmp_path / run).mkdir()
        (tmp_path / run / "slot-0.bin").write_bytes(b"state")
        (tmp_path / f"progress-{run}-1").write_text("{}")
    forget_runs(["over", "never-there"], str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["goes-on", "progress-goes-on-1"]


def test_a_node_tells_of_which_runs_it_holds_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPOTRAY_SHM_DIR", raising=False)
    write(SnapshotSlots(tmp_path / "own"), 3)
    write(SnapshotSlots(tmp_path / "both"), 4)
    write(SnapshotSlots(tmp_path / "both" / COPIES), 7)
    (tmp_path / "none").mkdir()
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "slot-0.json").write_text("half of")
    assert held_runs(str(tmp_path)) == {"own": 3, "both": 7}
    assert held_runs(str(tmp_path / "no-folder")) == {}
