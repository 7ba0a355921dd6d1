"""``provider.controller`` of a cluster's YAML: what the controller on the head goes by.

::

    provider:
      controller: {return_to_spot: true, drain_s: 120}   # the default; every key has one

No Ray and no cloud in here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from spotray.cluster.problems import Problem, unknown_key

KEY = "controller"


@dataclass(frozen=True, kw_only=True)
class ControlConfig:
    """How the controller acts. Seconds unless the name says otherwise, all > 0."""

    return_to_spot: bool = True  # replace on-demand workers by spot ones when spot is back
    settle_s: float = 60.0  # a worker is left alone that long after it came
    ask_s: float = 60.0  # on-demand launches are held back that long while spot is asked for
    join_s: float = 1200.0  # a launched node joins Ray within that: images and wheels take minutes
    drain_s: float = 120.0  # a node that is told to leave has that long
    end_s: float = 300.0  # and the cloud that long to end it, where it did not leave
    rest_s: float = 120.0  # after a first attempt in vain; doubles with each more
    rest_max_s: float = 3600.0
    pause_s: float = 5.0  # after an attempt that worked
    hold_s: float = 300.0  # a busy worker that is lost is asked for again that long
    deadline_s: float = 900.0  # no worker is replaced that shortly before a job's deadline


def check_control(given: Any) -> Iterator[Problem]:
    """What is wrong in ``provider.controller``."""
    path = f"provider.{KEY}"
    if not isinstance(given, Mapping):
        yield Problem(
            path=path, what=f"{given!r} is no map", cure="write {return_to_spot: false}, or nothing"
        )
        return
    known = {f.name: f for f in dataclasses.fields(ControlConfig)}
    for key, value in given.items():
        if key not in known:
            yield unknown_key(path, str(key), tuple(known))
        elif isinstance(known[key].default, bool):
            if not isinstance(value, bool):
                yield Problem(path=f"{path}.{key}", what=f"{value!r}", cure="write true or false")
        elif isinstance(value, bool) or not isinstance(value, int | float):
            yield Problem(path=f"{path}.{key}", what=f"{value!r} is no number", cure="write one")
        elif not 0 < value < math.inf:
            yield Problem(path=f"{path}.{key}", what=f"{value!r}", cure="write seconds above 0")


def parse_control(given: Mapping[str, Any]) -> ControlConfig:
    """The config of a map in which `check_control` finds nothing."""
    return ControlConfig(**given)
