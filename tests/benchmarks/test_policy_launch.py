"""The benchmark of launch policies counts what a node costs, and runs whole on made-up zones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.policy import launch
from spotray.market.offer import Market
from spotray.market.trace import Trace
from spotray.policy.spot_first import SpotFirst

A = Market(cloud="aws", zone="us-west-2a", instance_type="g5.xlarge", spot=True)
SPOT_USD, ON_DEMAND_USD = 0.36545, 1.006  # of the price table


def ran(*up: int, start_s: float = 600.0) -> launch.Ran:
    """An hour for each value: whether zone a has spot in it."""
    trace = Trace(gap_s=3600.0, values=tuple(map(float, up)))
    world = launch.World(name="scripted", markets={A: trace})
    return launch.Course(
        world, SpotFirst(), launch.Ran(world="scripted", policy="spot-first", start_s=start_s)
    ).run()


def test_a_calm_market_costs_one_start() -> None:
    found = ran(1, 1, 1, 1)
    assert (found.losses, found.refusals, found.on_demand_h) == (0, 0, 0.0)
    paid_h = 4 - launch.CALL_S / 3600
    assert found.cost_usd == pytest.approx(SPOT_USD * paid_h)
    assert found.useful_h == pytest.approx(paid_h - (600 + launch.RECOVERY_S) / 3600)


def test_after_a_loss_it_is_on_demand_until_spot_is_back_and_hands_over_without_a_gap() -> None:
    found = ran(1, 1, 0, 1, 1, 1, 1)
    assert found.losses == 1
    assert 0.9 < found.on_demand_h < 2.5
    # Two starts count, that after the hand-over does not: the node before it still works.
    lost_h = 2 * (600 + launch.RECOVERY_S) / 3600
    assert found.useful_h == pytest.approx(7 - lost_h, abs=0.01)
    assert found.cost_usd > SPOT_USD * 5 + ON_DEMAND_USD * found.on_demand_h


@pytest.mark.slow
def test_a_quick_run_has_a_row_for_every_world_and_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows_file = tmp_path / "rows.json"
    assert launch.main(["--quick", "--json", str(rows_file)]) == 0
    rows = json.loads(rows_file.read_text())
    assert {(row["world"], row["policy"]) for row in rows} == {
        (f"made up {index}", name) for index in (0, 1) for name in ("spot-first", "expected-cost")
    }
    assert all(0 < row["useful_h"] < row["hours"] for row in rows)
    assert "all, starts of 3 min" in capsys.readouterr().out
