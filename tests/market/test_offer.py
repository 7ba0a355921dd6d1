import pytest

from spotray.errors import ConfigError
from spotray.market.offer import Market

SPOT = "aws/us-east-1a/g5.xlarge/spot"


@pytest.mark.parametrize("text", [SPOT, "gcp/us-central1-a/g2-standard-4/on-demand"])
def test_a_market_is_the_same_after_text_and_back(text: str) -> None:
    assert str(Market.parse(text)) == text


def test_the_on_demand_twin_differs_in_the_kind_alone() -> None:
    assert str(Market.parse(SPOT).on_demand()) == "aws/us-east-1a/g5.xlarge/on-demand"


@pytest.mark.parametrize(
    ("zone", "region"),
    [("us-east-1a", "us-east-1"), ("us-central1-b", "us-central1"), ("eastus", "eastus")],
)
def test_the_region_is_the_zone_without_its_letter(zone: str, region: str) -> None:
    assert Market(cloud="x", zone=zone, instance_type="y", spot=True).region == region


@pytest.mark.parametrize(
    "text", ["", "aws/us-east-1a/g5.xlarge", SPOT + "/x", "aws//g5.xlarge/spot", SPOT[:-4] + "Spot"]
)
def test_a_text_that_is_no_market_is_named_in_the_error(text: str) -> None:
    with pytest.raises(ConfigError, match="market"):
        Market.parse(text)
