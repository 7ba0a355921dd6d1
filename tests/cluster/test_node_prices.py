from __future__ import annotations

import pytest

from spotray.cluster.node_prices import market_by_labels, priced
from spotray.events import NodeUp
from spotray.market.offer import Market
from spotray.market.prices import PriceTable
from spotray.train.coordinator import node_up
from spotray.tune.budget import check_prices

TABLE = PriceTable.parse(
    """cloud,region,instance_type,kind,usd_low,usd_high,date,source
aws,us-west-2,g5.xlarge,spot,0.3,0.4,2026-01,a list
aws,us-west-2,g5.xlarge,on-demand,1.0,1.0,2026-01,a list
azure,eastus,Standard_NC4as_T4_v3,spot,0.1,0.2,,
gcp,us-central1,n1-standard-4+nvidia-tesla-t4,spot,0.2,0.25,2026-01,a list
""",
    name="test",
)


def up(market: str) -> NodeUp:
    spot = market.endswith("/spot")
    return NodeUp(at_s=0.0, node_id="n", market=market, spot=spot)


def test_a_node_gets_the_highest_price_of_its_region_and_says_whose_that_is() -> None:
    told = priced(up("aws/us-west-2b/g5.xlarge/spot"), TABLE)
    assert (told.usd_per_hour, told.on_demand_usd_per_hour) == (0.4, 1.0)
    assert told.price_from == "a list of prices: a list 2026-01"


def test_what_the_market_itself_told_stays() -> None:
    own = NodeUp(at_s=0.0, node_id="n", market="aws/us-west-2b/g5.xlarge/spot", usd_per_hour=0.33)
    assert priced(own, TABLE) is own


@pytest.mark.parametrize(
    "market", ["", "aws/us-west-2b/g6.xlarge/spot", "aws/unknown/unknown/spot"]
)
def test_what_the_table_does_not_know_has_no_price(market: str) -> None:
    assert priced(up(market), TABLE) == up(market)


def test_a_zone_that_does_not_tell_its_region_needs_it_told() -> None:
    market = "azure/1/Standard_NC4as_T4_v3/spot"
    assert priced(up(market), TABLE).usd_per_hour is None
    assert priced(up(market), TABLE, region="eastus").usd_per_hour == 0.2


def labels(name: str, zone: str, kind: str) -> dict[str, str]:
    return {
        "spotray/instance-type": name,
        "ray.io/availability-zone": zone,
        "ray.io/market-type": kind,
    }


@pytest.mark.parametrize(
    ("told", "resources", "market", "added"),
    [
        (labels("g5.xlarge", "us-west-2a", "spot"), {}, "aws/us-west-2a/g5.xlarge/spot", ""),
        (
            labels("n1-standard-4", "us-central1-a", "on-demand"),
            {"GPU": 2.0, "accelerator_type:T4": 1.0},
            "gcp/us-central1-a/n1-standard-4/on-demand",
            "+2xnvidia-tesla-t4",
        ),
        (
            labels("g2-standard-4", "us-central1-a", "spot"),
            {"GPU": 1.0, "accelerator_type:L4": 1.0},
            "gcp/us-central1-a/g2-standard-4/spot",
            "",
        ),
    ],
)
def test_labels_tell_the_market(
    told: dict[str, str], resources: dict[str, float], market: str, added: str
) -> None:
    assert market_by_labels(told, resources) == (Market.parse(market), added)


@pytest.mark.parametrize("missing", ["spotray/instance-type", "ray.io/availability-zone"])
def test_labels_that_are_missing_tell_no_market(missing: str) -> None:
    told = labels("g5.xlarge", "us-west-2a", "spot")
    del told[missing]
    assert market_by_labels(told, {}) == (None, "")


def test_a_budget_can_be_kept_on_nodes_whose_labels_tell_what_they_are() -> None:
    def node(name: str, kind: str) -> NodeUp:
        told = labels(name, "us-west-2a", kind)
        return node_up({"NodeID": name, "Labels": told, "Resources": {"CPU": 4.0}}, 0.0)

    nodes = [node("g5.xlarge", "spot"), node("m6i.large", "on-demand")]
    check_prices(nodes, max_cost_usd=5.0, now_s=60.0)
    assert all(one.usd_per_hour and one.price_from for one in nodes)
