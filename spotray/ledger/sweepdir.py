"""A sweep's facts from its folder: those of each trial's runs, and those about the nodes.

```
<sweep>/spotray/sweep.json             name, metric, mode
<sweep>/spotray/journal/               the sweep's own start and end, if it tells them
<sweep>/spotray/nodes/                 facts about nodes, where the cluster has no journal
<sweep>/trials/<run>/spotray/journal/  one ordinary run each
```
"""

from __future__ import annotations

import json
import logging
import os
from typing import Any

from spotray.errors import ConfigError, JournalError
from spotray.events import Event, JobEnded, JobStarted
from spotray.ledger.journal import JournalReader, has_journal
from spotray.ledger.rundir import job_journal
from spotray.ledger.sweep import SweepEvents
from spotray.storage import Store

log = logging.getLogger(__name__)

TRIALS = "trials"  # the folder of the runs, below a sweep's folder
NODES = ("spotray", "nodes")  # where the journal about nodes is
DESCRIPTION = "spotray/sweep.json"


Folder = str | os.PathLike[str] | Store  # a path or a URL, or what is there


def is_sweep(folder: Folder) -> bool:
    """Whether a folder is a sweep's, by its own file, or by the runs in it.

    Raises:
        ConfigError: the address is wrong.
        JournalError: storage could not be read.
    """
    home = _store(folder)
    try:
        return home.exists(DESCRIPTION) or any(
            has_journal(job_journal(home.child(TRIALS, run))) for run in home.folders(TRIALS)
        )
    except OSError as exc:
        raise JournalError(f"cannot read {home.url}: {exc}") from exc


class SweepReader:
    """Follows a sweep's journals as they grow, and the runs as they begin."""

    def __init__(self, sweep_dir: Folder) -> None:
        """Take a sweep's folder (``storage_path/name``).

        Raises:
            ConfigError: the address is wrong.
        """
        self._home = _store(sweep_dir)
        self._runs: dict[str, JournalReader] = {}
        self._own = job_journal(self._home)
        self._own_reader = JournalReader(self._own)
        nodes = self._home.child(*NODES)
        self._clusters = {nodes.url: JournalReader(nodes)}
        self._named: set[str] = set()  # journals that a run says are there
        self._events: dict[str, list[Event]] = {}
        self._about_all: list[Event] = []
        self._description: dict[str, Any] | None = None
        self._missing: dict[str, str] = {}

    def poll(self) -> SweepEvents:
        """All that is known now; only what is new is read.

        One listing of the runs, and for each journal one listing and what it has more.

        Raises:
            JournalError: the sweep's folder could not be read. A single journal that
                cannot is told in `SweepEvents.missing`; the others still count.
        """
        try:
            for run in self._home.folders(TRIALS):
                if run not in self._runs:
                    store = job_journal(self._home.child(TRIALS, run))
                    self._runs[run] = JournalReader(store)
            description = self._describe()
        except OSError as exc:
            raise JournalError(f"cannot read {self._home.url}: {exc}") from exc
        fresh_own = self._poll_one(self._own.url, "sweep", self._own_reader)
        self._open_named(fresh_own)
        for run, reader in self._runs.items():
            fresh = self._poll_one(run, f"trial {run}", reader)
            self._open_named(fresh)
            self._events[run] = _merged(self._events.get(run, []), fresh)
        of_nodes = [
            event
            for url, reader in self._clusters.items()
            for event in self._poll_one(url, "cluster journal", reader)
            if not isinstance(event, JobStarted | JobEnded)  # of the cluster's other jobs
        ]
        self._about_all = _merged(self._about_all, fresh_own + of_nodes)
        return SweepEvents(
            sweep_dir=self._home.url,
            name=_text(description, "name") or "",
            metric=_text(description, "metric"),
            mode=_text(description, "mode"),
            runs={run: tuple(events) for run, events in self._events.items() if events},
            shared=tuple(self._about_all),
            damaged_lines=sum(
                reader.damaged
                for reader in [self._own_reader, *self._runs.values(), *self._clusters.values()]
            ),
            missing=tuple(self._missing.values()),
        )

    def _open_named(self, events: list[Event]) -> None:
        """Begin to read the journals about nodes that jobs say are there."""
        for event in events:
            if not isinstance(event, JobStarted) or not event.cluster_journal:
                continue
            url = event.cluster_journal
            try:
                store = Store.at(url)
            except ConfigError as exc:
                self._missing[url] = f"cluster journal {url}: {exc}"
                continue
            if store.url not in self._clusters:
                self._clusters[store.url] = JournalReader(store)
                self._named.add(store.url)
                self._missing[store.url] = f"cluster journal {store.url} is empty or gone"

    def _poll_one(self, key: str, what: str, reader: JournalReader) -> list[Event]:
        try:
            events = reader.poll()
        except JournalError as exc:
            self._missing[key] = f"{what}: {exc}"
            return []
        if events or key not in self._named:
            self._missing.pop(key, None)
        return events

    def _describe(self) -> dict[str, Any]:
        """What the sweep says of itself; it is written once, so it is read once."""
        if self._description is None and self._home.exists(DESCRIPTION):
            try:
                told = json.loads(self._home.read(DESCRIPTION))
            except ValueError as exc:
                told = None
                log.warning("%s/%s is damaged: %s", self._home.url, DESCRIPTION, exc)
            self._description = told if isinstance(told, dict) else {}
            if not isinstance(told, dict):
                self._missing[DESCRIPTION] = (
                    f"{self._home.url}/{DESCRIPTION} is damaged: the sweep's metric is unknown"
                )
        return self._description or {}


def load_sweep(sweep_dir: Folder) -> SweepEvents:
    """All facts about a sweep.

    Raises:
        ConfigError: the folder is no sweep's.
        JournalError: storage could not be read.
    """
    if not is_sweep(sweep_dir):
        raise ConfigError(
            f"no sweep in {_store(sweep_dir).url}: looked for {DESCRIPTION} and "
            f"{TRIALS}/*/spotray/journal/*.jsonl; give the folder storage_path/name of a sweep"
        )
    return SweepReader(sweep_dir).poll()


def _store(folder: Folder) -> Store:
    return folder if isinstance(folder, Store) else Store.at(folder)


def _merged(known: list[Event], fresh: list[Event]) -> list[Event]:
    return sorted([*known, *fresh], key=lambda event: event.at_s) if fresh else known


def _text(description: dict[str, Any], key: str) -> str | None:
    value = description.get(key)
    return value if isinstance(value, str) else None
