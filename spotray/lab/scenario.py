"""What a lab is to be like, and what is to go wrong in it: built in Python or from TOML.

::

    workers = 4
    provisioning_s = 5.0

    [market]
    zone = "us-east-1a"
    instance_type = "g5.xlarge"

    [capacity]
    trace = "us-east-1f.json"
    time_scale = 600

    [[events]]
    at_step = 40
    action = "notice"
    node = "spot-2"
    notice_s = 20
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from spotray.errors import ConfigError
from spotray.market.offer import Market
from spotray.market.trace import Trace, generate

ACTIONS = {
    "notice": "announce the loss of a node, and take it notice_s later",
    "kill": "take a node without a word",
    "freeze": "silence a node; its sockets stay open",
    "thaw": "let a frozen node go on",
    "cancel": "take a notice back",
    "rebalance": "hint at a higher risk",
    "capacity": "set how many spot nodes the market holds (count)",
    "kill_all": "take all spot nodes in one instant",
}
_ON_NODES = ("notice", "kill", "freeze", "thaw", "cancel", "rebalance")


@dataclass(frozen=True, kw_only=True)
class LabMarket:
    """What the lab's machines are said to be, and what they cost.

    Source: AWS EC2 price list for us-east-1, Linux. g5.xlarge: on demand, and the
    mean of five zones on spot, catalog snapshot of 2025; m5.large on demand.
    """

    zone: str = "us-east-1a"
    instance_type: str = "g5.xlarge"
    spot_usd_per_hour: float = 0.4062
    spot_price_trace: str | None = None  # file; takes the place of spot_usd_per_hour
    on_demand_usd_per_hour: float = 1.006
    head_instance_type: str = "m5.large"
    head_usd_per_hour: float = 0.096  # on demand

    def __post_init__(self) -> None:
        for name in ("spot_usd_per_hour", "on_demand_usd_per_hour", "head_usd_per_hour"):
            _need(name, getattr(self, name), at_least=0)
        _ = self.spot, self.head  # checks the names

    def load_prices(self) -> Trace:
        """The spot price over market time.

        Raises:
            TraceError: the trace is damaged or cannot be read.
        """
        if self.spot_price_trace is not None:
            return Trace.load(self.spot_price_trace)
        return Trace(gap_s=1.0, values=(self.spot_usd_per_hour,), source="spot_usd_per_hour")

    @property
    def spot(self) -> Market:
        return Market(cloud="aws", zone=self.zone, instance_type=self.instance_type, spot=True)

    @property
    def head(self) -> Market:
        return Market(
            cloud="aws", zone=self.zone, instance_type=self.head_instance_type, spot=False
        )


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """How many spot nodes the market holds: a number, a trace file, or a made-up trace.

    With none of them there is always room. Give at most one.
    """

    nodes: int | None = None  # always that many, until `Lab.set_capacity`
    trace: str | None = None  # file; relative to the scenario's own
    seed: int | None = None  # of a generated trace
    mean_up_s: float = 4 * 3600.0  # generated: seconds of market time
    mean_down_s: float = 600.0
    time_scale: float = 1.0  # seconds of market time in one second; for prices, too

    def __post_init__(self) -> None:
        given = [name for name in ("nodes", "trace", "seed") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ConfigError(f"capacity has {' and '.join(given)}: give one of them")
        if self.nodes is not None:
            _need("capacity.nodes", self.nodes, at_least=0)
        _need("capacity.time_scale", self.time_scale, above=0)
        _need("capacity.mean_up_s", self.mean_up_s, above=0)
        _need("capacity.mean_down_s", self.mean_down_s, above=0)

    def load(self, workers: int) -> Trace | None:
        """The capacity over market time; None if there is always room.

        Raises:
            TraceError: the trace is damaged or cannot be read.
        """
        if self.nodes is not None:
            return Trace(gap_s=1.0, values=(self.nodes,), source="capacity.nodes")
        if self.trace is not None:
            return Trace.load(self.trace)
        if self.seed is not None:
            return generate(
                self.seed,
                nodes=workers,
                duration_s=30 * 24 * 3600.0,
                gap_s=min(60.0, self.mean_up_s, self.mean_down_s),
                mean_up_s=self.mean_up_s,
                mean_down_s=self.mean_down_s,
            )
        return None


@dataclass(frozen=True, kw_only=True)
class ScriptedEvent:
    """One thing that goes wrong, at a step of the training or a time of the script.

    The target is one of ``node``, ``rank`` and ``count``; ``count`` takes the nodes
    that came last, and for ``capacity`` it is the new capacity.
    """

    action: str
    at_step: int | None = None  # when that optimizer step is done
    at_s: float | None = None  # seconds since the script began
    node: str | None = None  # the lab's name of it: "spot-2"
    rank: int | None = None  # place among the live spot nodes, by name
    count: int | None = None
    notice_s: float | None = None  # notice, and capacity that shrinks; None: the scenario's

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise ConfigError(_unknown("action", self.action, ACTIONS))
        if (self.at_step is None) == (self.at_s is None):
            raise ConfigError(f"event {self.action!r}: give either at_step or at_s")
        _need("at_step", self.at_step, at_least=0)
        _need("at_s", self.at_s, at_least=0)
        _need("rank", self.rank, at_least=0)
        _need("notice_s", self.notice_s, at_least=0)
        if self.notice_s is not None and self.action not in ("notice", "capacity"):
            raise ConfigError(f"event {self.action!r} has notice_s: only notice and capacity do")
        given = [name for name in ("node", "rank", "count") if getattr(self, name) is not None]
        if self.action in _ON_NODES:
            _need("count", self.count, at_least=1)
            if len(given) != 1:
                raise ConfigError(f"event {self.action!r}: give one of node, rank and count")
        elif self.action == "capacity":
            _need("count", self.count, at_least=0)
            if given != ["count"]:
                raise ConfigError("event 'capacity': give count, the new capacity, and no node")
        elif given:
            raise ConfigError(f"event {self.action!r} has {given[0]}: it takes no target")


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A lab's size, its market, and its script of events."""

    workers: int = 4  # spot nodes that the lab wants to have
    cpus_per_worker: int = 1
    provisioning_s: float = 3.0  # from the wish for a replacement to the start of its machine
    notice_s: float = 120.0  # between a notice and the loss, where the event does not say; AWS
    market: LabMarket = field(default_factory=LabMarket)
    capacity: Capacity = field(default_factory=Capacity)
    events: tuple[ScriptedEvent, ...] = ()

    def __post_init__(self) -> None:
        _need("workers", self.workers, at_least=0)
        _need("cpus_per_worker", self.cpus_per_worker, at_least=1)
        _need("provisioning_s", self.provisioning_s, at_least=0)
        _need("notice_s", self.notice_s, at_least=0)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Scenario:
        """Read a scenario file.

        Raises:
            ConfigError: it cannot be read, is not TOML, or has an unknown key (the
                nearest known one is named), a wrong type or a value out of range.
        """
        source = os.fspath(path)
        try:
            with open(path, "rb") as file:
                raw = tomllib.load(file)
        except OSError as exc:
            raise ConfigError(f"{source}: cannot be read: {exc.strerror or exc}") from exc
        except ValueError as exc:  # not TOML, or not UTF-8
            raise ConfigError(f"{source}: not TOML: {exc}") from exc
        try:
            scenario = _build(cls, raw, "")
        except ConfigError as exc:
            raise ConfigError(f"{source}: {exc}") from exc
        market, capacity = scenario.market, scenario.capacity
        prices, room = _beside(path, market.spot_price_trace), _beside(path, capacity.trace)
        return dataclasses.replace(
            scenario,
            market=dataclasses.replace(market, spot_price_trace=prices),
            capacity=dataclasses.replace(capacity, trace=room),
        )


_T = TypeVar("_T")


def _beside(path: str | os.PathLike[str], file: str | None) -> str | None:
    """A scenario's file, looked for in the folder of the scenario."""
    return None if file is None else str(Path(path).parent / file)


def _build(cls: type[_T], raw: Mapping[str, Any], place: str) -> _T:
    """An instance of a config class from a TOML table at ``place`` ("" or "market.")."""
    hints = typing.get_type_hints(cls)
    values = {}
    for key, value in raw.items():
        if key not in hints:
            raise ConfigError(_unknown("key", place + key, {place + name for name in hints}))
        values[key] = _typed(hints[key], value, place + key)
    try:
        return cls(**values)
    except TypeError as exc:  # a field without a default is missing
        raise ConfigError(f"{place.rstrip('.')}: {exc}") from exc
    except ConfigError as exc:
        raise ConfigError(f"{place.rstrip('.')}: {exc}" if place else str(exc)) from exc


def _typed(hint: Any, value: Any, place: str) -> Any:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, dict):
            raise ConfigError(f"{place} is {value!r}: write a table, [{place}]")
        return _build(hint, value, place + ".")
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        if not isinstance(value, list):
            raise ConfigError(f"{place} is {value!r}: write tables, [[{place}]]")
        return tuple(_typed(item, one, f"{place}[{i}]") for i, one in enumerate(value))
    options = typing.get_args(hint) if typing.get_origin(hint) is types.UnionType else (hint,)
    if type(value) in options:
        return value
    if type(value) is int and float in options:
        return float(value)
    wanted = " or ".join(o.__name__ for o in options if o is not types.NoneType)
    raise ConfigError(f"{place} is {value!r}: give {wanted}")


def _unknown(what: str, value: str, known: Mapping[str, str] | set[str]) -> str:
    near = difflib.get_close_matches(value, sorted(known), n=1, cutoff=0.0)
    return f"unknown {what} {value!r}: did you mean {near[0]!r}?"


def _need(
    name: str, value: float | None, *, at_least: float = -math.inf, above: float = -math.inf
) -> None:
    if value is None:
        return
    if not (math.isfinite(value) and value >= at_least and value > above):
        bound = f"above {above:g}" if above > -math.inf else f"of at least {at_least:g}"
        raise ConfigError(f"{name} is {value}: give a number {bound}")
