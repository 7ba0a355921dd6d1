"""Where a node provider's facts go: the journal that ``SPOTRAY_JOURNAL`` names, if it does."""

from __future__ import annotations

import os
import socket
import threading

from spotray.events import Event
from spotray.ledger.late import LateJournal


class Teller:
    """Takes events from any thread and returns at once; without a journal it drops them."""

    def __init__(self, cloud: str, url: str | None = None) -> None:
        """Nothing is opened before there is an event.

        Args:
            cloud: part of the writer's name.
            url: the journal's folder; None: what ``SPOTRAY_JOURNAL`` says now.
        """
        url = os.environ.get("SPOTRAY_JOURNAL", "") if url is None else url
        # `ray up` on the head and Ray's monitor may both be there: the process is in the name.
        host = "".join(c if c.isalnum() else "-" for c in socket.gethostname()).strip("-")
        writer = f"launches-{cloud}-{host or 'host'}-{os.getpid()}"
        self._journal = LateJournal(url, writer=writer) if url else None
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        if self._journal is not None:
            with self._lock:
                self._journal.append(event)

    def close(self, *, timeout_s: float = 10.0) -> bool:
        """Write what is left; False if storage did not take it in time. No more events after."""
        return self._journal is None or self._journal.close(timeout_s=timeout_s)
