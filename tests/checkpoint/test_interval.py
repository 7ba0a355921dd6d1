"""The checkpoint interval is where the least time is wasted."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotray.checkpoint.interval import checkpoint_interval_s
from spotray.errors import ConfigError


def wasted(interval_s: float, *, write_s: float, mtbp_s: float) -> float:
    """Expected wall time per second of work when losses come at random (exponential)."""
    return mtbp_s * math.expm1((interval_s + write_s) / mtbp_s) / interval_s


@given(write_s=st.floats(0.1, 100), ratio=st.floats(2.0, 1e5))
def test_no_other_interval_is_much_better(write_s: float, ratio: float) -> None:
    mtbp_s = write_s * ratio
    ours = checkpoint_interval_s(write_s=write_s, mtbp_s=mtbp_s)
    cost = wasted(ours, write_s=write_s, mtbp_s=mtbp_s)
    for factor in (0.5, 0.7, 0.9, 1.1, 1.5, 2.0):
        other = wasted(ours * factor, write_s=write_s, mtbp_s=mtbp_s)
        assert cost <= other * 1.001


def test_for_short_writes_it_is_youngs() -> None:
    assert checkpoint_interval_s(write_s=0.001, mtbp_s=1e6) == pytest.approx(
        math.sqrt(2 * 0.001 * 1e6), rel=1e-3
    )


def test_it_never_falls_below_the_write_itself() -> None:
    assert checkpoint_interval_s(write_s=100, mtbp_s=10) == 100
    assert checkpoint_interval_s(write_s=10, mtbp_s=12) >= 10


@pytest.mark.parametrize(("write_s", "mtbp_s"), [(0, 1), (1, 0), (-1, 1), (math.nan, 1)])
def test_times_must_be_positive(write_s: float, mtbp_s: float) -> None:
    with pytest.raises(ConfigError, match="must be above 0"):
        checkpoint_interval_s(write_s=write_s, mtbp_s=mtbp_s)
