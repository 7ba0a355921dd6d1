"""The lives of spot nodes that the journals under a folder tell of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spotray.errors import ConfigError, JournalError
from spotray.events import JobStarted
from spotray.ledger.journal import has_journal, read_journal
from spotray.market.lives import NodeLife, node_lives
from spotray.storage import Store


@dataclass(frozen=True, kw_only=True)
class ToldLives:
    """What one journal says. ``source``: its URL."""

    source: str
    lives: tuple[NodeLife, ...]


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """What all journals under some folders say."""

    told: tuple[ToldLives, ...]
    missing: tuple[str, ...]  # one line for each journal that was named and not read


def gather(urls: Iterable[str]) -> Gathered:
    """Read every journal in or below each folder, and those of clusters that they name.

    Args:
        urls: folders: of runs, of journals, or above many of them; paths or URLs.

    Raises:
        ConfigError: a folder has no journal in or below it.
        JournalError: storage cannot be read.
    """
    told: dict[str, ToldLives] = {}
    named: set[str] = set()
    for url in urls:
        home = Store.at(url)
        found = _journals(home)
        if not found:
            raise ConfigError(
                f"no journal in {home.url} or below it: give the folder of a run, of a cluster's "
                "journal, or one above them"
            )
        for store in found:
            events = read_journal(store)
            told[store.url] = ToldLives(source=store.url, lives=tuple(node_lives(events)))
            named.update(
                one.cluster_journal
                for one in events
                if isinstance(one, JobStarted) and one.cluster_journal
            )
    missing = []
    for url in sorted(named):
        try:
            store = Store.at(url)
            if store.url not in told:
                events = read_journal(store)
                told[store.url] = ToldLives(source=store.url, lives=tuple(node_lives(events)))
        except (ConfigError, JournalError) as exc:
            missing.append(f"cluster journal {url}: {exc}")
    return Gathered(told=tuple(told.values()), missing=tuple(missing))


def _journals(home: Store) -> list[Store]:
    try:
        folders = {name.rpartition("/")[0] for name, _ in home.list() if name.endswith(".jsonl")}
        stores = [home.child(folder) for folder in sorted(folders)]
        return [store for store in stores if has_journal(store)]
    except OSError as exc:
        raise JournalError(f"cannot read {home.url}: {exc}") from exc
