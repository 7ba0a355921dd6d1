"""How rows are made of measured blocks; what is measured is left to the benchmark itself."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from benchmarks.checkpoint import run
from benchmarks.checkpoint.loop import Nothing, Stopwatch, costs, run_block
from benchmarks.checkpoint.run import rows_of

SYSTEMS = ("none", "torch.save", "spotray-snapshot", "spotray-checkpoint", "spotray")


def blocks(pace: float = 1.0, *, number: int = 0) -> list[dict[str, Any]]:
    """A round in which a step takes 0.1 s, times the machine's pace."""

    def block(system: str, steps: int, saves: int, cost_s: float, **more: Any) -> dict[str, Any]:
        return {
            "size_mb": 20.04,
            "system": system,
            "round": number,
            "steps": steps,
            "seconds": (steps * 0.1 + saves * cost_s) * pace,
            "saves": saves,
            "blocked_s": saves * cost_s / 2,
            "costs_s": [cost_s * 0.9, cost_s * 1.1][:saves],
            **more,
        }

    intervals = {"snapshot_interval_s": 10.0, "checkpoint_interval_s": 100.0}
    return [
        block("none", 100, 0, 0.0),
        block("torch.save", 100, 2, 0.5),
        block("spotray-snapshot", 100, 2, 0.05),
        block("none", 100, 0, 0.0),
        block("spotray-checkpoint", 100, 2, 0.4),
        block("spotray", 400, 8, 0.05, snapshots=8, checkpoints=0, **intervals),
        block("none", 100, 0, 0.0),
    ]


def test_a_saves_cost_is_what_it_took_beyond_the_steps_around_it() -> None:
    rows = {row["system"]: row for row in rows_of(blocks() + blocks(number=1), SYSTEMS)}
    assert list(rows) == list(SYSTEMS)
    torch_save = rows["torch.save"]
    assert torch_save["cost_s"] == pytest.approx(0.5)
    assert torch_save["cost_mean_s"] == pytest.approx(0.5)
    assert torch_save["cost_error_s"] == pytest.approx(0.05 / 3**0.5, rel=1e-3)
    assert torch_save["seconds_blocked"] == pytest.approx(0.25)
    assert torch_save["step_time_ratio"] == pytest.approx(1.1)
    assert (torch_save["rounds"], torch_save["saves"]) == (2, 4)
    assert rows["none"]["step_time_ratio"] == 1.0
    assert rows["none"]["cost_s"] is None
    ours = rows["spotray"]
    assert ours["step_time_ratio"] == pytest.approx(1.01)
    assert ours["expected_ratio"] == pytest.approx(1 + 0.05 / 10 + 0.4 / 100)
    assert 0 < ours["expected_error"] < 0.001


def test_a_machine_that_is_slower_in_one_round_changes_no_ratio() -> None:
    rows = rows_of(blocks() + blocks(3.0, number=1), SYSTEMS)
    for row in rows:
        expected = {"torch.save": 1.1, "spotray-snapshot": 1.01, "spotray-checkpoint": 1.08}
        if row["system"] in expected:
            assert row["step_time_ratio"] == pytest.approx(expected[row["system"]])


def test_a_round_that_was_interrupted_does_not_count() -> None:
    rows = rows_of(blocks() + blocks(9.0, number=1)[:4], SYSTEMS)
    assert {row["rounds"] for row in rows} == {1}
    assert rows_of(blocks()[:4], SYSTEMS) == []


def test_the_summary_has_a_line_for_every_row() -> None:
    rows = rows_of(blocks(), SYSTEMS)
    lines = run.summary(rows).splitlines()
    assert len(lines) == 1 + len(rows)
    assert "8 snapshots, now every 10 s; 0 checkpoints, every 100 s; by parts 1.0090" in lines[-1]


def test_a_drift_of_the_machine_is_no_cost_of_a_save() -> None:
    drifting = [0.1 + 0.001 * i for i in range(60)]
    saving = [False] * 60
    for i in (20, 21, 45):
        saving[i] = True
        drifting[i] += 0.2
    found = costs(drifting, saving, [20, 45])
    assert found == pytest.approx([0.4, 0.2], abs=0.003)


def test_a_save_without_steps_around_it_has_no_cost_to_tell() -> None:
    assert costs([0.1] * 8, [False, *[True] * 6, False], [1]) == []


def test_without_a_save_there_is_no_picture(tmp_path: Path) -> None:
    assert not run.picture(tmp_path / "x.svg", rows_of(blocks(), ("none",)))


def test_a_block_goes_on_until_its_saves_are_through() -> None:
    class Steps:
        steps = 0

        def step(self) -> None:
            self.steps += 1

    class Slow(Nothing):
        left = 0
        begun_at: list[int] = []

        def step_done(self, due: bool) -> int:
            self.left = 4 if due else self.left - 1
            if due:
                self.begun_at.append(training.steps)
            return int(due)

        def is_busy(self) -> bool:
            return self.left > 0

    training = Steps()
    told = run_block(training, Slow(), steps=10, saves=3)  # type: ignore[arg-type]
    assert Slow.begun_at == [1, 4, 7]
    assert (told["steps"], told["saves"]) == (11, 3)


def test_a_stopwatch_counts_only_while_it_runs() -> None:
    clock = Stopwatch()
    assert clock.now_s() == 0.0
    with clock.running():
        until = next(i for i in itertools.count() if clock.now_s() > 0)
        assert until >= 0
    stopped = clock.now_s()
    assert stopped > 0
    assert clock.now_s() == stopped
