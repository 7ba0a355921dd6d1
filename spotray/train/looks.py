"""Ray's list of nodes, read once for all jobs that one process coordinates."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from spotray.train.ray_internals import draining_nodes

_MAX_AGE_S = 0.25  # half of the time between two looks of one job


@dataclass(frozen=True)
class Look:
    """The nodes at one time; not to be changed, for others have it too."""

    nodes: Sequence[Mapping[str, Any]]  # as `ray.nodes` gives them, also dead ones
    draining: Mapping[str, float | None]  # node id -> deadline, Unix seconds


class SharedLook:
    """Looks anew only when the last look is too old, whoever made it.

    A sweep coordinates dozens of jobs in one process: each of them alone would ask Ray
    twice a second for the same list.

    Args:
        read: Looks at the nodes.
        max_age_s: How old an answer may be.
        now_s: Seconds on a clock that only goes forward.
    """

    def __init__(
        self,
        read: Callable[[], Look],
        *,
        max_age_s: float,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._max_age_s, self._now_s = read, max_age_s, now_s
        self._lock = threading.Lock()
        self._last: tuple[float, Look] | None = None

    def __call__(self) -> Look:
        with self._lock:
            if self._last is None or self._now_s() - self._last[0] > self._max_age_s:
                self._last = None  # what fails is not remembered
                look = self._read()
                self._last = (self._now_s(), look)
            return self._last[1]


def _read_now() -> Look:
    return Look(ray.nodes(), draining_nodes())


look_at_nodes = SharedLook(_read_now, max_age_s=_MAX_AGE_S)
