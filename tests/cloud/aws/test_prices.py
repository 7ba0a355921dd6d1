"""Prices of AWS: spot from moto, the price list and the scores from documented shapes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from urllib.parse import parse_qs

import boto3
import pytest

from spotray.cli.main import main
from spotray.cloud.aws.prices import AwsPrices, AwsScores
from spotray.errors import ConfigError, NotAnswered, NotPermittedError, ThrottledError
from tests.cloud.shapes import Answer, Api, Asked, api
from tests.conftest import S3Server

EC2 = "http://ec2.amazonaws.com/doc/2016-11-15/"
XML = {"Content-Type": "text/xml"}
JSON = {"Content-Type": "application/x-amz-json-1.1"}


@pytest.fixture(scope="module")
def session() -> boto3.Session:
    """One for all tests: each would read boto's large description of EC2 again."""
    return boto3.Session(aws_access_key_id="test", aws_secret_access_key="test")


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")  # boto's own would make tests slow


def product(usd: str, *, unit: str = "Hrs") -> str:
    """One entry of a price list, as "GetProducts" documents it, with its main parts."""
    term = {
        "priceDimensions": {
            "TERM.RATE": {
                "unit": unit,
                "description": f"${usd} per On Demand Linux instance hour",
                "pricePerUnit": {"USD": usd},
            }
        },
        "effectiveDate": "2026-11-01T00:00:00Z",
    }
    return json.dumps(
        {
            "product": {"productFamily": "Compute Instance", "sku": "SKU"},
            "serviceCode": "AmazonEC2",
            "terms": {"OnDemand": {"SKU.TERM": term}},
        }
    )


PRICES = {"g5.xlarge": "1.0060000000", "g5.12xlarge": "5.6720000000"}


def price_list(asked: Asked) -> Answer:
    """Two pages: the second has nothing that is sold by the hour."""
    body = json.loads(asked.body)
    wanted = {one["Field"]: one["Value"] for one in body["Filters"]}
    assert wanted["regionCode"] == "us-east-1"
    if "NextToken" in body:
        return 200, json.dumps({"PriceList": [product("0.0", unit="Quantity")]}), JSON
    found = [product(PRICES[wanted["instanceType"]])] if wanted["instanceType"] in PRICES else []
    return 200, json.dumps({"PriceList": found, "NextToken": "more"}), JSON


@pytest.fixture
def pricing(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """EC2 is moto, the price list this."""
    with api(price_list) as found:
        monkeypatch.setenv("AWS_ENDPOINT_URL_PRICING", found.url)
        yield found


def test_spot_is_by_zone_and_on_demand_of_the_region(pricing: Api, session: boto3.Session) -> None:
    found = AwsPrices(session=session).quotes(
        "us-east-1", ["g5.xlarge", "g5.12xlarge", "p3.2xlarge"]
    )
    spot = [one for one in found if one.spot and one.instance_type == "g5.xlarge"]
    assert len(spot) > 1
    assert all(one.zone.startswith("us-east-1") for one in spot)
    on_demand = {one.instance_type: one.usd_per_hour for one in found if not one.spot}
    assert on_demand == {"g5.xlarge": 1.006, "g5.12xlarge": 5.672}


def test_nothing_is_asked_about_no_types(pricing: Api, session: boto3.Session) -> None:
    assert AwsPrices(session=session).quotes("us-east-1", []) == []
    assert not pricing.asked


def test_the_command_keeps_what_it_heard_and_a_plan_uses_it(
    pricing: Api,
    tmp_path: object,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    words = ["prices", "--cloud", "aws", "--region", "us-east-1", "--gpu", "A10G", "--gpus", "1"]
    assert main([*words, "--refresh"]) == 0
    told = capsys.readouterr()
    assert "spotray: aws us-east-1: " in told.err
    assert "EC2 DescribeSpotPriceHistory 20" in told.out
    assert main([*words, "--refresh"]) == 0
    assert "asked 0 min ago, not again before 60 min" in capsys.readouterr().err
    assert main([*words, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["for_sale"]
    heard = [one["spot"]["source"] for one in listed if one["spot"]]
    assert "EC2 DescribeSpotPriceHistory" in heard


def test_without_credentials_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    with pytest.raises(ConfigError, match="no credentials for AWS here.*say `aws configure`"):
        AwsPrices().quotes("us-east-1", ["g5.xlarge"])


def test_a_region_that_is_none_is_told_before_anything_is_asked(
    pricing: Api, session: boto3.Session
) -> None:
    with pytest.raises(ConfigError, match="no region 'us-east-11' .*did you mean us-east-1"):
        AwsPrices(session=session).quotes("us-east-11", ["g5.xlarge"])
    with pytest.raises(ConfigError, match="write it as us-east-1"):
        AwsPrices(session=session).quotes("mars", ["g5.xlarge"])


# -- scores, and what EC2 refuses --------------------------------------------


def ec2(actions: dict[str, Answer]) -> Callable[[Asked], Answer]:
    return lambda asked: actions[parse_qs(asked.body)["Action"][0]]


def error(code: str, words: str, status: int = 400) -> Answer:
    text = (
        f"<Response><Errors><Error><Code>{code}</Code><Message>{words}</Message></Error></Errors>"
    )
    return status, f"{text}<RequestID>1</RequestID></Response>", XML


ZONES: Answer = (
    200,
    f'<DescribeAvailabilityZonesResponse xmlns="{EC2}"><availabilityZoneInfo>'
    "<item><zoneName>us-east-1a</zoneName><zoneId>use1-az6</zoneId></item>"
    "<item><zoneName>us-east-1b</zoneName><zoneId>use1-az1</zoneId></item>"
    "</availabilityZoneInfo></DescribeAvailabilityZonesResponse>",
    XML,
)
SCORES: Answer = (
    200,
    f'<GetSpotPlacementScoresResponse xmlns="{EC2}"><spotPlacementScoreSet>'
    "<item><region>us-east-1</region><availabilityZoneId>use1-az1</availabilityZoneId>"
    "<score>3</score></item>"
    "<item><region>us-east-1</region><availabilityZoneId>use1-az6</availabilityZoneId>"
    "<score>9</score></item>"
    "<item><region>us-east-1</region><availabilityZoneId>use1-az9</availabilityZoneId>"
    "<score>1</score></item>"
    "</spotPlacementScoreSet></GetSpotPlacementScoresResponse>",
    XML,
)
TYPES = ["g5.xlarge", "g5.2xlarge", "g6.xlarge"]


def test_scores_name_zones_as_this_account_does_likeliest_first(
    session: boto3.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {"DescribeAvailabilityZones": ZONES, "GetSpotPlacementScores": SCORES}
    with api(ec2(answers)) as found:
        monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", found.url)
        scores = AwsScores(session=session).scores("us-east-1", TYPES, nodes=4)
    assert [(one.zone, one.obtainable_frac) for one in scores] == [
        ("us-east-1a", 0.9),
        ("us-east-1b", 0.3),
        ("use1-az9", 0.1),  # a zone that this account does not see
    ]
    asked = parse_qs(found.asked[-1].body)
    assert asked["TargetCapacity"] == ["4"]
    assert asked["SingleAvailabilityZone"] == ["true"]
    assert {asked[f"InstanceType.{n}"][0] for n in (1, 2, 3)} == set(TYPES)


def test_fewer_than_three_types_are_not_asked_about(session: boto3.Session) -> None:
    with pytest.raises(ConfigError, match="wants at least 3 types"):
        AwsScores(session=session).scores("us-east-1", TYPES[:2], nodes=4)


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (error("RequestLimitExceeded", "slower", 503), ThrottledError, "slower"),
        (
            error("UnauthorizedOperation", "You are not authorized", 403),
            NotPermittedError,
            "ec2:DescribeSpotPriceHistory",
        ),
        (error("AuthFailure", "credentials", 401), NotPermittedError, "AuthFailure"),
        (error("NewWord", "whatever"), NotAnswered, "NewWord"),
        ((200, "no XML at all", XML), NotAnswered, "ec2:DescribeSpotPriceHistory"),
    ],
)
def test_what_ec2_refuses_is_one_of_our_errors(
    answer: Answer,
    kind: type[Exception],
    said: str,
    session: boto3.Session,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with api(ec2({"DescribeSpotPriceHistory": answer})) as found:
        monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", found.url)
        with pytest.raises(kind, match=said):
            AwsPrices(session=session).quotes("us-east-1", ["g5.xlarge"])


def test_a_price_list_of_another_shape_is_told(
    s3_server: S3Server, session: boto3.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    with api(lambda asked: (200, json.dumps({"PriceList": ['{"terms": 3}']}), JSON)) as found:
        monkeypatch.setenv("AWS_ENDPOINT_URL_PRICING", found.url)
        with pytest.raises(NotAnswered, match="another shape"):
            AwsPrices(session=session).quotes("us-east-1", ["g5.xlarge"])
