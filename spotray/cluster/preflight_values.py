"""What `spotray.cluster.preflight` asks about, and what it finds: plain values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from spotray.cluster.node_types import NodeType, commands
from spotray.cluster.presets import PLACEHOLDERS
from spotray.cluster.problems import Problem
from spotray.errors import NotAnswered
from spotray.market.offer import Market

_COMMANDS = (
    "setup_commands",
    "head_setup_commands",
    "worker_setup_commands",
    "head_start_ray_commands",
    "worker_start_ray_commands",
)


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a node type asks of its cloud."""

    node: NodeType
    markets: tuple[Market, ...]  # best first
    most: int  # nodes of it at a time

    @property
    def types(self) -> list[str]:
        """Its instance types, best first."""
        return list(dict.fromkeys(one.instance_type for one in self.markets))

    @property
    def types_path(self) -> str:
        """Where they stand."""
        if len(self.types) == 1:
            return self.node.instance_type_path
        return f"provider.markets.{self.node.name}.instance_types"


@dataclass
class Findings:
    """What was found, and what could not be looked at."""

    problems: list[Problem] = field(default_factory=list)

    def add(self, path: str, what: str, cure: str, *, is_warning: bool = False) -> None:
        """Note a problem; the same one twice is one."""
        one = Problem(path=path, what=what, cure=cure, is_warning=is_warning)
        if one not in self.problems:
            self.problems.append(one)

    @contextmanager
    def asking(self, path: str, what: str) -> Iterator[None]:
        """What follows may stay without an answer: say that ``what`` was not checked."""
        try:
            yield
        except NotAnswered as exc:
            self.add(
                path,
                f"{what} not checked: {exc}",
                "let these credentials ask, or look yourself",
                is_warning=True,
            )


def buckets_of(config: Mapping[str, Any], pattern: re.Pattern[str]) -> dict[str, str]:
    """The buckets that a config names, each with the path of the first place.

    Not those that stand for one of the user's: `spotray.cluster.lint` tells of them.
    """
    found: dict[str, str] = {}
    for path, text in commands(config, *_COMMANDS):
        for name in pattern.findall(text):
            found.setdefault(name, path)
    for name in pattern.findall(json.dumps(config, default=str)):
        found.setdefault(name, "(file)")
    return {name: path for name, path in found.items() if name not in PLACEHOLDERS}
