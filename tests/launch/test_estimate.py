from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from spotray.launch.estimate import estimate
from spotray.market.prices import PriceTable

ROOT = Path(__file__).parents[2]
HEAD = "cloud,region,instance_type,kind,usd_low,usd_high\n"
PRICES = PriceTable.parse(
    HEAD + "aws,us-west-2,m6i.large,on-demand,0.1,0.1\n"
    "aws,us-west-2,g5.xlarge,spot,0.3,0.4\n"
    "aws,us-west-2,g5.xlarge,on-demand,1,1\n"
    "aws,us-west-2,g6.xlarge,spot,0.5,0.6\n"
    "aws,us-west-2,g6.xlarge,on-demand,0.8,0.8\n",
    name="test",
)


def config(**changes: Any) -> dict[str, Any]:
    """An on-demand head, up to four workers of two types."""
    pool = {"instance_types": ["g5.xlarge", "g6.xlarge"], **changes}
    return {
        "cluster_name": "c",
        "max_workers": 4,
        "head_node_type": "head",
        "provider": {
            "type": "external",
            "module": "spotray.cluster.aws.SpotNodeProvider",
            "region": "us-west-2",
            "markets": {"gpu": pool},
        },
        "available_node_types": {
            "head": {"node_config": {"InstanceType": "m6i.large"}},
            "gpu": {
                "node_config": {"InstanceType": "g5.xlarge"},
                "min_workers": 1,
                "max_workers": 4,
            },
        },
    }


def test_low_is_all_spot_in_the_cheapest_zone_and_high_is_all_on_demand() -> None:
    found = estimate(config(), PRICES, hours=10)
    assert found.low_usd_per_hour == pytest.approx(0.1 + 4 * 0.3)
    assert found.high_usd_per_hour == pytest.approx(0.1 + 4 * 1.0)
    assert found.low_usd == pytest.approx(13)
    assert found.high_usd == pytest.approx(41)
    assert found.idle_usd_per_hour == pytest.approx(0.1 + 1.0)
    assert found.unknown == ()


def test_a_pool_that_waits_for_spot_never_costs_the_on_demand_price() -> None:
    found = estimate(config(fallback="wait"), PRICES)
    assert found.high_usd_per_hour == pytest.approx(0.1 + 4 * 0.6)
    assert found.types[1].on_demand is None
    assert found.low_usd is None, "nobody said for how long"


def test_an_on_demand_pool_has_one_price() -> None:
    found = estimate(config(spot=False, instance_types=["g5.xlarge"]), PRICES)
    assert found.low_usd_per_hour == found.high_usd_per_hour == pytest.approx(4.1)


def test_a_missing_price_is_named_and_the_high_end_is_unknown() -> None:
    found = estimate(config(instance_types=["g5.xlarge", "g5.2xlarge"]), PRICES, hours=1)
    assert found.unknown == (
        "g5.2xlarge spot in us-west-2",
        "g5.2xlarge on-demand in us-west-2",
    )
    assert found.high_usd_per_hour is found.high_usd is found.idle_usd_per_hour is None
    assert found.low_usd_per_hour == pytest.approx(0.1 + 4 * 0.3)


def test_without_any_price_nothing_is_said() -> None:
    found = estimate(config(), PriceTable())
    assert found.low_usd_per_hour is found.high_usd_per_hour is None


def test_the_limit_of_all_pools_together_counts() -> None:
    two = config()
    two["max_workers"] = 3
    two["available_node_types"]["more"] = {
        "node_config": {"InstanceType": "g6.xlarge"},
        "min_workers": 2,
        "max_workers": 8,
    }
    two["provider"]["markets"]["more"] = {"spot": False}
    found = estimate(two, PRICES)
    assert found.max_workers == 3
    # One of gpu and two of more are held in any case.
    assert found.low_usd_per_hour == pytest.approx(0.1 + 0.3 + 2 * 0.8)
    assert found.high_usd_per_hour == pytest.approx(0.1 + 1.0 + 2 * 0.8)


def test_plain_ray_types_cost_what_they_ask_for() -> None:
    plain = config()
    plain["provider"] = {"type": "aws", "region": "us-west-2"}
    gpu = plain["available_node_types"]["gpu"]
    assert estimate(plain, PRICES).low_usd_per_hour == pytest.approx(4.1)
    gpu["node_config"]["InstanceMarketOptions"] = {"MarketType": "spot"}
    found = estimate(plain, PRICES)
    assert found.low_usd_per_hour == pytest.approx(0.1 + 4 * 0.3)
    assert found.high_usd_per_hour == pytest.approx(0.1 + 4 * 0.4)


def test_a_gpu_that_is_added_to_a_machine_is_part_of_its_name() -> None:
    file = ROOT / "cluster-configs" / "gcp-t4-spot.yaml"
    found = estimate(yaml.safe_load(file.read_text()), PriceTable())
    assert any("+nvidia-tesla-t4 spot in us-central1" in one for one in found.unknown)


@pytest.mark.parametrize("file", sorted((ROOT / "cluster-configs").glob("*.yaml")))
def test_every_config_of_the_project_can_be_estimated(file: Path) -> None:
    found = estimate(yaml.safe_load(file.read_text()), PriceTable.bundled(), hours=1)
    assert len(found.types) >= 2
    assert (found.high_usd_per_hour is None) == bool(found.unknown)


def test_the_cost_of_the_g5_config_is_fully_known() -> None:
    file = ROOT / "cluster-configs" / "aws-g5-spot.yaml"
    found = estimate(yaml.safe_load(file.read_text()), PriceTable.bundled())
    assert not found.unknown
    assert found.sources
