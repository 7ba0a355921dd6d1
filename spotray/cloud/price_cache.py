"""Prices that clouds told, kept on this machine with their age."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotray.cloud.prices import Quote, price_table
from spotray.errors import ConfigError
from spotray.folders import user_folder, write_whole
from spotray.market.prices import PriceTable

FRESH_S = 3600.0  # a price that is younger is not asked for again


@dataclass(frozen=True, kw_only=True)
class Told:
    """What one cloud said of one region at one time."""

    cloud: str
    region: str
    at_s: float  # Unix seconds
    types: tuple[str, ...]  # that were asked for; one that is not sold there has no quote
    quotes: tuple[Quote, ...]


class PriceCache:
    """One file for each cloud and region. A file that cannot be read counts as none."""

    def __init__(self, folder: Path | None = None) -> None:
        """``folder``: default: that of the user; it is made when something is kept."""
        self.folder = folder or user_folder("cache") / "prices"
        self.unreadable: list[Path] = []

    def all(self) -> list[Told]:
        """Everything that is kept, by cloud and region, the oldest first."""
        return [told for file in sorted(self.folder.glob("*.json")) for told in self._read(file)]

    def table(self) -> PriceTable:
        """All that is kept as a price table, each price with the time at which it was told."""
        table = PriceTable()
        for told in sorted(self.all(), key=lambda one: one.at_s):
            table = price_table(told.quotes, at_s=told.at_s).over(table)
        return table

    def known(self) -> PriceTable:
        """What is kept, where it is newer than what comes with this package; else that."""
        return self.table().newest(PriceTable.bundled())

    def age_s(self, cloud: str, region: str, types: Iterable[str], *, now_s: float) -> float:
        """Seconds since the first of the types was asked for; infinite if one never was."""
        asked = {
            name: told.at_s for told in self._read(self._file(cloud, region)) for name in told.types
        }
        return max((now_s - asked.get(name, -math.inf) for name in types), default=math.inf)

    def keep(self, told: Told) -> None:
        """Keep it, in the place of what was kept of the same types.

        Raises:
            ConfigError: it cannot be written.
        """
        file = self._file(told.cloud, told.region)
        kept = [_without(one, told.types) for one in self._read(file)]
        batches = [one for one in kept if one.types] + [told]
        text = json.dumps([dataclasses.asdict(one) for one in batches])
        try:
            write_whole(file, text)
        except OSError as exc:
            raise ConfigError(f"cannot write {file}: {exc.strerror or exc}") from exc

    def _file(self, cloud: str, region: str) -> Path:
        return self.folder / f"{cloud}_{region}.json"

    def _read(self, file: Path) -> list[Told]:
        try:
            raw: Any = json.loads(file.read_text(encoding="utf-8"))
            return [
                Told(
                    cloud=str(one["cloud"]),
                    region=str(one["region"]),
                    at_s=float(one["at_s"]),
                    types=tuple(map(str, one["types"])),
                    quotes=tuple(Quote(**quote) for quote in one["quotes"]),
                )
                for one in raw
            ]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError, KeyError, ConfigError):
            if file not in self.unreadable:
                self.unreadable.append(file)
            return []


def _without(told: Told, types: Sequence[str]) -> Told:
    return dataclasses.replace(
        told,
        types=tuple(name for name in told.types if name not in types),
        quotes=tuple(one for one in told.quotes if one.instance_type not in types),
    )
