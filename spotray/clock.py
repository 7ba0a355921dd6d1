"""Time as an argument: the same code waits for real, or in no time at all in a test."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Where a component reads the time and where it waits."""

    def now_s(self) -> float:
        """Seconds since the Unix epoch."""
        ...

    def sleep(self, duration_s: float) -> None:
        """Return after ``duration_s`` seconds of this clock."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now_s(self) -> float:
        return time.time()

    def sleep(self, duration_s: float) -> None:
        time.sleep(duration_s)


class FakeClock:
    """Virtual time: ``sleep`` returns at once and moves the clock."""

    def __init__(self, start_s: float = 1_700_000_000.0) -> None:
        self._now_s = start_s

    def now_s(self) -> float:
        return self._now_s

    def sleep(self, duration_s: float) -> None:
        self.advance(duration_s)

    def advance(self, duration_s: float) -> None:
        """Move the clock forward by ``duration_s`` seconds, >= 0."""
        if duration_s < 0:
            raise ValueError(f"time does not run backwards: {duration_s} s")
        self._now_s += duration_s


def wait_until(
    ready: Callable[[], bool], *, timeout_s: float, clock: Clock, poll_s: float = 0.1
) -> bool:
    """Poll ``ready`` until it is true; False if ``timeout_s`` passes first."""
    deadline_s = clock.now_s() + timeout_s
    while not ready():
        if clock.now_s() >= deadline_s:
            return False
        clock.sleep(poll_s)
    return True
