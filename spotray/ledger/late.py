"""A journal that costs an idle process nothing: opened by its first event, in a thread."""

from __future__ import annotations

import logging
import queue
import threading
from typing import TYPE_CHECKING

from spotray.errors import SpotrayError
from spotray.events import Event

if TYPE_CHECKING:
    from spotray.ledger.journal import JournalWriter

log = logging.getLogger(__name__)

_FLUSH_INTERVAL_S = 0.5  # events are few, and the node may die soon after one
_RETRY_S = 5.0


class LateJournal:
    """Takes events at once and for ever; storage is somebody else's thread's trouble.

    Storage code is large (pyarrow, 45 MiB) and may hang on a network, so it is neither
    loaded before there is an event nor ever waited for by `append`.
    """

    def __init__(self, url: str, *, writer: str) -> None:
        """Nothing is opened yet. ``url``: the journal's folder, as `Store.at` takes it."""
        self._url, self._writer = url, writer
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="late-journal", daemon=True)
        self._started = False

    def append(self, event: Event) -> None:
        """Take an event; returns at once. For one thread at a time."""
        self._events.put(event)
        if not self._started:
            self._started = True
            self._thread.start()

    def close(self, *, timeout_s: float) -> bool:
        """Write what is left; False if storage did not take it in time. No more events after."""
        self._closing.set()
        if not self._started:
            return True
        self._events.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        writer = self._opened()
        if writer is None:
            return
        while (event := self._events.get()) is not None:
            writer.append(event)
        try:
            writer.close()
        except SpotrayError as exc:
            log.error("last facts are lost: %s", exc)

    def _opened(self) -> JournalWriter | None:
        """The writer, as soon as it can be had; None if the end comes first."""
        from spotray.ledger.journal import JournalWriter
        from spotray.storage import Store

        said = False
        while True:
            try:
                return JournalWriter(
                    Store.at(self._url), writer=self._writer, flush_interval_s=_FLUSH_INTERVAL_S
                )
            except (SpotrayError, OSError) as exc:
                log.log(
                    logging.DEBUG if said else logging.ERROR,
                    "journal %s cannot be opened, facts wait in memory: %s",
                    self._url,
                    exc,
                )
                said = True
            if self._closing.wait(_RETRY_S):
                log.error("journal %s was never opened: this node's facts are lost", self._url)
                return None
