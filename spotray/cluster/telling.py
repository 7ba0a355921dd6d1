"""Where a node provider's facts go: the journal that ``SPOTRAY_JOURNAL`` names, if it does."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable

from spotray.events import Event
from spotray.ledger.late import LateJournal


def teller(cloud: str, url: str | None = None) -> Callable[[Event], None]:
    """Takes events from any thread and returns at once; without a journal it drops them.

    Args:
        cloud: part of the writer's name.
        url: the journal's folder; None: what ``SPOTRAY_JOURNAL`` says now.
    """
    url = os.environ.get("SPOTRAY_JOURNAL", "") if url is None else url
    if not url:
        return lambda event: None
    # `ray up` on the head and Ray's monitor may both be there: the process is in the name.
    host = "".join(c if c.isalnum() else "-" for c in socket.gethostname()).strip("-") or "host"
    journal = LateJournal(url, writer=f"launches-{cloud}-{host}-{os.getpid()}")
    lock = threading.Lock()

    def tell(event: Event) -> None:
        with lock:
            journal.append(event)

    return tell
