"""Zones side by side, the jobs cut from them, and the sums over those."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from spotray.errors import ConfigError
from spotray.policy.fleet import FleetJob
from spotray.policy.fleet_on_demand import FleetOnDemand
from spotray.policy.one_zone import OneZone
from spotray.sim.fleet_cases import Zones, cut_fleet, made_up_zones
from spotray.sim.fleet_compare import fleet_standings, run_fleet_cases
from spotray.sim.fleet_named import FLEET_POLICIES, fleet_policy

HOUR = 3600.0


@pytest.fixture(scope="module")
def zones() -> Zones:
    return made_up_zones(3, nodes=2, days=1.0, regions=2, zones=2, on_demand_usd_per_hour=2.0)


def job(zones: Zones, deadline_h: float) -> FleetJob:
    return FleetJob(
        gap_s=zones.gap_s,
        work_s=4 * HOUR,
        speeds=(0.0, 1.0, 2.0),
        places=zones.places,
        deadline_s=deadline_h * HOUR,
    )


def test_made_up_zones_are_places_of_their_regions(zones: Zones) -> None:
    assert job(zones, 6.0).regions == (
        *("aws/made-up-1", "aws/made-up-1", "aws/made-up-2", "aws/made-up-2"),
    )
    assert zones.ticks == 288
    assert all(0 < usd < 2 for row in zones.usd_per_hour for usd in row)
    again = made_up_zones(3, nodes=2, days=1.0, regions=2, zones=2, on_demand_usd_per_hour=2.0)
    assert again == zones


def test_jobs_lie_side_by_side_or_where_they_are_asked_for(zones: Zones) -> None:
    one = job(zones, 6.0)
    assert [case.first_tick for case in cut_fleet(zones, one)] == [0, 72, 144, 216]
    assert [case.first_tick for case in cut_fleet(zones, one, starts=2)] == [0, 216]
    (case, *_) = cut_fleet(zones, one, starts=2)
    assert case.market.ticks == 72
    assert case.market.capacity[5] == [row[5] for row in zones.capacity]
    assert not list(cut_fleet(zones, job(zones, 25.0)))
    with pytest.raises(ConfigError, match="cannot cut 0 windows"):
        list(cut_fleet(zones, one, starts=0))


def test_without_a_deadline_a_job_has_all_the_time_of_the_traces(zones: Zones) -> None:
    (case,) = cut_fleet(zones, job(zones, float("inf")))
    assert case.market.ticks == zones.ticks


def test_silent_losses_are_as_many_as_asked_for_and_the_same_for_every_policy(
    zones: Zones,
) -> None:
    market = zones.market(0, 288, silent_frac=0.25, seed=1)
    assert market.silent == zones.market(0, 288, silent_frac=0.25, seed=1).silent
    flat = [one for row in market.silent for one in row]
    assert sum(flat) / len(flat) == pytest.approx(0.25, abs=0.05)


def test_standings_are_of_sums(zones: Zones) -> None:
    cases = list(cut_fleet(zones, job(zones, 6.0)))
    rows = run_fleet_cases({"od": FleetOnDemand(), "one": OneZone()}, cases)
    od, one = fleet_standings(rows, baseline="od")
    assert (od.policy, od.jobs, od.worlds, od.late) == ("od", 4, 1, 0)
    assert od.of_on_demand_frac == pytest.approx(1)
    assert od.cheaper_frac == pytest.approx(0)
    costs = [row.outcome.cost_usd for row in rows if row.policy == "one"]
    assert one.cost_usd == pytest.approx(sum(costs) / 4)
    assert one.cheaper_frac == pytest.approx(1 - sum(costs) / 4 / od.cost_usd)
    assert one.worst_regret_frac == pytest.approx(max(costs) / od.cost_usd - 1)
    assert one.cheaper_low_frac is None  # one world says nothing of others


def test_with_several_worlds_the_confidence_is_over_them() -> None:
    rows = []
    for seed in range(4):
        world = made_up_zones(seed, nodes=2, days=0.5, zones=1, on_demand_usd_per_hour=2.0)
        cases = cut_fleet(world, job(world, 6.0))
        rows += run_fleet_cases({"od": FleetOnDemand(), "one": OneZone()}, cases)
    _, one = fleet_standings(rows, baseline="od")
    assert one.worlds == 4
    low, middle, high = one.cheaper_low_frac, one.cheaper_frac, one.cheaper_high_frac
    assert low is not None
    assert middle is not None
    assert high is not None
    assert low <= middle <= high
    assert low < high


def test_policies_are_found_by_name_and_ones_own_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {fleet_policy(name).begin.__name__ for name in FLEET_POLICIES} == {"begin"}
    (tmp_path / "my_fleet.py").write_text(
        "from spotray.policy.fleet_on_demand import FleetOnDemand\n"
        "class Mine(FleetOnDemand):\n    name = 'mine'\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert fleet_policy("my_fleet.Mine").begin
    with pytest.raises(ConfigError, match="'elastik' for several nodes: did you mean 'elastic'"):
        fleet_policy("elastik")
    with pytest.raises(ConfigError, match="my_fleet.Nobody: AttributeError"):
        fleet_policy("my_fleet.Nobody")
