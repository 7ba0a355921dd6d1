"""Which measurements are made, and how their rows are summed up. Nothing is started."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.recovery import run
from benchmarks.recovery.systems import SYSTEMS


def plan(**given: Any) -> list[tuple[str, str]]:
    return run.plan(Namespace(**{"quick": False, "systems": None, "events": None} | given))


def row(system: str, event: str, seconds: float | None, **more: Any) -> dict[str, Any]:
    measured = {
        "seconds_to_next_step": seconds,
        "seconds_to_size": seconds,
        "longest_pause_s": seconds,
        "steps_redone": 0,
        "world_before": 4,
        "world_after": 3,
        "step_s": 0.1,
    }
    return {"system": system, "event": event, "repeat": 0, "outcome": "ok", **measured, **more}


ROWS = [
    row("ray-train", "node", 70.0),
    row("ray-train", "node", 74.0, steps_redone=12),
    row("spotray-live", "node", 1.2, mode="live", detect_s=0.2, agree_s=1.0),
    {
        "system": "torchft",
        "event": "node",
        "repeat": 0,
        "outcome": "not supported: it is not installed",
    },
]


def test_all_systems_go_through_all_events_once() -> None:
    everything = plan()
    assert len(everything) == len(set(everything)) == len(SYSTEMS) * len(run.EVENTS)


def test_a_choice_of_systems_and_events_is_kept_also_where_quick_has_other_ones() -> None:
    chosen = plan(quick=True, systems=("torchft",), events=("all", "two"))
    assert chosen == [("torchft", "all"), ("torchft", "two")]
    assert plan(systems=("torchft",)) == [("torchft", event) for event in run.EVENTS]
    assert plan(quick=True, systems=("spotray-live",)) == [
        ("spotray-live", event) for event in ("node", "noticed", "growth")
    ]


def test_every_quick_pair_exists() -> None:
    assert all(system in SYSTEMS and event in run.EVENTS for system, event in run.QUICK)


def test_a_system_that_is_not_there_is_skipped_with_a_word(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("benchmarks.recovery.systems.importlib.util.find_spec", lambda _: None)
    made = run.measure_one(
        SYSTEMS["torchft"], run.EVENTS["node"], repeat=0, limit_s=1, logs=tmp_path
    )
    assert made["outcome"].startswith("not supported: torchft is not installed")
    deaf = run.measure_one(
        SYSTEMS["torchrun"], run.EVENTS["noticed"], repeat=0, limit_s=1, logs=tmp_path
    )
    assert deaf["outcome"].startswith("not supported: it hears no notice")


def test_the_summary_gives_median_ends_and_ratio_to_plain_ray_train() -> None:
    head, plain, ours, missing, remark = run.summary(ROWS).splitlines()
    assert head.split()[:2] == ["event", "system"]
    assert "72.00 (70.00-74.00)" in plain
    assert "1.000" in plain
    assert "6 (0-12)" in plain
    assert ours.split()[2:4] == ["1.20", "0.017"]
    assert missing.endswith("0/1")
    assert remark == "node, torchft: not supported: it is not installed"


def test_the_picture_has_our_parts_and_the_others_as_a_whole(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert run.picture(tmp_path / "rows.svg", ROWS)
    drawn = (tmp_path / "rows.svg").read_text()
    for text in ("ray-train", "72", "detect", "agree", "1.2", "not supported"):
        assert f"<!-- {text}" in drawn or f"<!--  {text}" in drawn
    assert "steps_redone" not in drawn
