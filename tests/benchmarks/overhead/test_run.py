"""How turns become rows. Nothing is started."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.overhead import run


def turn(side: str, number: int, seconds: float) -> dict[str, Any]:
    return {
        "round": number,
        "side": side,
        "steps": 4,
        "seconds": seconds,
        "steps_s": [seconds / 4] * 4,
    }


TURNS = [
    turn("ray-train", 0, 1.0),
    turn("spotray-live", 0, 1.1),
    turn("spotray-live", 1, 2.0),  # a slow round is slow for both
    turn("ray-train", 1, 2.0),
    turn("ray-train", 2, 1.0),
    turn("spotray-live", 2, 1.02),
    turn("spotray-live", 3, 9.0),  # the run was cut short: nothing to compare it with
]


def test_a_ratio_compares_turns_of_one_round() -> None:
    plain, ours = run.rows_of(TURNS, workers=2)
    assert (plain["system"], plain["ratio"]) == ("ray-train", 1.0)
    assert ours["ratio"] == pytest.approx(1.02)  # the median of 1.1, 1.0 and 1.02
    assert (ours["ratio_low"], ours["ratio_high"]) == pytest.approx((1.01, 1.06))
    assert (ours["rounds"], ours["steps"]) == (4, 16)
    assert ours["mean_step_ms"] == pytest.approx(1000 * 13.12 / 16)


def test_without_plain_ray_train_there_is_no_ratio() -> None:
    (alone,) = run.rows_of([turn("torch", 0, 1.0)], workers=2)
    assert alone["ratio"] is None
    assert run.summary([alone]).splitlines()[1].split()[-1] == "-"


def test_the_summary_has_a_line_for_each_side() -> None:
    head, plain, ours = run.summary(run.rows_of(TURNS, workers=2)).splitlines()
    assert head.split()[0] == "system"
    assert plain.endswith("1.000 (1.000-1.000)")
    assert ours.endswith("1.020 (1.010-1.060)")
