"""The benchmark of jobs on several nodes runs whole on made-up worlds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.policy import fleet
from spotray.sim.fleet_named import FLEET_POLICIES


def test_at_one_price_only_the_prices_differ() -> None:
    _, case = next(fleet.cases(1, days=3.0))
    flat = fleet.at_one_price(case)
    assert flat.market.capacity == case.market.capacity
    assert flat.market.silent == case.market.silent
    prices = {usd for row in flat.market.usd_per_hour for usd in row}
    assert len(prices) == 1
    own = [usd for row in case.market.usd_per_hour for usd in row]
    assert min(own) < prices.pop() < max(own)


@pytest.mark.slow
def test_a_quick_run_has_a_row_for_every_job_and_policy_and_none_is_late(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows_file = tmp_path / "rows.json"
    assert fleet.main(["--quick", "--json", str(rows_file)]) == 0
    rows = json.loads(rows_file.read_text())
    jobs = 2 * 3 * 2  # worlds, deadlines, with own prices and at one
    assert len(rows) == jobs * len(FLEET_POLICIES)
    assert not any(row["is_late"] for row in rows)
    assert "one price, speed n^0.8" in capsys.readouterr().out
