from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotray.market.survival import Weibull
from spotray.plan.restarts import ALL_LOST_S, JOINED_S, SURVIVORS_S, expected_restarts

# Every life lasts an hour, nearly.
HOUR = Weibull(shape=1000.0, scale_s=3600.0)


def test_a_node_that_lives_an_hour_loses_its_start_once_an_hour() -> None:
    found = expected_restarts(nodes=1, start_s=360.0, survival=HOUR)
    assert found.losses_per_hour == pytest.approx(1.0, rel=0.01)
    assert found.works_frac == pytest.approx(1 - (360 + ALL_LOST_S) / 3600, abs=0.01)


def test_the_others_of_a_group_wait_for_the_recovery_that_was_measured() -> None:
    found = expected_restarts(nodes=8, start_s=360.0, survival=HOUR)
    lost_s = 360 + 8 * (SURVIVORS_S + JOINED_S)
    assert found.works_frac == pytest.approx(1 - lost_s / 3600, abs=0.01)


def test_work_on_what_is_lost_often_costs_more_than_its_price() -> None:
    often = expected_restarts(nodes=4, survival=Weibull(shape=1.0, scale_s=600.0))
    seldom = expected_restarts(nodes=4, survival=Weibull(shape=1.0, scale_s=86400.0))
    assert often.usd_per_work_hour(1.0) > 1.2 > 1.01 > seldom.usd_per_work_hour(1.0) > 1.0


def test_an_age_at_which_nodes_end_bounds_their_lives() -> None:
    survival = Weibull(shape=0.5, scale_s=1e7, limit_s=7200.0)
    found = expected_restarts(nodes=1, start_s=360.0, survival=survival)
    assert found.losses_per_hour == pytest.approx(0.5, rel=0.02)
    assert found.works_frac == pytest.approx(1 - (360 + ALL_LOST_S) / 7200, abs=0.01)


@given(
    nodes=st.integers(1, 64),
    start_s=st.floats(0, 7200),
    shape=st.floats(0.3, 3),
    scale_s=st.floats(60, 1e6),
)
def test_work_is_never_cheaper_than_the_node(
    nodes: int, start_s: float, shape: float, scale_s: float
) -> None:
    found = expected_restarts(
        nodes=nodes, start_s=start_s, survival=Weibull(shape=shape, scale_s=scale_s)
    )
    assert 0 < found.works_frac <= 1.01  # a mean over quantiles, so not quite exact
    assert found.losses_per_hour > 0


@pytest.mark.parametrize(
    ("row", "seconds"), [("node", SURVIVORS_S), ("growth", JOINED_S), ("all", ALL_LOST_S)]
)
def test_the_measured_seconds_are_near_those_of_the_benchmark(row: str, seconds: float) -> None:
    text = (Path(__file__).parents[2] / "benchmarks/recovery/README.md").read_text()
    line = next(line for line in text.splitlines() if line.startswith(f"| `{row}` | "))
    ours = line.split("|")[5]  # the column spotray-live
    assert seconds == pytest.approx(float(ours.split()[0]), rel=1.0), line
