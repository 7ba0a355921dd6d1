"""Prices of Azure, from its documented list on loopback."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from spotray.cloud.azure.prices import AzurePrices
from spotray.errors import ConfigError, NotAnswered, ThrottledError
from tests.cloud.shapes import Answer, Asked, api

T4, A100 = "Standard_NC4as_T4_v3", "Standard_NC24ads_A100_v4"


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def item(name: str, usd: float, **more: Any) -> dict[str, Any]:
    """One meter, with the fields that the documentation has."""
    return {
        "currencyCode": "USD",
        "retailPrice": usd,
        "unitPrice": usd,
        "armRegionName": "eastus",
        "productName": "Virtual Machines NCasT4_v3 Series",
        "skuName": name.removeprefix("Standard_").replace("_", " "),
        "armSkuName": name,
        "unitOfMeasure": "1 Hour",
        "type": "Consumption",
        **more,
    }


ITEMS = [
    item(T4, 0.526),
    item(T4, 0.0627, skuName="NC4as T4 v3 Spot"),
    item(T4, 0.71, productName="Virtual Machines NCasT4_v3 Series Windows"),
    item(T4, 0.1, skuName="NC4as T4 v3 Low Priority"),
    item(T4, 2000.0, type="Reservation"),
    item(A100, 3.673),
    item(A100, 0.0, skuName="NC24ads A100 v4 Spot"),
]


def pages(asked: Asked) -> Answer:
    """Two pages; the first names the second."""
    query = parse_qs(urlsplit(asked.path).query)
    half = len(ITEMS) // 2
    if "$skip" in query:
        return 200, json.dumps({"Items": ITEMS[half:], "NextPageLink": None}), {}
    following = f"http://{asked.headers['Host']}/prices?$skip=1"
    return 200, json.dumps({"Items": ITEMS[:half], "NextPageLink": following}), {}


def always(status: int, text: str, **headers: str) -> Callable[[Asked], Answer]:
    return lambda asked: (status, text, headers)


def test_only_linux_by_the_hour_on_spot_and_on_demand_counts() -> None:
    with api(pages) as found:
        quotes = AzurePrices(url=f"{found.url}/prices").quotes("eastus", [T4, A100])
    prices = {(one.instance_type, one.spot): one.usd_per_hour for one in quotes}
    assert prices == {(T4, False): 0.526, (T4, True): 0.0627, (A100, False): 3.673}
    (wanted,) = parse_qs(urlsplit(found.asked[0].path).query)["$filter"]
    assert "armRegionName eq 'eastus'" in wanted
    assert f"armSkuName eq '{T4}' or armSkuName eq '{A100}'" in wanted


def test_many_types_are_asked_about_in_several_questions() -> None:
    with api(pages) as found:
        AzurePrices(url=f"{found.url}/prices").quotes("eastus", [f"Standard_{n}" for n in range(9)])
    assert sum("$filter" in parse_qs(urlsplit(one.path).query) for one in found.asked) == 2


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (always(200, json.dumps({"Items": []})), ConfigError, "sells none of 1 types in 'eastus'"),
        (always(429, "", **{"Retry-After": "7"}), ThrottledError, "429"),
        (always(503, ""), ThrottledError, "503"),
        (always(400, ""), NotAnswered, "400"),
        (always(200, "<html>"), NotAnswered, "no JSON"),
        (always(200, "[]"), NotAnswered, "another shape"),
        (always(200, json.dumps({"Items": [{"armSkuName": T4}]})), NotAnswered, "another shape"),
        (
            always(200, json.dumps({"Items": [item(T4, 1.0)], "NextPageLink": "http://else/"})),
            NotAnswered,
            "next page is at 'else'",
        ),
    ],
)
def test_an_answer_that_is_none_is_one_of_our_errors(
    answer: Callable[[Asked], Answer], kind: type[Exception], said: str
) -> None:
    with api(answer) as found, pytest.raises(kind, match=said) as caught:
        AzurePrices(url=f"{found.url}/prices").quotes("eastus", [T4])
    if "Retry-After" in str(answer(found.asked[0])):
        assert isinstance(caught.value, ThrottledError)
        assert caught.value.retry_after_s == 7


def test_a_region_that_would_change_the_question_is_refused() -> None:
    with pytest.raises(ConfigError, match="Azure has no region"):
        AzurePrices(url="http://127.0.0.1:1").quotes("x' or 1 eq 1", [T4])


def test_nobody_there_is_told() -> None:
    with pytest.raises(NotAnswered, match="does not answer"):
        AzurePrices(url="http://127.0.0.1:1/prices").quotes("eastus", [T4])
