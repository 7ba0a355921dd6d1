"""Bills by the second: what is free, and that parts add up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotray.sim.billing import Meter, bill_usd

HOUR = 3600.0
prices = st.lists(st.floats(0.01, 50), min_size=1, max_size=12)
times = st.floats(0, 20_000)


def test_a_second_costs_what_it_costs_then() -> None:
    meter = Meter([3.6, 7.2, 36.0], gap_s=100)
    assert meter.usd(50, 150) == pytest.approx(50 * 0.001 + 50 * 0.002)
    assert meter.usd(250, 450) == pytest.approx(200 * 0.01)  # behind the end as at it


@given(row=prices, ends=st.tuples(times, times, times))
def test_a_span_costs_what_its_parts_cost(
    row: list[float], ends: tuple[float, float, float]
) -> None:
    first, middle, last = sorted(ends)
    meter = Meter(row, gap_s=300)
    whole = meter.usd(first, last)
    assert whole == pytest.approx(meter.usd(first, middle) + meter.usd(middle, last), abs=1e-9)
    assert whole >= 0


@given(
    row=prices,
    start=times,
    lived=st.floats(0, 3 * HOUR),
    cloud=st.sampled_from(["aws", "gcp", "azure"]),
    taken=st.booleans(),
)
def test_only_what_the_cloud_took_early_is_free(
    row: list[float], start: float, lived: float, cloud: str, taken: bool
) -> None:
    usd = bill_usd(Meter(row, gap_s=300), cloud, start, start + lived, taken=taken)
    free_s = {"aws": HOUR, "gcp": 60.0, "azure": 0.0}[cloud]
    is_free = taken and start + lived - start < free_s
    assert (usd == 0) == is_free
    assert usd >= 0


def test_a_node_is_billed_for_a_minute_at_least() -> None:
    meter = Meter([36.0], gap_s=300)
    assert bill_usd(meter, "azure", 10, 15, taken=False) == pytest.approx(0.6)
    assert bill_usd(meter, "azure", 10, 85, taken=True) == pytest.approx(0.75)
