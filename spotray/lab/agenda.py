"""What is to happen later: actions with a time, done in order by one thread."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)


class Agenda:
    """Runs each action at its time, once started. Close it to drop what is left."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="lab-agenda", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run ``action`` in ``delay_s`` seconds; one that fails is logged."""
        with self._changed:
            due_s = time.monotonic() + delay_s
            heapq.heappush(self._due, (due_s, next(self._number), action))
            self._changed.notify()

    def close(self) -> None:
        """Drop what is left, and wait for the action that runs now."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _work(self) -> None:
        while (action := self._next()) is not None:
            try:
                action()
            except Exception:  # the others' time comes all the same
                log.exception("an action of the lab failed")

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._closed:
                wait_s = self._due[0][0] - time.monotonic() if self._due else None
                if wait_s is not None and wait_s <= 0:
                    return heapq.heappop(self._due)[2]
                self._changed.wait(wait_s)
        return None
