"""The risk of losing a spot node, by market, type, zone, age and hour, from lives that were seen.

Little is known of one market at first, more of its type, most of all spot. So each level's
fit is drawn to the level above it, the topmost to a prior from public traces.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from spotray.errors import ConfigError
from spotray.market.lives import NodeLife
from spotray.market.offer import Market
from spotray.market.survival import PRIOR, PRIOR_ENDS, Life, Weibull, fit_weibull

HOUR_S = 3600.0
GOOGLE_LIMIT_S = 24 * HOUR_S  # Google stops every preemptible machine then; its Spot has no limit
_AT_LIMIT_S = (-900.0, 360.0)  # around the limit: stopped by it
_AGES_H = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 24.0, 48.0, 96.0, 192.0, math.inf)
_BAND_H = 3  # of the day
_HOUR_ENDS = 4.0  # expected losses for which "an hour is like any other" counts
_Z95 = 1.959964


@dataclass(frozen=True, kw_only=True)
class AgeBand:
    """Losses of nodes between two ages over the time that nodes of that age were seen."""

    from_s: float
    to_s: float  # infinite for the last
    losses: int
    node_hours: float
    hazard_per_hour: float
    low_per_hour: float  # 95 % confidence, of a Poisson count
    high_per_hour: float


@dataclass(frozen=True, kw_only=True)
class HourFactor:
    """How much likelier a loss is at an hour of the day, beside a node of that age at any hour."""

    from_hour: int  # UTC
    to_hour: int
    losses: int
    expected: float  # losses, were all hours alike
    factor: float
    low: float  # 95 %
    high: float


@dataclass(frozen=True, kw_only=True)
class Hazard:
    """What is known of one level: of all spot, of a cloud's, of a type's, of one market."""

    name: str
    lives: int
    losses: int
    node_hours: float
    fit: Weibull


@dataclass(frozen=True, kw_only=True)
class Hazards:
    """All levels, and the hours of each region."""

    levels: dict[str, Hazard]
    hours: dict[str, tuple[HourFactor, ...]]  # by cloud/region

    def of(self, market: Market) -> Hazard:
        """The finest level that has seen a node: the market's, its type's, its cloud's, or all.

        >>> learn([]).of(Market.parse("aws/us-east-1a/g5.xlarge/spot")).name
        'all spot'
        """
        return self._finest(_levels(market))

    def of_type(self, cloud: str, instance_type: str) -> Hazard:
        """As `of`, of a type in any zone."""
        return self._finest((_ALL, cloud, f"{cloud}/{instance_type}"))

    def hazard_per_hour(self, market: Market, *, age_s: float, at_s: float | None = None) -> float:
        """Losses per hour of a node of that age; at that time of the day if ``at_s`` is given."""
        factor = 1.0 if at_s is None else self._factor(market, at_s)
        return factor * self.of(market).fit.hazard_per_hour(age_s)

    def alive_after_frac(
        self, market: Market, seconds: float, *, age_s: float, at_s: float | None = None
    ) -> float:
        """The chance that a node of that age lives ``seconds`` longer, from ``at_s`` on."""
        fit = self.of(market).fit
        if at_s is None or age_s + seconds >= fit.limit_s:
            return fit.alive_after_frac(seconds, age_s=age_s)
        losses = 0.0
        for low_s, high_s in _cut_by_hours(at_s, at_s + seconds):
            grown = fit.cumulative(age_s + high_s - at_s) - fit.cumulative(age_s + low_s - at_s)
            losses += self._factor(market, low_s) * grown
        return math.exp(-losses)

    def _finest(self, names: Sequence[str]) -> Hazard:
        return next(self.levels[name] for name in reversed(names) if name in self.levels)

    def _factor(self, market: Market, at_s: float) -> float:
        factors = self.hours.get(f"{market.cloud}/{market.region}")
        return factors[_band(at_s)].factor if factors else 1.0


def learn(lives: Iterable[NodeLife], *, prior: Weibull = PRIOR) -> Hazards:
    """What lives of spot nodes say of every market that they were in, and of its like.

    Raises:
        ConfigError: a life is of an on-demand market.
    """
    seen = list(lives)
    groups: dict[str, list[NodeLife]] = {}
    parents: dict[str, str] = {}
    markets: dict[str, Market] = {}
    for one in seen:
        if one.market not in markets:
            markets[one.market] = Market.parse(one.market)
            if not markets[one.market].spot:
                raise ConfigError(f"{one.market}: only spot nodes have a hazard")
        names = _levels(markets[one.market])
        parents.update((child, parent) for parent, child in pairwise(names))
        for name in names:
            groups.setdefault(name, []).append(one)
    groups.setdefault(_ALL, [])
    levels: dict[str, Hazard] = {}
    # From the top: a parent's name is always shorter, "all spot" aside.
    for name in sorted(groups, key=lambda name: (name != _ALL, name.count("/"), name)):
        above = levels[parents[name]].fit if name in parents else prior
        levels[name] = _level(name, groups[name], replace(above, limit_s=math.inf))
    hours = {
        region: _hours([(one, levels[_levels(market)[-1]].fit) for one, market in told])
        for region, told in _by_region(seen, markets).items()
    }
    return Hazards(levels=levels, hours=hours)


_ALL = "all spot"


def _levels(market: Market) -> tuple[str, ...]:
    cloud, kind = market.cloud, market.instance_type
    return (_ALL, cloud, f"{cloud}/{kind}", f"{cloud}/{market.zone}/{kind}")


def _level(name: str, group: Sequence[NodeLife], prior: Weibull) -> Hazard:
    limit_s = _limit_s(group) if name.startswith("gcp") else math.inf
    lives = [_before_limit(one.life, limit_s) for one in group]
    return Hazard(
        name=name,
        lives=len(lives),
        losses=sum(one.ended for one in group),
        node_hours=sum(one.seconds for one in group) / HOUR_S,
        fit=replace(fit_weibull(lives, prior=prior, prior_ends=PRIOR_ENDS), limit_s=limit_s),
    )


def _limit_s(group: Sequence[NodeLife]) -> float:
    """Google's 24 hours, if they show: several ended there, and nobody lived on."""
    early_s, late_s = _AT_LIMIT_S
    longest_s = max((one.seconds for one in group), default=0.0)
    at_limit = sum(one.ended and one.seconds >= GOOGLE_LIMIT_S + early_s for one in group)
    applies = at_limit >= 2 and longest_s <= GOOGLE_LIMIT_S + late_s
    return GOOGLE_LIMIT_S if applies else math.inf


def _before_limit(life: Life, limit_s: float) -> Life:
    """A life that the limit ended says nothing of what else might have: it is censored."""
    at_limit = life.seconds >= limit_s + _AT_LIMIT_S[0]
    return replace(life, ended=False) if life.ended and at_limit else life


def age_bands(lives: Iterable[Life]) -> list[AgeBand]:
    """The hazard by age as it was seen, without any model; ages that nobody reached are left out.

    Source:
        The confidence is Byar's approximation to that of a Poisson count: N. E. Breslow,
        N. E. Day, "Statistical Methods in Cancer Research" II, 1987.
    """
    given = list(lives)
    found = []
    for from_h, to_h in pairwise(_AGES_H):
        from_s, to_s = from_h * HOUR_S, to_h * HOUR_S
        seen_s = sum(min(one.seconds, to_s) - from_s for one in given if one.seconds > from_s)
        if seen_s <= 0:
            continue
        losses = sum(one.ended and from_s <= one.seconds < to_s for one in given)
        node_hours = seen_s / HOUR_S
        low, high = _poisson_range(losses)
        found.append(
            AgeBand(
                from_s=from_s,
                to_s=to_s,
                losses=losses,
                node_hours=node_hours,
                hazard_per_hour=losses / node_hours,
                low_per_hour=low / node_hours,
                high_per_hour=high / node_hours,
            )
        )
    return found


def _poisson_range(count: int) -> tuple[float, float]:
    more = count + 1
    low = count * (1 - 1 / (9 * count) - _Z95 / (3 * math.sqrt(count))) ** 3 if count else 0.0
    return max(low, 0.0), more * (1 - 1 / (9 * more) + _Z95 / (3 * math.sqrt(more))) ** 3


def _by_region(
    lives: Iterable[NodeLife], markets: dict[str, Market]
) -> dict[str, list[tuple[NodeLife, Market]]]:
    found: dict[str, list[tuple[NodeLife, Market]]] = {}
    for one in lives:
        market = markets[one.market]
        found.setdefault(f"{market.cloud}/{market.region}", []).append((one, market))
    return found


def _hours(told: Sequence[tuple[NodeLife, Weibull]]) -> tuple[HourFactor, ...]:
    """Losses in each part of the day over those that the nodes' ages let one expect."""
    expected = [0.0] * (24 // _BAND_H)
    losses = [0] * (24 // _BAND_H)
    for one, fit in told:
        end_s = one.start_s + min(one.seconds, fit.limit_s)
        for low_s, high_s in _cut_by_hours(one.start_s, end_s):
            grown = fit.cumulative(high_s - one.start_s) - fit.cumulative(low_s - one.start_s)
            expected[_band(low_s)] += grown
        if _before_limit(one.life, fit.limit_s).ended:
            losses[_band(one.start_s + one.seconds)] += 1
    # The fit may be drawn to its prior; the hours are about one another only.
    scale = sum(losses) / sum(expected) if any(losses) and sum(expected) > 0 else 1.0
    found = []
    for index, (count, hoped) in enumerate(zip(losses, expected, strict=True)):
        hoped *= scale
        weight = count + _HOUR_ENDS
        factor = weight / (hoped + _HOUR_ENDS)
        # Quantiles of a gamma distribution of that weight, by Wilson and Hilferty.
        low, high = (
            max(1 - 1 / (9 * weight) + sign * _Z95 / (3 * math.sqrt(weight)), 0.0) ** 3
            for sign in (-1, 1)
        )
        found.append(
            HourFactor(
                from_hour=index * _BAND_H,
                to_hour=(index + 1) * _BAND_H,
                losses=count,
                expected=hoped,
                factor=factor,
                low=factor * low,
                high=factor * high,
            )
        )
    return tuple(found)


def _band(at_s: float) -> int:
    return int(at_s // HOUR_S) % 24 // _BAND_H


def _cut_by_hours(from_s: float, to_s: float) -> Iterable[tuple[float, float]]:
    """A span of time, cut where one part of the day ends and the next begins."""
    band_s = _BAND_H * HOUR_S
    low_s = from_s
    while low_s < to_s:
        high_s = min((low_s // band_s + 1) * band_s, to_s)
        yield low_s, high_s
        low_s = high_s
