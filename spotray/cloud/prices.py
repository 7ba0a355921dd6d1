"""What clouds say of their prices now: values and protocols, no SDK."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from spotray.errors import ConfigError
from spotray.market.prices import PriceRange, PriceTable


@dataclass(frozen=True, kw_only=True)
class Quote:
    """One price as a cloud told it."""

    cloud: str
    region: str
    zone: str  # empty: of the whole region
    instance_type: str
    spot: bool
    usd_per_hour: float
    source: str  # "EC2 DescribeSpotPriceHistory"

    def __post_init__(self) -> None:
        if not 0 < self.usd_per_hour < math.inf:
            raise ConfigError(
                f"{self.cloud} {self.instance_type} in {self.zone or self.region}: a price of "
                f"{self.usd_per_hour} USD per hour: no price is such"
            )


@dataclass(frozen=True, kw_only=True)
class Score:
    """How likely spot nodes are to be had in a zone, as a cloud guesses."""

    cloud: str
    region: str
    zone: str  # empty: of the whole region
    instance_types: tuple[str, ...]  # any of them
    nodes: int
    obtainable_frac: float  # 0..1; AWS's 1 to 10 by ten
    preempted_frac: float | None = None  # of spot nodes that stopped, lately; None: not told


class PriceSource(Protocol):
    """Asks one cloud for its prices. The fake is `spotray.cloud.fake.FakePrices`."""

    cloud: str

    def quotes(self, region: str, instance_types: Sequence[str]) -> list[Quote]:
        """What these types cost in a region now; a type that it does not sell has no quote.

        Raises:
            ConfigError: no credentials, or no such region.
            NotPermittedError: these credentials may not ask.
            ThrottledError: ask again later.
            NotAnswered: no answer, or one that nobody understands.
        """
        ...


class PlacementScorer(Protocol):
    """Asks one cloud how likely spot nodes are to be had."""

    cloud: str

    def scores(self, region: str, instance_types: Sequence[str], *, nodes: int) -> list[Score]:
        """By zone, likeliest first.

        Raises: as `PriceSource.quotes`.
        """
        ...


def price_table(quotes: Iterable[Quote], *, at_s: float) -> PriceTable:
    """Quotes by region: from the cheapest zone to the dearest.

    Args:
        quotes: of any clouds.
        at_s: when they were told, Unix seconds.
    """
    date = f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M} UTC"
    found: dict[tuple[str, str, str, bool], list[Quote]] = {}
    for one in quotes:
        found.setdefault((one.cloud, one.region, one.instance_type, one.spot), []).append(one)
    return PriceTable(
        rows={
            key: PriceRange(
                low_usd_per_hour=min(one.usd_per_hour for one in same),
                high_usd_per_hour=max(one.usd_per_hour for one in same),
                date=date,
                source=same[0].source,
                known_s=at_s,
            )
            for key, same in found.items()
        }
    )
