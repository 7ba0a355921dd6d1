"""Dry runs of RunInstances: what moto lets pass, and what EC2 is documented to refuse."""

from __future__ import annotations

from urllib.parse import parse_qs

import boto3
import pytest

from spotray.cloud.aws.dry_runs import AwsDryRuns
from spotray.errors import ConfigError, NotAnswered, NotPermittedError, ThrottledError
from tests.cloud.aws.test_prices import ec2, error
from tests.cloud.shapes import Answer, api
from tests.conftest import S3Server


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")  # boto's own would make tests slow


def test_what_would_launch_is_not_refused_and_nothing_is_launched(s3_server: S3Server) -> None:
    there = boto3.client("ec2").describe_instances()["Reservations"]  # of other tests
    runs = AwsDryRuns("us-east-1")
    assert "us-east-1a" in runs.zones()
    assert runs.refusal("us-east-1a", "g5.xlarge") == ""
    assert boto3.client("ec2").describe_instances()["Reservations"] == there


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (error("DryRunOperation", "Request would have succeeded", 412), ""),
        (error("Unsupported", "not in this zone"), "not-offered"),
        (error("MaxSpotInstanceCountExceeded", "too many"), "quota"),
        (error("InsufficientInstanceCapacity", "none left", 500), "capacity"),
        (error("RequestLimitExceeded", "slower", 503), ThrottledError),
        (error("UnauthorizedOperation", "may not", 403), NotPermittedError),
        (error("InvalidAMIID.NotFound", "no such image"), ConfigError),
        (error("NewWord", "whatever"), NotAnswered),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_each_refusal_has_its_word_and_what_says_nothing_of_a_zone_is_an_error(
    answer: Answer,
    word: str | type[Exception],
    s3_server: S3Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with api(ec2({"RunInstances": answer})) as found:
        monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", found.url)
        runs = AwsDryRuns("us-east-1")
        if isinstance(word, str):
            assert runs.refusal("us-east-1a", "g5.xlarge") == word
        else:
            with pytest.raises(word):
                runs.refusal("us-east-1a", "g5.xlarge")
    asked = parse_qs(found.asked[0].body)
    assert asked["DryRun"] == ["true"]
    assert asked["Placement.AvailabilityZone"] == ["us-east-1a"]
    assert asked["InstanceMarketOptions.MarketType"] == ["spot"]
