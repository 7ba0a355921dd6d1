"""What instance types cost, as far as it is known: a dated table, and a user's own rows.

A price that is not in it is unknown; none is guessed. Spot prices move by the hour, so
the table says what a launch may cost, never what it did: that is the ledger's part.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from importlib.resources import files

from spotray.errors import ConfigError
from spotray.market.table import read_table

_COLUMNS = ("cloud", "region", "instance_type", "kind", "usd_low", "usd_high", "date", "source")
_OPTIONAL = ("date", "source")
_KINDS = {"spot": True, "on-demand": False}
_Key = tuple[str, str, str, bool]  # cloud, region, instance type, whether it is spot
ANY_REGION = "*"
# No price of prices.csv is newer. Its sources are not dated to the day: change both together.
SHIPPED_ON = "2026-11-22"


@dataclass(frozen=True, kw_only=True)
class PriceRange:
    """What one node costs: between the cheapest and the dearest zone."""

    low_usd_per_hour: float
    high_usd_per_hour: float
    date: str = ""  # when it was read
    source: str = ""
    known_s: float | None = None  # Unix seconds: it is not newer; None: nobody knows
    is_shipped: bool = False  # with this package

    def __post_init__(self) -> None:
        if not 0 <= self.low_usd_per_hour <= self.high_usd_per_hour < math.inf:
            raise ConfigError(
                f"a price from {self.low_usd_per_hour} to {self.high_usd_per_hour}: give two "
                "numbers of at least 0, the lower first"
            )

    @property
    def middle_usd_per_hour(self) -> float:
        """Between the cheapest and the dearest zone."""
        return (self.low_usd_per_hour + self.high_usd_per_hour) / 2


@dataclass(frozen=True, kw_only=True)
class PriceTable:
    """Prices by cloud, region, instance type and purchase kind."""

    rows: Mapping[_Key, PriceRange] = field(default_factory=dict)

    @classmethod
    def bundled(cls) -> PriceTable:
        """The table that comes with this package; its head says where it is from."""
        text = files("spotray.market").joinpath("prices.csv").read_text(encoding="utf-8")
        known_s = datetime.fromisoformat(f"{SHIPPED_ON}T00:00+00:00").timestamp()
        rows = cls.parse(text, name="prices.csv").rows
        return cls(
            rows={
                key: replace(price, known_s=known_s, is_shipped=True) for key, price in rows.items()
            }
        )

    @classmethod
    def parse(cls, text: str, *, name: str) -> PriceTable:
        """The table of a CSV document; lines that begin with ``#`` are left out.

        Args:
            name: what errors call the document.

        Raises:
            ConfigError: a column or a value is wrong; the line is named.
        """
        rows: dict[_Key, PriceRange] = {}
        for where, cells in read_table(text, name=name, columns=_COLUMNS, optional=_OPTIONAL):
            key, price = _row(cells, where)
            rows[key] = price
        return cls(rows=rows)

    def over(self, other: PriceTable) -> PriceTable:
        """This table, and what only the other knows."""
        return PriceTable(rows={**other.rows, **self.rows})

    def newest(self, other: PriceTable) -> PriceTable:
        """All that either knows; of a price that both know the newer, this table's if in doubt."""
        newer = {
            key: price
            for key, price in self.rows.items()
            if (kept := other.rows.get(key)) is None or _known_s(price) >= _known_s(kept)
        }
        return PriceTable(rows=newer).over(other)

    def doubtful(self) -> list[str]:
        """Spot prices above on-demand of the same type and place, one line each.

        They happen, for an hour; in a table they are mostly a slip.
        """
        return [
            f"{cloud} {name} in {region}: spot at {price.low_usd_per_hour:g} is above on-demand "
            f"at {other.high_usd_per_hour:g}"
            for (cloud, region, name, spot), price in self.rows.items()
            if spot
            and (other := self.find(cloud, region, name, spot=False)) is not None
            and price.low_usd_per_hour > other.high_usd_per_hour
        ]

    def find(self, cloud: str, region: str, instance_type: str, *, spot: bool) -> PriceRange | None:
        """What a node costs there, or None if that is not known."""
        for where in (region, ANY_REGION):
            if found := self.rows.get((cloud, where, instance_type, spot)):
                return found
        return None


def _known_s(price: PriceRange) -> float:
    return -math.inf if price.known_s is None else price.known_s


def sources(prices: Iterable[PriceRange], *, now_s: float | None = None) -> list[str]:
    """Where prices are from, each once; with their age if it is said what time it is.

    >>> asked = PriceRange(low_usd_per_hour=1, high_usd_per_hour=1, source="EC2", known_s=0.0)
    >>> sources([asked], now_s=7200.0)
    ['EC2, asked 2 h ago']
    """
    return sorted({_source(one, now_s) for one in prices} - {""})


def _source(price: PriceRange, now_s: float | None) -> str:
    words = " ".join(filter(None, [price.source, price.date]))
    if not words or now_s is None or price.known_s is None:
        return words
    age_s = max(0.0, now_s - price.known_s)  # two clocks may differ a little
    if price.is_shipped:
        return f"{words}, shipped {SHIPPED_ON}, {age_s // 86400:.0f} days ago"
    if age_s >= 2 * 86400:
        return f"{words}, asked {age_s / 86400:.0f} days ago"
    if age_s >= 2 * 3600:
        return f"{words}, asked {age_s / 3600:.0f} h ago"
    return f"{words}, asked {age_s / 60:.0f} min ago"


def _row(cells: Mapping[str, str], where: str) -> tuple[_Key, PriceRange]:
    kind = cells["kind"]
    if kind not in _KINDS:
        raise ConfigError(f"{where}: kind is {kind!r}: write spot or on-demand")
    try:
        low, high = float(cells["usd_low"]), float(cells["usd_high"])
        if not low > 0:
            raise ConfigError(f"a price of {low:g} USD per hour: give a number above 0")
        price = PriceRange(
            low_usd_per_hour=low,
            high_usd_per_hour=high,
            date=cells.get("date", ""),
            source=cells.get("source", ""),
        )
    except (ValueError, ConfigError) as exc:
        raise ConfigError(f"{where}: {exc}") from exc
    return (cells["cloud"], cells["region"], cells["instance_type"], _KINDS[kind]), price
