"""Traces from what clouds were heard to say of spot, hour after hour: a fold over facts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spotray.events import Event, SpotObserved
from spotray.market.trace import Trace

HELD_LOOKS = 3  # an answer stands for so many that are missing


@dataclass(frozen=True, kw_only=True)
class Part:
    """A time without a long gap: all zones side by side, in ticks of one length."""

    start_s: float  # Unix seconds, of the first tick
    availability: Mapping[str, Trace]  # by zone, in nodes
    usd_per_hour: Mapping[str, Trace]  # by zone; without those whose price nobody told

    @property
    def ticks(self) -> int:
        """How many values each trace has."""
        return max((len(trace.values) for trace in self.availability.values()), default=0)


def parts(
    events: Iterable[Event],
    *,
    gap_s: float,
    likely: float,
    held_looks: int = HELD_LOOKS,
) -> list[Part]:
    """What was observed, as traces, cut where nobody looked for longer.

    A zone has its nodes while the cloud's guess is at least ``likely`` and a launch would not
    be refused. A zone that an answer leaves out has none. Of several answers in a tick the last
    one counts.

    Args:
        events: of one question: the same types and nodes.
        gap_s: a tick's length, seconds.
        likely: 0..1.
        held_looks: the last answer stands for so many that are missing behind it.
    """
    ticks: dict[int, dict[str, SpotObserved]] = {}
    for event in sorted(events, key=lambda event: event.at_s):
        if isinstance(event, SpotObserved):
            ticks.setdefault(int(event.at_s // gap_s), {})[event.zone] = event
    found: list[Part] = []
    span: list[int] = []
    for tick in sorted(ticks):
        if span and tick - span[-1] > (held_looks + 1) * _stride(ticks[span[-1]], gap_s):
            found.append(_part(ticks, span, gap_s=gap_s, likely=likely))
            span = []
        span.append(tick)
    if span:
        found.append(_part(ticks, span, gap_s=gap_s, likely=likely))
    return found


def _stride(looks: Mapping[str, SpotObserved], gap_s: float) -> int:
    """Ticks to the look behind these: more than one if looks were seldomer than ticks are."""
    return max(1, *(math.ceil(one.every_s / gap_s) for one in looks.values()))


def _part(
    ticks: Mapping[int, Mapping[str, SpotObserved]],
    span: list[int],
    *,
    gap_s: float,
    likely: float,
) -> Part:
    zones = sorted({zone for tick in span for zone in ticks[tick]})
    nodes: dict[str, list[float]] = {zone: [] for zone in zones}
    prices: dict[str, list[float | None]] = {zone: [] for zone in zones}
    looks: Mapping[str, SpotObserved] = {}
    for tick in range(span[0], span[-1] + 1):
        looks = ticks.get(tick, looks)
        for zone in zones:
            one = looks.get(zone)
            is_there = one is not None and not one.refused and one.likely >= likely
            nodes[zone].append(one.nodes if one is not None and is_there else 0)
            before = prices[zone][-1] if prices[zone] else None
            told = one.usd_per_hour if one is not None else None
            prices[zone].append(before if told is None else told)
    return Part(
        start_s=span[0] * gap_s,
        availability={
            zone: Trace(gap_s=gap_s, values=tuple(values), source=zone)
            for zone, values in nodes.items()
        },
        usd_per_hour={
            zone: Trace(gap_s=gap_s, values=_filled(values), source=zone)
            for zone, values in prices.items()
            if values[-1] is not None
        },
    )


def _filled(values: list[float | None]) -> tuple[float, ...]:
    """Before the first price there is that one: a simulation needs one everywhere."""
    first = next(value for value in values if value is not None)
    return tuple(first if value is None else value for value in values)
