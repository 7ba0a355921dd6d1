"""How long spot nodes live: what was seen, with its uncertainty, and a smooth fit to it.

A life that has not ended counts for as long as it was seen: it is censored, not left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from spotray.errors import ConfigError

_Z95 = 1.959964
_ROUNDS = 60  # of bisection
_QUANTILES = 100  # by which a prior is told


@dataclass(frozen=True, kw_only=True)
class Life:
    """One node: for how long it was seen, and whether that was its end by preemption."""

    seconds: float
    ended: bool

    def __post_init__(self) -> None:
        if not 0 <= self.seconds < math.inf:
            raise ConfigError(f"a life of {self.seconds!r} s: give a number of at least 0")


@dataclass(frozen=True, kw_only=True)
class Step:
    """Survival from an age on, with 95 % confidence."""

    age_s: float
    alive_frac: float
    low_frac: float
    high_frac: float
    at_risk: int  # nodes seen at that age


def kaplan_meier(lives: Iterable[Life]) -> list[Step]:
    """The share of nodes that live longer than each age at which one was taken.

    The confidence is Greenwood's, on the log-minus-log scale, which keeps it within 0 and 1.

    Source:
        E. L. Kaplan, P. Meier, "Nonparametric estimation from incomplete observations",
        JASA 53, 1958.

    >>> [round(step.alive_frac, 3) for step in kaplan_meier(
    ...     [Life(seconds=1, ended=True), Life(seconds=2, ended=False), Life(seconds=3, ended=True)]
    ... )]
    [0.667, 0.0]
    """
    given = sorted(lives, key=lambda life: life.seconds)
    found: list[Step] = []
    alive, variance, left = 1.0, 0.0, len(given)
    for age_s, same in groupby(given, key=lambda life: life.seconds):
        ends = [life.ended for life in same]
        at_risk, ended = left, sum(ends)
        left -= len(ends)
        if not ended:
            continue
        alive *= 1 - ended / at_risk
        if ended < at_risk:
            variance += ended / (at_risk * (at_risk - ended))
        low, high = _log_log(alive, variance)
        found.append(
            Step(age_s=age_s, alive_frac=alive, low_frac=low, high_frac=high, at_risk=at_risk)
        )
    return found


def _log_log(alive: float, variance: float) -> tuple[float, float]:
    if not 0 < alive < 1:
        return (0.0, 0.0) if alive <= 0 else (1.0, 1.0)
    width = _Z95 * math.sqrt(variance) / abs(math.log(alive))
    return alive ** math.exp(width), alive ** math.exp(-width)


@dataclass(frozen=True, kw_only=True)
class Weibull:
    """A hazard that falls with age (``shape`` below 1), stays (1) or grows (above 1).

    ``limit_s``: nobody lives longer, as Google's preemptible machines, which are all stopped
    after 24 hours.
    """

    shape: float
    scale_s: float  # 63 % live no longer
    log_shape_error: float = math.nan  # standard errors, of the logarithms
    log_scale_error: float = math.nan
    log_covariance: float = 0.0  # of the two logarithms
    limit_s: float = math.inf

    def alive_frac(self, age_s: float) -> float:
        """The share of nodes that live longer than ``age_s``."""
        return 0.0 if age_s >= self.limit_s else math.exp(-self.cumulative(age_s))

    def cumulative(self, age_s: float) -> float:
        """Losses that a node would meet up to an age if it were replaced at once, >= 0."""
        return math.pow(age_s / self.scale_s, self.shape)

    def hazard_per_hour(self, age_s: float) -> float:
        """Losses per hour of nodes of that age, > 0; infinite at 0 if it falls with age."""
        if age_s >= self.limit_s or (age_s <= 0 and self.shape < 1):
            return math.inf
        old = math.pow(age_s / self.scale_s, self.shape - 1)
        return 3600 * self.shape / self.scale_s * old

    def alive_after_frac(self, seconds: float, *, age_s: float) -> float:
        """The share of nodes of that age that live ``seconds`` longer."""
        if age_s + seconds >= self.limit_s:
            return 0.0
        return math.exp(self.cumulative(age_s) - self.cumulative(age_s + seconds))

    def alive_range(self, age_s: float) -> tuple[float, float]:
        """Between which two values `alive_frac` lies with 95 % confidence; (0, 1) if unknown."""
        if age_s <= 0 or age_s >= self.limit_s:
            return (1.0, 1.0) if age_s <= 0 else (0.0, 0.0)
        width = _Z95 * self._error(self.shape * math.log(age_s / self.scale_s))
        if math.isnan(width):
            return 0.0, 1.0
        losses = self.cumulative(age_s)
        return math.exp(-losses * math.exp(width)), math.exp(-losses * math.exp(-width))

    def hazard_range(self, age_s: float) -> tuple[float, float]:
        """Between which two values `hazard_per_hour` lies with 95 % confidence, at an age > 0."""
        hazard = self.hazard_per_hour(age_s)
        width = _Z95 * self._error(1 + self.shape * math.log(age_s / self.scale_s))
        if math.isnan(width) or math.isinf(hazard):
            return 0.0, math.inf
        return hazard * math.exp(-width), hazard * math.exp(width)

    def _error(self, by_log_shape: float) -> float:
        """Standard error of a logarithm: its slopes are that by log shape, -shape by log scale."""
        variance = (
            (by_log_shape * self.log_shape_error) ** 2
            + (self.shape * self.log_scale_error) ** 2
            - 2 * by_log_shape * self.shape * self.log_covariance
        )
        return variance if math.isnan(variance) else math.sqrt(max(variance, 0.0))


# Of the public availability traces of AWS V100: what to believe before anything is seen.
PRIOR = Weibull(shape=0.5, scale_s=2 * 3600.0)
PRIOR_ENDS = 3.0  # as many seen losses the prior counts for


def fit_weibull(
    lives: Sequence[Life], *, prior: Weibull = PRIOR, prior_ends: float = PRIOR_ENDS
) -> Weibull:
    """The likeliest Weibull, drawn to ``prior`` while there is little data.

    The prior counts as ``prior_ends`` further losses, with lives at the prior's quantiles; with
    none seen the answer is the prior but for a few per cent, with hundreds it does not matter.

    Raises:
        ConfigError: nothing to fit: no loss seen, and a prior that counts for none.
    """
    # Seconds, and how many losses and lives each counts for.
    points = [(life.seconds, 1.0 if life.ended else 0.0, 1.0) for life in lives if life.seconds > 0]
    if prior_ends > 0:
        share = prior_ends / _QUANTILES
        for index in range(_QUANTILES):
            alive_frac = (index + 0.5) / _QUANTILES
            age_s = prior.scale_s * (-math.log(alive_frac)) ** (1 / prior.shape)
            points.append((age_s, share, share))
    ends = sum(end for _, end, _ in points)
    if ends <= 0:
        raise ConfigError("no loss was seen: give lives with an end, or a prior that counts")
    shape = _root_of_shape(points, ends)
    total = sum(count * age_s**shape for age_s, _, count in points)
    scale_s = (total / ends) ** (1 / shape)
    # Observed information of (log shape, log scale), inverted.
    first = second = 0.0
    for age_s, _, count in points:
        log_age = shape * math.log(age_s / scale_s)
        first += count * math.exp(log_age) * log_age
        second += count * math.exp(log_age) * log_age**2
    # d2/dlogk2 = -(ends + second) up to terms that vanish at the optimum.
    kk, ks, ss = ends + second, -shape * first, shape**2 * ends
    determinant = kk * ss - ks * ks
    return Weibull(
        shape=shape,
        scale_s=scale_s,
        log_shape_error=math.sqrt(ss / determinant),
        log_scale_error=math.sqrt(kk / determinant),
        log_covariance=-ks / determinant,
    )


def _root_of_shape(points: Sequence[tuple[float, float, float]], ends: float) -> float:
    """The shape at which the profile likelihood is flat, by bisection of its logarithm."""
    longest_s = max(age_s for age_s, _, _ in points)
    scaled = [(math.log(age_s / longest_s), end, count) for age_s, end, count in points]
    mean_log = sum(end * log_age for log_age, end, _ in scaled) / ends

    def slope(shape: float) -> float:
        weights = [count * math.exp(shape * log_age) for log_age, _, count in scaled]
        total = sum(weights)
        weighed = sum(w * one[0] for w, one in zip(weights, scaled, strict=True)) / total
        return 1 / shape + mean_log - weighed

    low, high = math.log(1e-3), math.log(1e3)
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        if slope(math.exp(middle)) > 0:
            low = middle
        else:
            high = middle
    return math.exp((low + high) / 2)
