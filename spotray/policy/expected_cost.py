"""The market whose useful hour will probably cost least, from what launches keep teaching.

A useful hour is one in which the job steps: what a spot node costs while it starts, while the
job recovers and while nothing is to be had, is paid without one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from spotray.errors import ConfigError
from spotray.market.offer import Market
from spotray.market.prices import PriceTable
from spotray.market.survival import PRIOR, Weibull
from spotray.policy.decision import Attempt
from spotray.policy.evidence import Told
from spotray.policy.guarded import GuardConfig, Guarded, Ranking
from spotray.policy.view import Launched, LaunchView, Refusal

if TYPE_CHECKING:  # it brings pyarrow, and most launches know no lives
    from spotray.market.hazards import Hazards

HOUR_S = 3600.0


def _losses_per_hour(fit: Weibull) -> float:
    """Over the mean life."""
    return HOUR_S / (fit.scale_s * math.gamma(1 + 1 / fit.shape))


# Of the public availability traces of AWS V100: losses per node hour; the time without spot.
PRIOR_HAZARD_PER_HOUR = _losses_per_hour(PRIOR)
PRIOR_REFUSED_FRAC = 0.45
# Nobody tells when a node was let go: one that no loss is told of counts as seen alive so long.
_SEEN_S = 4 * HOUR_S
_LIKENESS = 0.5  # what another market shows counts so much: its own fate is not this one's


@dataclass(frozen=True, kw_only=True)
class ExpectedCostConfig(GuardConfig):
    """The numbers of `ExpectedCost`, beside those of its guard; all above 0."""

    recovery_s: float = 28.6  # that a loss stops the job: all at once, in benchmarks/recovery
    start_s: float = 180.0  # that a new node is paid before it is of use: boot and images
    refusal_s: float = 600.0  # of such a node's time that a refusal costs: elsewhere is dearer
    half_life_s: float = 6 * HOUR_S  # after which losses and node hours count half
    refusal_half_life_s: float = HOUR_S  # after which refusals and launches do
    prior_losses: float = 1.0  # as many seen losses the level above a market counts for
    prior_launches: float = 2.0  # as many launches and refusals it counts for
    spot_price_frac: float = 0.39  # of on-demand where a price is unknown: the table's median

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.spot_price_frac > 1:
            raise ConfigError(
                f"spot_price_frac is {self.spot_price_frac:g}: give a number above 0, at most 1"
            )


@dataclass(frozen=True, kw_only=True)
class Belief:
    """What is expected of a spot market now."""

    hazard_per_hour: float  # losses per node hour, > 0
    refusals: float  # before a launch that gives a node, >= 0


@dataclass(kw_only=True)
class _Seen:
    """What was seen of some markets, each part weighed by its age."""

    losses: float = 0.0
    hours: float = 0.0  # of nodes
    refused: float = 0.0
    asked: float = 0.0

    def add(self, other: _Seen, factor: float = 1.0) -> None:
        self.losses += factor * other.losses
        self.hours += factor * other.hours
        self.refused += factor * other.refused
        self.asked += factor * other.asked


class ExpectedCost(Guarded):
    """The spot market, or on-demand, whose useful hour will probably cost least.

    A useful hour of spot costs the price x (1 + hazard x (``start_s`` + ``recovery_s``)), of
    on-demand its price: spot is asked where it costs less. Between spot markets what refusals are
    expected counts as well, ``refusal_s`` each. Hazard and refusals are estimated from
    what is remembered of the market, drawn to what its siblings (same type or same zone) have
    shown, these to the rest of the cloud, that to the public traces. What is old counts less, so
    a market that was bad is tried again, and one that was good is not trusted for ever.
    Cool-downs, the limit of refusals and the loop guard are those of `Guarded`: they act within
    minutes, before a few losses can move an estimate.
    """

    def __init__(
        self,
        config: ExpectedCostConfig | None = None,
        *,
        prices: PriceTable | None = None,
        hazards: Hazards | None = None,
    ) -> None:
        """Take what is known beside the facts of a launch.

        Args:
            config: its numbers.
            prices: default: the table that comes with this package.
            hazards: of one's own nodes in earlier clusters; default: public traces.
        """
        self.config: ExpectedCostConfig = config or ExpectedCostConfig()
        self._prices = prices or _bundled()
        self._hazards = hazards

    def ranking(self, view: LaunchView, told: Told, free: list[Market]) -> Ranking:
        prices, unit = self._priced(view.candidates)
        beliefs = self.beliefs([one for one in free if one.spot], view.now_s, told)
        costs = {
            one: prices[one] * (1 + self._lost_frac(beliefs[one])) if one.spot else prices[one]
            for one in free
        }
        waits = {one: prices[one] * self._waited_frac(of) for one, of in beliefs.items()}
        # What costs the same but for a thousandth stays as configured: the sort is stable.
        ordered = sorted(free, key=lambda one: round(math.log(costs[one] + waits.get(one, 0.0)), 3))
        on_demand = [market for market in ordered if not market.spot]
        usual = min((prices[one] for one in view.candidates if not one.spot), default=math.inf)
        limit = min((prices[one] for one in on_demand), default=math.inf)
        beside = f"; on-demand {usual:.4g}" if usual < math.inf else ""
        spot: list[Attempt] = []
        dear: list[Attempt] = []
        for market in ordered:
            if not market.spot:
                continue
            why = (
                f"{costs[market]:.4g} {unit} a useful hour: spot at {prices[market]:.4g}, "
                f"{_of(beliefs[market])}{beside}"
            )
            # Whether it refuses is no reason not to ask: an answer takes seconds.
            (spot if costs[market] < limit else dear).append(Attempt(market=market, why=why))
        why = ""
        if on_demand:
            why = f"on-demand at {limit:.4g} {unit} a useful hour"
            best = min(beliefs, key=lambda one: costs[one], default=None)
            if best is not None:
                why += (
                    f"; spot {costs[best]:.4g} at best, in {best.zone} {best.instance_type}: "
                    f"{_of(beliefs[best])}"
                )
        return Ranking(spot=spot, on_demand=on_demand, dear=dear, why_on_demand=why)

    def beliefs(self, markets: Iterable[Market], now_s: float, told: Told) -> dict[Market, Belief]:
        """What to expect of spot markets, after what the facts say of them and their like."""
        own = self._seen(now_s, told)
        by_type: dict[tuple[str, str], _Seen] = {}
        by_zone: dict[tuple[str, str], _Seen] = {}
        by_cloud: dict[str, _Seen] = {}
        for market, seen in own.items():
            by_type.setdefault((market.cloud, market.instance_type), _Seen()).add(seen)
            by_zone.setdefault((market.cloud, market.zone), _Seen()).add(seen)
            by_cloud.setdefault(market.cloud, _Seen()).add(seen)
        found = {}
        for market in markets:
            mine = own.get(market, _Seen())
            # Each thing seen counts on one level: a market is one zone of one type.
            siblings, rest = _Seen(), _Seen()
            siblings.add(by_type.get((market.cloud, market.instance_type), mine), _LIKENESS)
            siblings.add(by_zone.get((market.cloud, market.zone), mine), _LIKENESS)
            siblings.add(mine, -2 * _LIKENESS)
            rest.add(by_cloud.get(market.cloud, mine), _LIKENESS)
            rest.add(siblings, -1.0)
            rest.add(mine, -_LIKENESS)
            before = self._before(market)
            found[market] = self._belief((rest, siblings, mine), before_per_hour=before)
        return found

    def _before(self, market: Market) -> float:
        """Losses per node hour to believe in before anything is remembered."""
        if self._hazards is None:
            return PRIOR_HAZARD_PER_HOUR
        return _losses_per_hour(self._hazards.of(market).fit)

    def _belief(self, levels: Iterable[_Seen], *, before_per_hour: float) -> Belief:
        """Each level's mean, drawn to the one above: conjugate gamma and beta priors."""
        ends, asks = self.config.prior_losses, self.config.prior_launches
        hazard, refused = before_per_hour, PRIOR_REFUSED_FRAC
        for seen in levels:  # what is left of a difference may be a rounding below 0
            hazard = (ends + max(seen.losses, 0.0)) / (ends / hazard + max(seen.hours, 0.0))
            refused = (asks * refused + max(seen.refused, 0.0)) / (asks + max(seen.asked, 0.0))
        return Belief(hazard_per_hour=hazard, refusals=refused / max(1 - refused, 1e-6))

    def _lost_frac(self, belief: Belief) -> float:
        """Paid time that is of no use, for each useful hour."""
        lost_s = self.config.start_s + self.config.recovery_s
        return belief.hazard_per_hour * lost_s / HOUR_S

    def _waited_frac(self, belief: Belief) -> float:
        """What refusals cost, for each useful hour: there is a launch after each loss."""
        return belief.hazard_per_hour * belief.refusals * self.config.refusal_s / HOUR_S

    def _seen(self, now_s: float, told: Told) -> dict[Market, _Seen]:
        """Losses, node hours and answers of each spot market."""
        found: dict[Market, _Seen] = {}
        ended: set[tuple[str, float]] = set()
        for market, lost in told.lost.items():
            if not market.spot:
                continue
            seen = found.setdefault(market, _Seen())
            for loss in lost:
                ended.add((loss.name, loss.born_s))
                at_s = min(loss.at_s, now_s)
                seen.losses += math.exp2((at_s - now_s) / self.config.half_life_s)
                seen.hours += self._hours(at_s - loss.lived_s, at_s, now_s)
                # What was just taken would hardly have been given.
                weight = math.exp2((at_s - now_s) / self.config.refusal_half_life_s)
                seen.refused += weight
                seen.asked += weight
        for market, answers in told.answers.items():
            if not market.spot:
                continue
            seen = found.setdefault(market, _Seen())
            for fact in answers:
                at_s = min(fact.at_s, now_s)
                weight = math.exp2((at_s - now_s) / self.config.refusal_half_life_s)
                if isinstance(fact, Launched):
                    seen.asked += weight
                    alive = sum((name, fact.at_s) not in ended for name in fact.names)
                    if alive:
                        until_s = min(at_s + _SEEN_S, now_s)
                        seen.hours += alive * self._hours(at_s, until_s, now_s)
                elif fact.kind in (Refusal.CAPACITY, Refusal.UNKNOWN):
                    seen.asked += weight
                    seen.refused += weight
        return found

    def _hours(self, from_s: float, to_s: float, now_s: float) -> float:
        """Hours of a node's life, each weighed by how long ago it was."""
        half_s = self.config.half_life_s
        grown = math.exp2((to_s - now_s) / half_s) - math.exp2((from_s - now_s) / half_s)
        return grown * half_s / math.log(2) / HOUR_S

    def _priced(self, candidates: tuple[Market, ...]) -> tuple[Mapping[Market, float], str]:
        """The price of a node in each market, and the unit: a ratio where no price is known."""
        frac = self.config.spot_price_frac
        found: dict[Market, float] = {}
        for market in candidates:
            where = (market.cloud, market.region, market.instance_type)
            if price := self._prices.find(*where, spot=market.spot):
                found[market] = price.middle_usd_per_hour
            elif price := self._prices.find(*where, spot=not market.spot):
                usd = price.middle_usd_per_hour
                found[market] = usd * frac if market.spot else usd / frac
        # A type without a price costs what those with one do.
        steady = [usd / (frac if one.spot else 1.0) for one, usd in found.items()]
        usual = sum(steady) / len(steady) if steady else 1.0
        for market in candidates:
            found.setdefault(market, usual * frac if market.spot else usual)
        return found, "USD" if steady else "of on-demand"


def _of(belief: Belief) -> str:
    return f"{belief.hazard_per_hour:.2g} losses an hour, {belief.refusals:.1f} refusals a launch"


@cache
def _bundled() -> PriceTable:
    return PriceTable.bundled()
