"""What instance types cost, as far as it is known: a dated table, and a user's own rows.

A price that is not in it is unknown; none is guessed. Spot prices move by the hour, so
the table says what a launch may cost, never what it did: that is the ledger's part.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files

from spotray.errors import ConfigError

_COLUMNS = ("cloud", "region", "instance_type", "kind", "usd_low", "usd_high", "date", "source")
_OPTIONAL = ("date", "source")
_KINDS = {"spot": True, "on-demand": False}
_Key = tuple[str, str, str, bool]  # cloud, region, instance type, whether it is spot
ANY_REGION = "*"


@dataclass(frozen=True, kw_only=True)
class PriceRange:
    """What one node costs: between the cheapest and the dearest zone."""

    low_usd_per_hour: float
    high_usd_per_hour: float
    date: str = ""  # when it was read
    source: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.low_usd_per_hour <= self.high_usd_per_hour < math.inf:
            raise ConfigError(
                f"a price from {self.low_usd_per_hour} to {self.high_usd_per_hour}: give two "
                "numbers of at least 0, the lower first"
            )


@dataclass(frozen=True, kw_only=True)
class PriceTable:
    """Prices by cloud, region, instance type and purchase kind."""

    rows: Mapping[_Key, PriceRange] = field(default_factory=dict)

    @classmethod
    def bundled(cls) -> PriceTable:
        """The table that comes with this package; its head says where it is from."""
        text = files("spotray.market").joinpath("prices.csv").read_text(encoding="utf-8")
        return cls.parse(text, name="prices.csv")

    @classmethod
    def parse(cls, text: str, *, name: str) -> PriceTable:
        """The table of a CSV document; lines that begin with ``#`` are left out.

        Args:
            name: what errors call the document.

        Raises:
            ConfigError: a column or a value is wrong; the line is named.
        """
        lines = [(n, line) for n, line in enumerate(text.splitlines(), 1) if _says_something(line)]
        if not lines:
            raise ConfigError(f"{name} has no rows: write {','.join(_COLUMNS)} and rows below")
        head = [word.strip() for word in lines[0][1].split(",")]
        missing = [one for one in _COLUMNS if one not in head and one not in _OPTIONAL]
        unknown = [one for one in head if one not in _COLUMNS]
        if missing or unknown:
            raise ConfigError(
                f"{name}, line {lines[0][0]}: the columns are {', '.join(_COLUMNS)}; "
                + "; ".join(
                    f"{what} {', '.join(which)}"
                    for what, which in (("missing", missing), ("unknown", unknown))
                    if which
                )
            )
        rows: dict[_Key, PriceRange] = {}
        for number, line in lines[1:]:
            cells = [cell.strip() for cell in next(csv.reader([line]))]
            where = f"{name}, line {number}"
            if len(cells) != len(head):
                raise ConfigError(f"{where}: {len(cells)} cells, and {len(head)} columns")
            key, price = _row(dict(zip(head, cells, strict=True)), where)
            rows[key] = price
        return cls(rows=rows)

    def over(self, other: PriceTable) -> PriceTable:
        """This table, and what only the other knows."""
        return PriceTable(rows={**other.rows, **self.rows})

    def find(self, cloud: str, region: str, instance_type: str, *, spot: bool) -> PriceRange | None:
        """What a node costs there, or None if that is not known."""
        for where in (region, ANY_REGION):
            if found := self.rows.get((cloud, where, instance_type, spot)):
                return found
        return None


def sources(prices: Iterable[PriceRange]) -> list[str]:
    """Where prices are from, each once."""
    return sorted({" ".join(filter(None, [one.source, one.date])) for one in prices} - {""})


def _says_something(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _row(cells: Mapping[str, str], where: str) -> tuple[_Key, PriceRange]:
    kind = cells["kind"]
    if kind not in _KINDS:
        raise ConfigError(f"{where}: kind is {kind!r}: write spot or on-demand")
    try:
        low, high = float(cells["usd_low"]), float(cells["usd_high"])
        price = PriceRange(
            low_usd_per_hour=low,
            high_usd_per_hour=high,
            date=cells.get("date", ""),
            source=cells.get("source", ""),
        )
    except (ValueError, ConfigError) as exc:
        raise ConfigError(f"{where}: {exc}") from exc
    return (cells["cloud"], cells["region"], cells["instance_type"], _KINDS[kind]), price
