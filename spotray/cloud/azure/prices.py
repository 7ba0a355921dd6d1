"""What Azure's machines cost now, by its public list of retail prices. No account is needed.

Source:
    "Azure Retail Prices overview", Microsoft Cost Management REST documentation, 2026.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

from spotray.cloud.codes import RETRY_S
from spotray.cloud.prices import Quote
from spotray.errors import ConfigError, NotAnswered, ThrottledError

_URL = "https://prices.azure.com/api/retail/prices"
_VERSION = "2023-01-01-preview"
_TIMEOUT_S = 30.0
_AT_ONCE = 8  # types of one question: its address would grow too long
_MOST_PAGES = 100


class AzurePrices:
    """`spotray.cloud.prices.PriceSource` of Azure. A region is asked about as a whole."""

    cloud = "azure"

    def __init__(self, *, url: str = _URL) -> None:
        self._url = url

    def quotes(self, region: str, instance_types: Sequence[str]) -> list[Quote]:
        if not region.isalnum():
            raise ConfigError(f"Azure has no region {region!r}: write it as eastus or westeurope")
        found: dict[tuple[str, bool], float] = {}
        any_item = False
        for first in range(0, len(instance_types), _AT_ONCE):
            names = instance_types[first : first + _AT_ONCE]
            for item in self._items(region, names):
                any_item = True
                if (price := _hourly(item)) is not None:
                    key, usd = price
                    # Several meters of one type may be current for a while: the lower is paid.
                    found[key] = min(usd, found.get(key, usd))
        if instance_types and not any_item:
            raise ConfigError(
                f"Azure sells none of {len(instance_types)} types in {region!r}: is that a region?"
            )
        return [
            Quote(
                cloud=self.cloud,
                region=region,
                zone="",
                instance_type=name,
                spot=spot,
                usd_per_hour=usd,
                source="Azure Retail Prices",
            )
            for (name, spot), usd in sorted(found.items())
            if name in instance_types
        ]

    def _items(self, region: str, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        any_of = " or ".join(f"armSkuName eq '{name}'" for name in names)
        wanted = (
            "serviceName eq 'Virtual Machines' and priceType eq 'Consumption' and "
            f"armRegionName eq '{region}' and ({any_of})"
        )
        url = f"{self._url}?{urlencode({'api-version': _VERSION, '$filter': wanted})}"
        for _ in range(_MOST_PAGES):
            page = self._page(url)
            try:
                yield from page["Items"]
                following = page.get("NextPageLink")
            except (KeyError, TypeError, AttributeError) as exc:
                raise NotAnswered(f"{self._host}: an answer of another shape: {exc!r}") from exc
            if not following:
                return
            url = str(following)
            if urlsplit(url).netloc != self._host:
                raise NotAnswered(f"{self._host}: its next page is at {urlsplit(url).netloc!r}")
        raise NotAnswered(f"{self._host}: more than {_MOST_PAGES} pages")

    @property
    def _host(self) -> str:
        return urlsplit(self._url).netloc

    def _page(self, url: str) -> Any:
        try:
            with urlopen(Request(url), timeout=_TIMEOUT_S) as response:
                return json.load(response)
        except HTTPError as exc:
            if exc.code == 429 or exc.code >= 500:
                raise ThrottledError(
                    f"azure: {self._host} answers {exc.code}: {exc.reason}",
                    market="azure",
                    code=str(exc.code),
                    retry_after_s=_seconds(exc.headers.get("Retry-After")),
                ) from exc
            raise NotAnswered(f"azure: {self._host} answers {exc.code}: {exc.reason}") from exc
        except OSError as exc:
            raise NotAnswered(f"azure: {self._host} does not answer: {exc}") from exc
        except ValueError as exc:
            raise NotAnswered(f"azure: {self._host} answers no JSON: {exc}") from exc


def _hourly(item: dict[str, Any]) -> tuple[tuple[str, bool], float] | None:
    """Type, whether it is spot, and price of an item; None if it is of another kind."""
    try:
        product, sku = str(item["productName"]), str(item["skuName"])
        usd, unit, kind = float(item["retailPrice"]), item["unitOfMeasure"], item["type"]
        name = str(item["armSkuName"])
    except (KeyError, TypeError, ValueError) as exc:
        raise NotAnswered(f"azure: a price of another shape: {exc!r}") from exc
    # Low priority is an older kind that only Batch sells.
    other = "Windows" in product or "Low Priority" in sku
    if other or kind != "Consumption" or unit != "1 Hour" or usd <= 0:
        return None
    return (name, sku.endswith(" Spot")), usd


def _seconds(text: str | None) -> float:
    try:
        return max(0.0, float(text or RETRY_S))
    except ValueError:  # a date, of which nobody needs the second
        return RETRY_S
