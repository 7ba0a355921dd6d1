"""What is wrong with a config: where, what, and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong.

    >>> print(Problem(path="max_workers", what="is -1", cure="give a number of at least 0"))
    max_workers: is -1: give a number of at least 0
    """

    path: str  # "available_node_types.gpu.node_config.InstanceType"
    what: str
    cure: str
    is_warning: bool = False  # it may work all the same

    def __str__(self) -> str:
        return f"{self.path}: {self.what}: {self.cure}"


def unknown_key(path: str, key: str, known: Iterable[str]) -> Problem:
    """The problem of a key that nobody reads, with the nearest that somebody does.

    >>> unknown_key("provider", "regoin", ["region", "type"]).cure
    'did you mean region?'
    """
    known = sorted(known)
    near = difflib.get_close_matches(key, known, n=1)
    return Problem(
        path=f"{path}.{key}" if path else key,
        what="is not a key that anybody reads",
        cure=f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}",
    )
