"""The lives of spot nodes that the journals under a folder tell of, and where they are kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spotray.errors import ConfigError, JournalError
from spotray.events import JobStarted
from spotray.ledger.journal import has_journal, read_journal
from spotray.market.lives import LivesBook, NodeLife, merged, node_lives
from spotray.storage import Store

BOOK = "hazards"  # the folder of a storage path in which its book is


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


@dataclass(frozen=True, kw_only=True)
class Known:
    """All that is known of spot nodes' lives."""

    lives: tuple[NodeLife, ...]
    books: tuple[str, ...]  # URLs of the books that have them now
    missing: tuple[str, ...]  # one line for each journal not read, or book not written


def gather_and_keep(urls: Sequence[str], *, book: str = "") -> Known:
    """Read the journals of storage paths, and keep what they tell in a book.

    Args:
        urls: as `gather` takes them; one whose journals are gone may have its book only.
        book: folder of a book; empty: each path has its own, in its folder `BOOK`.

    Raises:
        ConfigError: a path has neither a journal nor a book.
        JournalError: storage cannot be read, or a book is damaged.
    """
    if book and not urls:
        store = Store.at(book)
        kept = tuple(LivesBook(store).lives())
        return Known(lives=kept, books=(store.url,) if kept else (), missing=())
    lives: list[NodeLife] = []
    missing: list[str] = []
    books: dict[str, None] = {}
    for url in urls:
        home = Store.at(book) if book else Store.at(url).child(BOOK)
        mine = LivesBook(home)
        before = mine.lives()
        lives += before
        try:
            gathered = gather([url])
        except ConfigError:
            if book or not before:
                raise
            gathered = Gathered(told=(), missing=())
        missing += gathered.missing
        news = [told for told in gathered.told if told.lives]
        lives += [life for told in news for life in told.lives]
        try:
            for told in news:
                mine.put(told.source, told.lives)
        except JournalError as exc:  # what was read can be told all the same
            missing.append(str(exc))
        else:
            books.update({home.url: None} if before or news else {})
    return Known(lives=tuple(merged(lives)), books=tuple(books), missing=tuple(missing))


def _journals(home: Store) -> list[Store]:
    try:
        folders = {name.rpartition("/")[0] for name, _ in home.list() if name.endswith(".jsonl")}
        stores = [home.child(folder) for folder in sorted(folders)]
        return [store for store in stores if has_journal(store)]
    except OSError as exc:
        raise JournalError(f"cannot read {home.url}: {exc}") from exc
