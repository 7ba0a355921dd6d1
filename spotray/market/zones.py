"""Made-up zones that behave like real spot markets: for tests, and where no trace is at hand."""

from __future__ import annotations

import math
import random

from spotray.errors import TraceError
from spotray.market.trace import Trace

_HAZARD = 0.6  # per hour at an age of one hour, of losing spot and of getting it back
_FALL = 0.7  # the hazard falls as age to that power
_FRAILTY = (0.35, 2.8)  # what a zone multiplies it by, each way on its own
_REDRAWN_H = (24.0, 48.0)  # a frailty lasts that long
_SWING = (0.1, 0.4)  # of the hazards over a day
_YOUNGEST_H = 1 / 60  # the hazard does not grow without bound as age goes to 0


def generate_zone(seed: int, *, duration_s: float, gap_s: float = 300.0) -> Trace:
    """Whether one node can be had in a made-up zone, over time.

    The hazards of losing spot and of getting it back both fall with the age of the
    current run, as ``0.6 * hours ** -0.7`` per hour; a zone's own factor on each is drawn
    anew every one to two days, and both swing over the day, in opposite directions.

    Args:
        seed: the same seed gives the same zone.
        duration_s: how long, seconds, > 0.
        gap_s: seconds between two values, > 0.

    Raises:
        TraceError: a value is out of range.

    Source:
        Fits to nine zones of AWS (V100, February 2023) of the public traces of
        "Can't Be Late", NSDI 2024.
    """
    if not 0 < gap_s < math.inf or not 0 < duration_s < math.inf:
        raise TraceError(
            f"cannot generate a zone of duration_s={duration_s}, gap_s={gap_s}: give both above 0"
        )
    chance = random.Random(seed)
    gap_h = gap_s / 3600
    swing, phase_h = chance.uniform(*_SWING), chance.uniform(0.0, 24.0)
    low, high = map(math.log, _FRAILTY)
    redraw_h, factors = 0.0, (1.0, 1.0)
    is_up, age_h = chance.random() < 0.5, chance.expovariate(1.0)
    values = []
    for index in range(math.ceil(duration_s / gap_s)):
        now_h = index * gap_h
        if now_h >= redraw_h:
            factors = (math.exp(chance.uniform(low, high)), math.exp(chance.uniform(low, high)))
            redraw_h = now_h + chance.uniform(*_REDRAWN_H)
        values.append(int(is_up))
        day = swing * math.sin((now_h + phase_h) * math.pi / 12)
        factor = factors[is_up] * (1 + day if is_up else 1 - day)
        hazard = _HAZARD * factor * max(age_h, _YOUNGEST_H) ** -_FALL
        if chance.random() < -math.expm1(-hazard * gap_h):
            is_up, age_h = not is_up, 0.0
        else:
            age_h += gap_h
    return Trace(gap_s=gap_s, values=tuple(values), source=f"made-up zone {seed}")
