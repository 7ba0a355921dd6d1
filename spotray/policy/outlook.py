"""How long spot of each zone will probably last, from what was seen of it and of its siblings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

Fit = Callable[[float], float]  # losses up to an age in hours, were each replaced at once

# Losses per hour of a run of spot at an age of one hour, and how they fall with age; what the
# siblings of a zone say. Fits to nine zones of AWS (V100, February 2023) of the public traces of
# "Can't Be Late", NSDI 2024.
_HAZARD, _FALL = 0.6, 0.7
_ALL_UP, _ALL_DOWN, _JUST_LOST = 0.69, 1.56, 1.28
_BACK_ALL_DOWN = 0.65
_JUST_S = 1800.0
_YOUNGEST_H = 0.25  # below, the hazard stays: those traces hold no more of the shortest runs
_PRIOR_LOSSES = 2.0  # as many seen ones the fit counts for
_HALF_LIFE_S = 36 * 3600.0  # a zone has good and bad days


class Outlook:
    """The hazard of each place now. A place is up while it holds as many nodes as are needed."""

    def __init__(
        self, regions: Sequence[str], *, gap_s: float, fits: Sequence[Fit] | None = None
    ) -> None:
        """Know nothing of the places but their regions, and what was believed of each before.

        ``fits``: of each place's spot; without them that of public traces holds for all.
        """
        self._fits = list(fits) if fits is not None else [_cumulative] * len(regions)
        self._gap_s, self._count = gap_s, len(regions)
        self._siblings = [
            [other for other, region in enumerate(regions) if region == mine and other != place]
            for place, mine in enumerate(regions)
        ]
        self._forget = 0.5 ** (gap_s / _HALF_LIFE_S)
        self._age_h = [-1.0] * self._count  # of the run of spot; below 0 if there is none
        self._down_h = [0.0] * self._count  # since there was some
        self._seen = [0.0] * self._count  # losses, the older the less they count
        self._hoped = [0.0] * self._count  # of a zone as the fit has it, in the same time
        self._lost_s = [-math.inf] * self._count

    def see(self, elapsed_s: float, up: Sequence[bool]) -> None:
        """Take a tick's facts; called once a tick, in order."""
        forget, gap_h = self._forget, self._gap_s / 3600
        for place in range(self._count):
            self._seen[place] *= forget
            self._hoped[place] *= forget
            age_h = self._age_h[place]
            if age_h >= 0:
                fit = self._fits[place]
                self._hoped[place] += fit(age_h + gap_h) - fit(age_h)
                if up[place]:
                    self._age_h[place] = age_h + gap_h
                else:
                    self._age_h[place], self._down_h[place] = -1.0, 0.0
                    self._seen[place] += 1
                    self._lost_s[place] = elapsed_s
            elif up[place]:
                self._age_h[place] = 0.0
            else:
                self._down_h[place] += gap_h
        self._up, self._now_s = up, elapsed_s

    def factor(self, place: int) -> float:
        """How many times as often as the fit says this place loses its spot, now."""
        factor = (self._seen[place] + _PRIOR_LOSSES) / (self._hoped[place] + _PRIOR_LOSSES)
        siblings = self._siblings[place]
        if siblings:
            ups = sum(self._up[other] for other in siblings)
            if ups == len(siblings):
                factor *= _ALL_UP
            elif not ups:
                factor *= _ALL_DOWN
            if any(self._now_s - self._lost_s[other] <= _JUST_S for other in siblings):
                factor *= _JUST_LOST
        return factor

    def losses(self, place: int, hours: float) -> float:
        """Times that spot will be lost there in the next hours, if it is taken again at once.

        Before it is up, as if it came up now.
        """
        age_h, fit = max(self._age_h[place], 0.0), self._fits[place]
        return self.factor(place) * (fit(age_h + hours) - fit(age_h))

    def stay_h(self, place: int, hours: float) -> float:
        """How long a run of spot will probably go on there, at most ``hours``."""
        ages_h = [max(self._age_h[place], 0.0)]
        return _mean_h(ages_h, self._fits[place], self.factor(place), hours)

    def back_h(self, places: Sequence[int], hours: float) -> float:
        """How long it will probably take until one of these places has spot again, at most."""
        downs_h = [self._down_h[place] for place in places]
        return _mean_h(downs_h, _cumulative, _BACK_ALL_DOWN, hours)


def _mean_h(ages_h: Sequence[float], fit: Fit, factor: float, hours: float) -> float:
    """Mean time until the first of these changes, each of its age, cut off after ``hours``."""
    start = sum([fit(age_h) for age_h in ages_h])
    total, before_h, before = 0.0, 0.0, 1.0
    for part in (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0):
        at_h = hours * part
        losses = sum([fit(age_h + at_h) for age_h in ages_h]) - start
        alive = math.exp(-factor * losses)
        total += (at_h - before_h) * (alive + before) / 2
        before_h, before = at_h, alive
    return total


def _cumulative(age_h: float) -> float:
    """Losses up to an age, as the fit has them."""
    if age_h <= _YOUNGEST_H:
        return _HAZARD * math.pow(_YOUNGEST_H, -_FALL) * age_h
    young = _HAZARD * math.pow(_YOUNGEST_H, 1 - _FALL)
    power = 1 - _FALL
    return young + _HAZARD / power * (math.pow(age_h, power) - math.pow(_YOUNGEST_H, power))
