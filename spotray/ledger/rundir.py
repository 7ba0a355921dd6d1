"""A run's facts from its folder: the job's own journal, and the cluster's that it names."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field

from spotray.errors import ConfigError, JournalError
from spotray.events import Event, JobStarted
from spotray.ledger.journal import JournalReader, has_journal
from spotray.storage import Store

log = logging.getLogger(__name__)

JOURNAL = ("spotray", "journal")  # where it is, below a run's folder


def job_journal(run_dir: Store) -> Store:
    """Where a run keeps its journal."""
    return run_dir.child(*JOURNAL)


@dataclass(frozen=True, kw_only=True)
class RunEvents:
    """What the journals of a run say, at one time."""

    run_dir: str
    events: tuple[Event, ...]  # of all journals, by time
    journals: tuple[str, ...]  # URLs that were read
    damaged_lines: int = 0
    unfinished_lines: int = 0  # whose writer is still at them, or died there
    missing: tuple[str, ...] = field(default=())  # one line for each journal not read


class RunReader:
    """Follows a run's journals as they grow."""

    def __init__(self, run_dir: str | os.PathLike[str] | Store) -> None:
        """Find the journal of a run.

        Args:
            run_dir: the run's folder (``storage_path/name``), or a journal's own folder:
                a path or a URL, or what is there.

        Raises:
            ConfigError: there is none; or the address is wrong.
            JournalError: storage could not be read.
        """
        home = run_dir if isinstance(run_dir, Store) else Store.at(run_dir)
        own = job_journal(home)
        try:
            if not has_journal(own):
                if not has_journal(home):
                    raise ConfigError(
                        f"no journal in {home.url}: looked for {own.url}/*.jsonl and "
                        f"{home.url}/*.jsonl; give the folder storage_path/name of a run"
                    )
                own = home
        except OSError as exc:
            raise JournalError(f"cannot read {home.url}: {exc}") from exc
        self._run_dir = home.url
        self._readers = {own.url: JournalReader(own)}
        self._missing: dict[str, str] = {}
        self._events: list[Event] = []

    def poll(self) -> RunEvents:
        """All that is known now; only what is new is read.

        Raises:
            JournalError: the run's own journal could not be read. The cluster's may be
                gone (`RunEvents.missing` tells): the run's facts still count.
        """
        fresh = self.news()
        if fresh:
            self._events = sorted(self._events + fresh, key=lambda event: event.at_s)
        return RunEvents(
            run_dir=self._run_dir,
            events=tuple(self._events),
            journals=tuple(self._readers),
            damaged_lines=sum(reader.damaged for reader in self._readers.values()),
            unfinished_lines=sum(reader.unfinished for reader in self._readers.values()),
            missing=tuple(self._missing.values()),
        )

    def news(self) -> list[Event]:
        """What came since the last call, by time, and nothing of it is kept here.

        For who follows a run for weeks; `poll` does not tell of it again.

        Raises:
            JournalError: as for `poll`.
        """
        fresh: list[Event] = []
        for url in list(self._readers):
            fresh += self._poll_one(url)
        for event in list(fresh):
            if isinstance(event, JobStarted) and event.cluster_journal:
                fresh += self._open(event.cluster_journal)
        return sorted(fresh, key=lambda event: event.at_s)

    def _open(self, url: str) -> list[Event]:
        try:
            store = Store.at(url)
        except ConfigError as exc:
            self._missing[url] = f"cluster journal {url}: {exc}"
            return []
        if store.url in self._readers:
            return []
        self._readers[store.url] = JournalReader(store)
        events = self._poll_one(store.url)
        if not events:
            self._missing.setdefault(store.url, f"cluster journal {store.url} is empty or gone")
        return events

    def _poll_one(self, url: str) -> list[Event]:
        try:
            events = self._readers[url].poll()
        except JournalError as exc:
            if url == next(iter(self._readers)):
                raise
            self._missing[url] = f"cluster journal: {exc}"
            return []
        if events:
            self._missing.pop(url, None)
        return events


def load_run(run_dir: str | os.PathLike[str]) -> RunEvents:
    """All facts about a run: those of its own journal and of its cluster's.

    Raises:
        ConfigError: ``run_dir`` holds no journal.
        JournalError: storage could not be read.
    """
    return RunReader(run_dir).poll()
