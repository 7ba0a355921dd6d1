"""Prices and advice of Google Cloud, from their documented shapes on loopback."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import compute_v1

from spotray.cloud.gcp.prices import GcpPrices, GcpScores
from spotray.errors import ConfigError, NotAnswered, NotPermittedError, ThrottledError
from tests.cloud.shapes import Answer, Api, Asked, api

JSON = {"Content-Type": "application/json"}


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def sku(words: str, usd: float, *, usage: str = "OnDemand", unit: str = "h") -> dict[str, Any]:
    """One entry of the catalog, as its documentation has it."""
    price = {"currencyCode": "USD", "units": str(int(usd)), "nanos": round(usd % 1 * 1e9)}
    return {
        "name": "services/6F81-5844-456A/skus/X",
        "description": words,
        "category": {"resourceFamily": "Compute", "usageType": usage},
        "serviceRegions": ["us-central1"],
        "pricingInfo": [
            {
                "pricingExpression": {
                    "usageUnit": unit,
                    "tieredRates": [{"startUsageAmount": 0, "unitPrice": price}],
                }
            }
        ],
    }


SPOT = "Preemptible"
SKUS = [
    sku("G2 Instance Core running in Iowa", 0.025),
    sku("G2 Instance Ram running in Iowa", 0.003, unit="GiBy.h"),
    sku("Nvidia L4 GPU running in Iowa", 0.56),
    sku("Nvidia L4 GPU attached to DWS Defined Duration VMs running in Iowa", 9.0),
    sku("Commitment v1: G2 Cpu in Iowa for 1 Year", 9.0, usage="Commit1Yr"),
    sku("Spot Preemptible G2 Instance Core running in Iowa", 0.01, usage=SPOT),
    sku("Spot Preemptible G2 Instance Ram running in Iowa", 0.001, usage=SPOT, unit="GiBy.h"),
    sku("Nvidia L4 GPU attached to Spot Preemptible VMs running in Iowa", 0.22, usage=SPOT),
    {**sku("Nvidia L4 GPU running in Hong Kong", 9.0), "serviceRegions": ["asia-east2"]},
]


def catalog(asked: Asked) -> Answer:
    """Two pages."""
    parts = urlsplit(asked.path)
    assert parts.path == "/v1/services/6F81-5844-456A/skus"
    if "pageToken" in parse_qs(parts.query):
        return 200, json.dumps({"skus": SKUS[4:]}), JSON
    return 200, json.dumps({"skus": SKUS[:4], "nextPageToken": "more"}), JSON


HISTORY = {
    "machineType": "a3-highgpu-1g",
    "priceHistory": [
        {
            "interval": {"startTime": "2026-11-01T00:00:00Z", "endTime": "2026-11-10T00:00:00Z"},
            "listPrice": {"currencyCode": "USD", "units": "9"},
        },
        {
            "interval": {"startTime": "2026-11-10T00:00:00Z", "endTime": "2026-11-22T00:00:00Z"},
            "listPrice": {"currencyCode": "USD", "units": "2", "nanos": 500000000},
        },
    ],
    "preemptionHistory": [
        {
            "interval": {"startTime": "2026-11-20T00:00:00Z", "endTime": "2026-11-21T00:00:00Z"},
            "preemptionRate": 0.25,
        }
    ],
}
ADVICE = {
    "recommendations": [
        {
            "scores": {"obtainability": 0.8, "estimatedUptime": "3600s"},
            "shards": [
                {
                    "zone": "https://www.googleapis.com/compute/v1/projects/p/zones/us-central1-a",
                    "machineType": "g2-standard-4",
                    "instanceCount": 4,
                    "provisioningModel": "SPOT",
                }
            ],
        }
    ]
}


def advice(asked: Asked) -> Answer:
    assert asked.method == "POST"
    start = "/compute/v1/projects/p/regions/us-central1/advice"
    answers = {f"{start}/capacity": ADVICE, f"{start}/capacityHistory": HISTORY}
    return 200, json.dumps(answers[urlsplit(asked.path).path]), JSON


def client(found: Api) -> Any:
    transport = compute_v1.AdviceClient.get_transport_class("rest")
    host = urlsplit(found.url).netloc
    return compute_v1.AdviceClient(
        transport=transport(host=host, url_scheme="http", credentials=AnonymousCredentials())
    )


@pytest.fixture
def source() -> Iterator[tuple[GcpPrices, Api, Api]]:
    with api(catalog) as billing, api(advice) as compute:
        made = GcpPrices(
            project="p",
            credentials=AnonymousCredentials(),
            billing_url=billing.url,
            advice=client(compute),
        )
        yield made, billing, compute


def test_a_machine_costs_what_its_parts_do(source: tuple[GcpPrices, Api, Api]) -> None:
    prices, billing, _ = source
    found = prices.quotes("us-central1", ["g2-standard-4", "g2-standard-24"])
    usd = {(one.instance_type, one.spot): one.usd_per_hour for one in found}
    assert usd["g2-standard-4", False] == pytest.approx(4 * 0.025 + 16 * 0.003 + 0.56)
    assert usd["g2-standard-4", True] == pytest.approx(4 * 0.01 + 16 * 0.001 + 0.22)
    assert usd["g2-standard-24", False] == pytest.approx(24 * 0.025 + 96 * 0.003 + 2 * 0.56)
    assert len(billing.asked) == 2
    with pytest.raises(ConfigError, match="prices nothing that was asked for in 'moon-north1'"):
        prices.quotes("moon-north1", ["g2-standard-4"])
    assert len(billing.asked) == 2  # the catalog is the same for all regions


def test_other_families_have_the_latest_spot_price_of_their_history(
    source: tuple[GcpPrices, Api, Api],
) -> None:
    prices, _, compute = source
    (found,) = prices.quotes("us-central1", ["a3-highgpu-1g"])
    assert (found.spot, found.usd_per_hour) == (True, 2.5)
    asked = json.loads(compute.asked[0].body)
    assert asked["types"] == ["PRICE", "PREEMPTION"]
    assert asked["instanceProperties"]["scheduling"]["provisioningModel"] == "SPOT"


def test_scores_have_the_zone_and_how_many_were_preempted_lately() -> None:
    with api(advice) as compute:
        scorer = GcpScores(project="p", credentials=AnonymousCredentials(), advice=client(compute))
        (found,) = scorer.scores("us-central1", ["g2-standard-4"], nodes=4)
    assert (found.zone, found.obtainable_frac, found.preempted_frac) == ("us-central1-a", 0.8, 0.25)
    asked = json.loads(compute.asked[0].body)
    assert asked["size"] == 4
    assert asked["instanceFlexibilityPolicy"]["instanceSelections"]["any"]["machineTypes"] == [
        "g2-standard-4"
    ]


def refusal(status: int, reason: str) -> Callable[[Asked], Answer]:
    told = {"code": status, "message": "no", "errors": [{"reason": reason, "message": "no"}]}
    return lambda asked: (status, json.dumps({"error": told}), JSON)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (refusal(429, "rateLimitExceeded"), ThrottledError),
        (refusal(403, "rateLimitExceeded"), ThrottledError),
        (refusal(503, "backendError"), ThrottledError),
        (refusal(403, "forbidden"), NotPermittedError),
        (refusal(404, "notFound"), ConfigError),
        (
            lambda asked: (200, json.dumps({"skus": [{"serviceRegions": ["us-central1"]}]}), JSON),
            NotAnswered,
        ),
    ],
)
def test_what_google_refuses_is_one_of_our_errors(
    answer: Callable[[Asked], Answer], kind: type[Exception]
) -> None:
    with api(answer) as found:
        billing = GcpPrices(project="p", credentials=AnonymousCredentials(), billing_url=found.url)
        with pytest.raises(kind):
            billing.quotes("us-central1", ["g2-standard-4"])
        if kind is NotAnswered:
            return
        compute = GcpPrices(project="p", credentials=AnonymousCredentials(), advice=client(found))
        with pytest.raises(kind, match="compute.advice.capacityHistory"):
            compute.quotes("us-central1", ["a3-highgpu-1g"])


def test_no_project_and_no_credentials_are_told_with_the_cure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("GOOGLE_CLOUD_PROJECT", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    with api(advice) as compute:
        made = GcpPrices(credentials=AnonymousCredentials(), advice=client(compute))
        with pytest.raises(ConfigError, match="no project of Google Cloud is set"):
            made.quotes("us-central1", ["a3-highgpu-1g"])
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere.json")
    with pytest.raises(ConfigError, match="no credentials for Google Cloud here"):
        GcpPrices()


def test_what_is_no_region_is_not_asked_about(source: tuple[GcpPrices, Api, Api]) -> None:
    prices, billing, _ = source
    with pytest.raises(ConfigError, match="no region 'us-central1-a'"):
        prices.quotes("us-central1-a", ["g2-standard-4"])
    assert not billing.asked
