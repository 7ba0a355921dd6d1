"""Made-up regions: zones with a pool of spot nodes and a price each, that share good and bad days.

For tests, and where no trace is at hand. Nothing is known of a real market from them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spotray.errors import TraceError
from spotray.market.trace import Trace

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

# Fits to nine zones of AWS (V100, February 2023) of the public traces of "Can't Be Late", NSDI
# 2024: hazards per hour of losing spot and of getting it back, at an age of one hour, and how
# they fall with age; what the other zones of a region say about both.
_HAZARD, _FALL = 0.6, 0.7
_FRAILTY = (0.35, 2.8)  # what a zone multiplies them by, each way on its own
_REDRAWN_H = (24.0, 48.0)  # a frailty lasts that long
_SWING = (0.1, 0.4)  # of the hazards over a day
_LOSS_ALL_UP, _LOSS_ALL_DOWN, _LOSS_AFTER_LOSS = 0.69, 1.56, 1.28
_BACK_ALL_UP, _BACK_ALL_DOWN = 1.42, 0.65
_AFTER_H = 0.5
_YOUNGEST_H = 0.25  # below, the hazard stays: those traces hold no more of the shortest runs
_LUCK = 0.8  # a zone's own, for good: e to that power at most, one way on losses and back
# How often a region has the world's days instead of its own, a zone its region's, and how often
# a zone is lost or back with another one of its region. Chosen so that zones of one region
# correlate as in those traces, by 0.3 to 0.66, and those of other regions by 0.03 to 0.27.
_SHARED_WORLD, _SHARED_DAYS, _TOGETHER = 0.85, 0.8, 0.3
# Pools: what is up holds all nodes five times in six, and mostly loses half of them at once
# (16 nodes: 7 to 11), as the 16-node traces of the same set.
_FULL, _PART = 0.85, (0.06, 0.9)
_HALF, _HALF_PER_H, _REFILL_PER_H = (7 / 16, 11 / 16), 0.06, 0.8
# Prices: no trace of them is public; a zone's is 0.25 to 0.45 of on-demand, as in the price
# table, and wanders about it by some per cent every few hours.
_DISCOUNT = (0.25, 0.45)
_PRICE_EVERY_H, _PRICE_STEP, _PRICE_BACK = 4.0, 0.04, 0.1


@dataclass(frozen=True, kw_only=True)
class MadeUpZone:
    """One zone. ``price`` is of one node, as a part of the on-demand price."""

    region: str  # "made-up-1"
    zone: str  # "made-up-1a"
    capacity: Trace
    price_frac: Trace


def generate_regions(
    seed: int,
    *,
    regions: int,
    zones: int,
    nodes: int,
    duration_s: float,
    gap_s: float = 300.0,
) -> list[MadeUpZone]:
    """Zones of some regions, with how many nodes each holds and its price, over time.

    The hazards of losing spot and of getting it back fall with age as
    ``0.6 * hours ** -0.7`` per hour, swing over the day, and are multiplied by what the zone's
    day and its siblings say.

    Args:
        seed: the same seed gives the same zones.
        regions: >= 1.
        zones: of each region, 1 to 26.
        nodes: most that a zone holds, >= 1.
        duration_s: how long, seconds, > 0.
        gap_s: seconds between two values, > 0.

    Raises:
        TraceError: a value is out of range.
    """
    if (
        min(regions, zones, nodes) < 1
        or zones > 26
        or not 0 < gap_s < math.inf
        or not 0 < duration_s < math.inf
    ):
        raise TraceError(
            f"cannot generate regions={regions} of zones={zones} with nodes={nodes}, "
            f"duration_s={duration_s}, gap_s={gap_s}: give all above 0, and at most 26 zones"
        )
    chance = np.random.default_rng(seed)
    ticks = math.ceil(duration_s / gap_s)
    up = _ups(chance, regions, zones, ticks, gap_s / 3600)
    held = _pools(chance, up, nodes, gap_s / 3600)
    price = _prices(chance, regions * zones, ticks, gap_s / 3600)
    found = []
    for index in range(regions * zones):
        region = f"made-up-{index // zones + 1}"
        zone = f"{region}{chr(ord('a') + index % zones)}"
        source = f"{zone} (seed {seed})"
        found.append(
            MadeUpZone(
                region=region,
                zone=zone,
                capacity=Trace(gap_s=gap_s, values=tuple(held[:, index].tolist()), source=source),
                price_frac=Trace(
                    gap_s=gap_s, values=tuple(price[:, index].tolist()), source=source
                ),
            )
        )
    return found


def generate_ups(
    seed: int, *, zones: int, duration_s: float, gap_s: float, losses: float = 1.0
) -> Bools:
    """Whether each zone of one made-up region has spot, by tick and zone; see `generate_regions`.

    Args:
        seed: the same seed gives the same zones.
        zones: >= 1.
        duration_s: how long, seconds, > 0.
        gap_s: seconds between two values, > 0.
        losses: how many times as often spot goes, > 0; 1: as in public traces.

    Raises:
        TraceError: a value is out of range.
    """
    sound = all(0 < value < math.inf for value in (duration_s, gap_s, losses))
    if zones < 1 or not sound:
        raise TraceError(
            f"cannot generate zones={zones}, duration_s={duration_s}, gap_s={gap_s}, "
            f"losses={losses}: give all above 0"
        )
    chance = np.random.default_rng(seed)
    return _ups(chance, 1, zones, math.ceil(duration_s / gap_s), gap_s / 3600, losses)


def _ups(
    chance: np.random.Generator,
    regions: int,
    zones: int,
    ticks: int,
    gap_h: float,
    losses: float = 1.0,
) -> Bools:
    """Whether each zone has spot, by tick and zone."""
    count = regions * zones
    region_of = np.repeat(np.arange(regions), zones)
    siblings = zones - 1
    low, high = math.log(_FRAILTY[0]), math.log(_FRAILTY[1])
    swing = chance.uniform(*_SWING, regions)[region_of]
    phase = chance.uniform(0, 24, regions)[region_of]
    luck = chance.uniform(-_LUCK, _LUCK, count)
    is_up = chance.random(count) < 0.5
    age_h = chance.exponential(1.0, count)
    lost_h, last_h = np.full(count, -math.inf), -math.inf
    frailty = np.ones((2, count))  # of getting it back, of losing it
    redraw_h = 0.0
    found = np.empty((ticks, count), dtype=np.bool_)
    # By whether it is up, then by how many siblings are: what both say.
    known = np.ones((2, siblings + 1))
    if siblings:
        known[1, siblings], known[1, 0] = _LOSS_ALL_UP, _LOSS_ALL_DOWN
        known[0, siblings], known[0, 0] = _BACK_ALL_UP, _BACK_ALL_DOWN
    place = np.arange(count)
    # What a tick's hazard must be above for a change, and how it swings: of all ticks at once.
    needed = -np.log1p(-chance.random((ticks, count))) / gap_h
    hours = np.arange(ticks)[:, None] * gap_h
    swings = swing * np.sin((hours + phase) * (math.pi / 12))
    is_news = True  # since the last tick: who is up, or how frail they are
    for tick in range(ticks):
        now_h = tick * gap_h
        if now_h >= redraw_h:
            own = chance.uniform(low, high, (2, count))
            world = chance.random((2, regions)) < _SHARED_WORLD
            shared = np.where(
                world, chance.uniform(low, high, (2, 1)), chance.uniform(low, high, (2, regions))
            )[:, region_of]
            with_region = chance.random((2, count)) < _SHARED_DAYS
            frailty = np.exp(np.where(with_region, shared, own) + [luck, -luck])
            frailty[1] *= losses
            redraw_h = now_h + chance.uniform(*_REDRAWN_H)
            is_news = True
        if is_news:
            now = is_up.astype(np.int_)
            ups = np.bincount(region_of, now, regions).astype(np.int_)[region_of] - now
            factor, sign = frailty[now, place] * known[now, ups], 2 * now - 1
            is_news = False
        found[tick] = is_up
        hazard = _HAZARD * np.maximum(age_h, _YOUNGEST_H) ** -_FALL
        hazard *= factor
        hazard *= 1 + swings[tick] * sign
        if now_h - last_h <= _AFTER_H:
            fresh = now_h - lost_h <= _AFTER_H
            others = np.bincount(region_of, fresh, regions)[region_of] - fresh
            hazard[is_up & (others > 0)] *= _LOSS_AFTER_LOSS
        changes = hazard > needed[tick]
        age_h += gap_h
        if np.count_nonzero(changes):  # any() takes far longer
            if siblings:
                changes |= _with_them(chance, is_up, changes, region_of)
            lost = changes & is_up
            if lost.any():
                lost_h[lost] = last_h = now_h
            is_up = is_up ^ changes
            age_h[changes] = 0.0
            is_news = True
    return found


def _with_them(
    chance: np.random.Generator, is_up: Bools, changes: Bools, region_of: NDArray[np.int_]
) -> Bools:
    """Zones that change with one of their region, in the same direction."""
    more = np.zeros_like(changes)
    drawn = chance.random(len(changes)) < _TOGETHER
    for one in np.flatnonzero(changes):
        more |= (region_of == region_of[one]) & (is_up == is_up[one]) & drawn
    return more


def _pools(chance: np.random.Generator, up: Bools, nodes: int, gap_h: float) -> Floats:
    """How many nodes each zone holds: none if it is not up, mostly all if it is."""
    ticks, count = up.shape
    part = np.ones(count)
    found = np.zeros((ticks, count))
    lose, refill = -math.expm1(-_HALF_PER_H * gap_h), -math.expm1(-_REFILL_PER_H * gap_h)
    before = np.zeros(count, dtype=np.bool_)
    for tick in range(ticks):
        drawn = chance.random((4, count))
        comes = up[tick] & ~before
        some = _PART[0] + drawn[1] * (_PART[1] - _PART[0])
        part = np.where(comes, np.where(drawn[0] < _FULL, 1.0, some), part)
        stays = up[tick] & before
        half = _HALF[0] + drawn[1] * (_HALF[1] - _HALF[0])
        part = np.where(stays & (part < 1) & (drawn[2] < refill), 1.0, part)
        part = np.where(stays & (drawn[3] < lose), np.maximum(part - half, _PART[0]), part)
        found[tick] = np.where(up[tick], np.maximum(np.rint(part * nodes), 1.0), 0.0)
        before = up[tick]
    return found


def _prices(chance: np.random.Generator, count: int, ticks: int, gap_h: float) -> Floats:
    """Prices as parts of the on-demand price, by tick and zone: steps every few hours."""
    base = np.log(chance.uniform(*_DISCOUNT, count))
    price = base.copy()
    found = np.empty((ticks, count))
    change = -math.expm1(-gap_h / _PRICE_EVERY_H)
    for tick in range(ticks):
        moves = chance.random(count) < change
        step = chance.normal(0, _PRICE_STEP, count) + _PRICE_BACK * (base - price)
        price = np.where(moves, np.minimum(price + step, 0.0), price)
        found[tick] = np.round(np.exp(price), 6)
    return found
