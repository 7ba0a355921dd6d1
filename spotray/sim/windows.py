"""Jobs cut from traces: which ticks have spot, and where each job starts."""

from __future__ import annotations

from collections.abc import Iterator

from spotray.errors import ConfigError, TraceError
from spotray.market.trace import Trace


def availability(trace: Trace, *, nodes: int = 1) -> bytes:
    """One byte for each value of a trace: 1 where ``nodes`` nodes can be had.

    Raises:
        TraceError: a value is no whole number: this is a price trace.
        ConfigError: ``nodes`` is below 1.
    """
    if nodes < 1:
        raise ConfigError(f"nodes is {nodes}: give at least 1")
    for index, value in enumerate(trace.values):
        if value != int(value):
            raise TraceError(
                f"{trace.source}: data[{index}] is {value!r}: availability is a number of nodes"
            )
    return bytes(value >= nodes for value in trace.values)


def windows(up: bytes, *, ticks: int, starts: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Windows of ``ticks`` ticks, evenly spread from the first tick to the last that fits.

    Args:
        up: from `availability`.
        ticks: of one window, >= 1.
        starts: how many windows; without it, as many as lie side by side without overlap.

    Yields:
        The first tick of a window, and its ticks. None if the trace is shorter than one.
    """
    if ticks < 1 or (starts is not None and starts < 1):
        raise ConfigError(f"cannot cut {starts} windows of {ticks} ticks: give at least 1 of both")
    room = len(up) - ticks
    if room < 0:
        return
    count = len(up) // ticks if starts is None else min(starts, room + 1)
    for index in range(count):
        first = round(index * room / (count - 1)) if count > 1 else 0
        yield first, up[first : first + ticks]
