"""What the cluster's nodes taught, kept where the next cluster finds it."""

from __future__ import annotations

import logging
import threading

from spotray.errors import ConfigError, JournalError
from spotray.ledger.lifetimes import gather_and_keep

log = logging.getLogger(__name__)

_EVERY_S = 900.0  # a cluster that ends without a word has told all but that


class BookKeeper:
    """Copies the lives of spot nodes from the cluster's journal to a book, now and then."""

    def __init__(self, journal: str, book: str) -> None:
        """Nothing is read yet.

        Args:
            journal: folder of the cluster's journal; a path or a URL.
            book: folder of the book, the same for several clusters.
        """
        self.journal, self.book = journal, book

    def run(self, stop: threading.Event, *, every_s: float = _EVERY_S) -> None:
        """Until ``stop`` is set."""
        while not stop.wait(every_s):
            try:
                self.keep()
            except Exception:  # nobody else keeps it
                log.exception("the book waits")

    def keep(self) -> bool:
        """Whether all that the journal tells is in the book now; what failed is logged."""
        try:
            known = gather_and_keep([self.journal], book=self.book)
        except (ConfigError, JournalError) as exc:
            log.warning("the book waits: %s", exc)
            return False
        for missing in known.missing:
            log.warning("the book waits: %s", missing)
        return not known.missing
