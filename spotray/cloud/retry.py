"""Asking again, later and later, while a cloud asks for patience."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import TypeVar

from spotray.clock import Clock
from spotray.errors import ThrottledError

log = logging.getLogger(__name__)

T = TypeVar("T")

ATTEMPTS = 5
_FIRST_S, _LONGEST_S = 1.0, 30.0


def patiently(
    ask: Callable[[], T],
    *,
    clock: Clock,
    attempts: int = ATTEMPTS,
    chance: Callable[[], float] = random.random,
) -> T:
    """The answer to ``ask``, asked up to ``attempts`` times while it is throttled.

    Between two questions passes a time drawn from nothing to twice that of the time before, at
    most half a minute; at least what the cloud itself named, if that is no longer.

    Raises:
        ThrottledError: the last one.
    """
    for attempt in range(1, attempts + 1):
        try:
            return ask()
        except ThrottledError as exc:
            if attempt == attempts:
                raise
            longest_s = min(_LONGEST_S, _FIRST_S * 2**attempt)
            wait_s = max(longest_s * chance(), min(exc.retry_after_s, longest_s))
            log.debug("asking again in %.1f s: %s", wait_s, exc)
            clock.sleep(wait_s)
    raise AssertionError("the last attempt returns or raises")
