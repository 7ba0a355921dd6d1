from __future__ import annotations

import pytest

from spotray.errors import ConfigError
from spotray.market.prices import PriceTable
from spotray.market.sale import for_sale

TABLE = PriceTable.parse(
    """cloud,region,instance_type,kind,usd_low,usd_high
aws,us-east-1,g5.xlarge,on-demand,1.0,1.0
aws,us-east-1,g5.xlarge,spot,0.3,0.5
aws,us-east-1,g5.12xlarge,on-demand,5.6,5.6
aws,us-west-2,g5.xlarge,on-demand,1.1,1.1
gcp,us-central1,g2-standard-4,spot,0.2,0.2
aws,us-east-1,m5.large,on-demand,0.1,0.1
aws,us-east-1,of-whatever-kind,on-demand,0.1,0.1
""",
    name="own.csv",
)


def test_the_cheapest_by_gpu_comes_first_and_machines_without_gpus_never() -> None:
    assert [(one.type.name, one.region) for one in for_sale(TABLE)] == [
        ("g2-standard-4", "us-central1"),
        ("g5.xlarge", "us-east-1"),
        ("g5.xlarge", "us-west-2"),
        ("g5.12xlarge", "us-east-1"),
    ]


def test_a_type_has_both_prices_of_its_region() -> None:
    (one,) = for_sale(TABLE, gpu="A10G", gpus=1, region="us-east-1")
    assert one.spot_usd_per_hour == pytest.approx(0.4)
    assert one.saved_frac == pytest.approx(0.6)
    assert one.on_demand is not None


def test_only_what_is_sold_as_asked_is_left() -> None:
    assert {one.region for one in for_sale(TABLE, gpu="A10G", spot=True)} == {"us-east-1"}
    assert {one.cloud for one in for_sale(TABLE, spot=False)} == {"aws"}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"cloud": "ibm"}, "cloud 'ibm': give one of aws, gcp, azure"),
        ({"gpu": "K80"}, "GPU 'K80': give one of A100, A10G"),
        ({"gpu": "A10G", "gpus": 3}, "with 3 A10G: A10G is known with 1, 4 GPUs a machine"),
        ({"cloud": "aws", "region": "mars"}, "aws in mars: prices are known in us-east-1, us-west"),
        ({"gpus": 2}, "machines with 1, 4 GPUs are known"),
        ({"gpu": "H100"}, "with H100: H100 is known with no price"),
        ({"cloud": "azure"}, "machines with no GPUs are known"),
    ],
)
def test_what_nobody_sells_is_told_with_what_there_is(
    asked: dict[str, str | int], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        for_sale(TABLE, **asked)  # type: ignore[arg-type]
