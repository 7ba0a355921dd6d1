"""Availability and price over time: load, check, generate.

A file is ``{"metadata": {"gap_seconds": G}, "data": [n, n, ...]}``: ``n`` holds from
its instant until the next, ``G`` seconds later.
"""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from spotray.errors import TraceError


@dataclass(frozen=True, kw_only=True)
class Trace:
    """A step function of time. Behind its end it stays at its last value."""

    gap_s: float  # between two values, seconds of the market's time, > 0
    values: tuple[float, ...]  # each finite and >= 0; one at least
    source: str = "trace"  # how errors call it: its file

    def __post_init__(self) -> None:
        if not _is_number(self.gap_s) or not 0 < self.gap_s < math.inf:
            raise TraceError(f"{self.source}: gap_seconds is {self.gap_s!r}: give a number above 0")
        if not self.values:
            raise TraceError(f"{self.source}: no data: a trace needs one value at least")
        for index, value in enumerate(self.values):
            if not _is_number(value):
                raise TraceError(f"{self.source}: data[{index}] is {value!r}: not a number")
            if not 0 <= value < math.inf:  # false for NaN, too
                raise TraceError(
                    f"{self.source}: data[{index}] is {value!r}: give a finite number of at least 0"
                )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trace:
        """Read and check a trace file.

        Raises:
            TraceError: the file cannot be read, is not JSON, has another shape, no
                values, or a value that is negative, not finite or no number; the
                message names the file and the value's index.
        """
        source = os.fspath(path)
        try:
            with open(path, encoding="utf-8") as file:
                raw = json.load(file)
        except OSError as exc:
            raise TraceError(f"{source}: cannot be read: {exc.strerror or exc}") from exc
        except ValueError as exc:
            raise TraceError(f"{source}: not JSON: {exc}") from exc
        return cls._from_json(raw, source)

    @classmethod
    def _from_json(cls, raw: Any, source: str) -> Trace:
        metadata = raw.get("metadata") if isinstance(raw, dict) else None
        if not isinstance(metadata, dict) or "gap_seconds" not in metadata:
            raise TraceError(
                f'{source}: no metadata.gap_seconds: write {{"metadata": '
                f'{{"gap_seconds": 300}}, "data": [...]}}'
            )
        data = raw.get("data")
        if not isinstance(data, list):
            raise TraceError(f"{source}: data is {type(data).__name__}: give a list of numbers")
        return cls(gap_s=metadata["gap_seconds"], values=tuple(data), source=source)

    def to_json(self) -> str:
        """The trace as the text of a file that `load` reads."""
        return json.dumps({"metadata": {"gap_seconds": self.gap_s}, "data": list(self.values)})

    @property
    def duration_s(self) -> float:
        """Time that the values cover, seconds."""
        return self.gap_s * len(self.values)

    def value_at(self, elapsed_s: float) -> float:
        """The value ``elapsed_s`` seconds after the start, >= 0."""
        if elapsed_s < 0:
            raise ValueError(f"a trace has no past: elapsed_s is {elapsed_s}")
        index = int(min(elapsed_s / self.gap_s, len(self.values) - 1))
        return self.values[index]

    def capacity_at(self, elapsed_s: float) -> int:
        """Nodes that can be had ``elapsed_s`` seconds after the start.

        Raises:
            TraceError: the value is no whole number: this is a price trace.
        """
        value = self.value_at(elapsed_s)
        if value != int(value):
            raise TraceError(f"{self.source}: a capacity of {value!r} nodes: not a whole number")
        return int(value)

    def changes(self) -> Iterator[tuple[float, float]]:
        """Each instant at which the value changes, seconds from the start, and the new value.

        The first is at 0.
        """
        before: float | None = None
        for index, value in enumerate(self.values):
            if value != before:
                yield index * self.gap_s, value
            before = value


def generate(
    seed: int,
    *,
    nodes: int,
    duration_s: float,
    gap_s: float = 60.0,
    mean_up_s: float = 4 * 3600.0,
    mean_down_s: float = 600.0,
) -> Trace:
    """How many of ``nodes`` independent nodes a made-up market would hold.

    Each node is a two-state Markov chain: available for a geometric time with mean
    ``mean_up_s``, then gone with mean ``mean_down_s``. All are there at the start.

    Args:
        seed: the same seed gives the same trace.
        nodes: most nodes that the market has, >= 1.
        duration_s: how long, seconds, > 0.
        gap_s: seconds between two values, > 0.
        mean_up_s: mean seconds that a node is available, >= ``gap_s``.
        mean_down_s: mean seconds until it is available again, >= ``gap_s``.

    Raises:
        TraceError: a value is out of range.
    """
    if nodes < 1 or duration_s <= 0 or gap_s <= 0 or min(mean_up_s, mean_down_s) < gap_s:
        raise TraceError(
            f"cannot generate a trace of nodes={nodes}, duration_s={duration_s}, gap_s={gap_s}, "
            f"mean_up_s={mean_up_s}, mean_down_s={mean_down_s}: all must be above 0, "
            "and both means at least gap_s"
        )
    chance = random.Random(seed)
    leave, come = gap_s / mean_up_s, gap_s / mean_down_s  # chances for one gap
    up = [True] * nodes
    values = []
    for _ in range(math.ceil(duration_s / gap_s)):
        values.append(sum(up))
        up = [chance.random() >= leave if is_up else chance.random() < come for is_up in up]
    return Trace(gap_s=gap_s, values=tuple(values), source=f"generated (seed {seed})")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
