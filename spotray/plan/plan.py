"""The ways to run one job side by side: what each probably costs, and when it is done."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from spotray.errors import ConfigError
from spotray.market.hazards import Hazards
from spotray.market.prices import PriceRange, PriceTable, sources
from spotray.market.sale import ForSale, for_sale
from spotray.plan.beliefs import Beliefs
from spotray.plan.forecast import (
    ZONES,
    Forecast,
    SpotNodes,
    in_some_zone,
    on_demand_only,
    on_spot,
)
from spotray.plan.rates import Rate
from spotray.plan.restarts import ALL_LOST_S, START_S, Restarts, expected_restarts
from spotray.sim.fleet_named import fleet_policy
from spotray.sim.named import DEFAULT, policy

_MILLION = 1e6
_SPOT_ONLY, _ANY_ZONE = "spot-only", "multi-zone"
_SLACK = 1.5  # of a job whose deadline nobody said

Rates = Mapping[tuple[str, str], Rate]  # by cloud and instance type


@dataclass(frozen=True, kw_only=True)
class Wish:
    """The job: so many hours of work on so many GPUs of a kind.

    Args:
        gpus: that work together, >= 1.
        gpu: their kind, as the catalog calls it.
        hours: that they take undisturbed, > 0.
        deadline_h: from the start; None: half as long again as the work.
        cloud, region: only there; empty: wherever it is cheapest.
        samples_per_s: of one such GPU; None: as measured, or unknown.
        start_s: from asking for a machine until it can work.
        preemptible: Google's older kind of spot, whose machines end after 24 hours.

    Raises:
        ConfigError: a value is out of range.
    """

    gpus: int
    gpu: str
    hours: float
    deadline_h: float | None = None
    cloud: str = ""
    region: str = ""
    samples_per_s: float | None = None
    start_s: float = START_S
    preemptible: bool = False

    def __post_init__(self) -> None:
        if self.preemptible and self.cloud not in ("", "gcp"):
            raise ConfigError(f"--preemptible is of gcp, --cloud is {self.cloud}: leave one out")
        if self.gpus < 1:
            raise ConfigError(f"--gpus is {self.gpus}: give at least 1")
        for name in ("hours", "deadline_h", "samples_per_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{_FLAGS[name]} is {value:g}: give a number above 0")
        if not 0 <= self.start_s < math.inf:
            raise ConfigError(f"--start is {self.start_s / 60:g} min: give at least 0")

    @property
    def work_s(self) -> float:
        return self.hours * 3600

    @property
    def deadline_s(self) -> float:
        """From the job's start, seconds."""
        if self.deadline_h is not None:
            return self.deadline_h * 3600
        return _SLACK * self.work_s + self.start_s


_FLAGS = {"hours": "--hours", "deadline_h": "--deadline", "samples_per_s": "--samples-per-s"}


@dataclass(frozen=True, kw_only=True)
class Option:
    """One way to run the job."""

    name: str  # "on-demand", "spot, lookahead", "spot, multi-zone", "spot only"
    machines: int
    offer: ForSale
    policy: str  # empty: on-demand, nothing to decide
    work_s: float
    forecast: Forecast
    usd_per_million_samples: float | None


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """One type on one market, with what preemptions and restarts cost in the mean."""

    machines: int
    offer: ForSale
    spot: bool
    usd_per_hour: float  # of all machines
    restarts: Restarts | None  # None on on-demand
    usd_per_gpu_hour: float  # of work
    samples_per_s: float | None  # of all machines
    is_measured: bool  # on this very type
    usd_per_million_samples: float | None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All ways, and all types by what a sample costs on them."""

    wish: Wish
    options: tuple[Option, ...]
    ranking: tuple[Ranked, ...]
    notes: tuple[str, ...]


def plan(
    wish: Wish,
    prices: PriceTable,
    rates: Rates | None = None,
    *,
    hazards: Hazards | None = None,
    now_s: float | None = None,
) -> Plan:
    """Compare one machine with all GPUs and as many machines with one, on demand and on spot.

    Args:
        wish: the job.
        prices: of whatever table.
        rates: measured, of one model; see `spotray.plan.rates`.
        hazards: of one's own nodes; None: public traces are believed.
        now_s: Unix seconds, to say how old the prices are; None: leave that out.

    Raises:
        ConfigError: no such GPU, no offer that fits, or a deadline that on-demand cannot meet.
    """
    rates = rates or {}
    beliefs = Beliefs(hazards=hazards, preemptible=wish.preemptible)
    known = for_sale(prices, cloud=wish.cloud, gpu=wish.gpu, region=wish.region)
    one_gpu = _one_gpu_rate(wish, rates)
    ways, notes = _ways(wish, known)
    works = [_work_s(wish, one.offer, one.machines, rates, one_gpu) for one in ways]
    _check_deadline(wish, works)
    options = tuple(
        _option(wish, one, work_s, one_gpu, beliefs)
        for one, work_s in zip(ways, works, strict=True)
    )
    return Plan(
        wish=wish,
        options=options,
        ranking=tuple(_ranking(wish, prices, rates, one_gpu, beliefs)),
        notes=(*notes, *_notes(wish, options, rates, one_gpu, beliefs, now_s)),
    )


@dataclass(frozen=True, kw_only=True)
class _Way:
    """What is compared: so many machines of an offer, and who decides."""

    name: str
    machines: int
    offer: ForSale
    policy: str = ""


def _ways(wish: Wish, known: Sequence[ForSale]) -> tuple[list[_Way], list[str]]:
    """The ways that have their prices, in one region if possible; and what the others lack."""
    singles = [one for one in known if one.type.gpus == 1]
    together = [one for one in known if one.type.gpus == wish.gpus and wish.gpus > 1]
    chosen = _choose(singles, together)
    big = _cheapest(_near(together, chosen), spot=False) or _cheapest(together, spot=False)
    steady = _cheapest(_near(singles, chosen), spot=False) or _cheapest(singles, spot=False)
    alone = chosen or _cheapest(singles, spot=True)
    ways, lacking = [], []
    if big is not None:
        ways.append(_Way(name="on-demand", machines=1, offer=big))
    elif wish.gpus > 1:
        lacking.append(f"no on-demand price is known of a machine with {wish.gpus} {wish.gpu}")
    if steady is not None:
        ways.append(_Way(name="on-demand", machines=wish.gpus, offer=steady))
    else:
        lacking.append(f"no on-demand price is known of a machine with one {wish.gpu}")
    if chosen is not None:
        name = f"spot, {DEFAULT}"
        ways.append(_Way(name=name, machines=wish.gpus, offer=chosen, policy=DEFAULT))
        name = f"spot, {_ANY_ZONE}"
        ways.append(_Way(name=name, machines=wish.gpus, offer=chosen, policy=_ANY_ZONE))
    else:
        lacking.append(
            f"no machine with one {wish.gpu} is known with its spot and its on-demand price"
        )
    if alone is not None:
        way = _Way(name="spot only", machines=wish.gpus, offer=alone, policy=_SPOT_ONLY)
        ways.append(way)
    if not ways:
        counts = f"one{f' or {wish.gpus}' if wish.gpus > 1 else ''}"
        raise ConfigError(
            f"no price is known of a machine with {counts} {wish.gpu}, which a plan compares: "
            "ask the cloud with `spotray prices --refresh`, or give rows with --prices FILE"
        )
    return ways, lacking


def _check_deadline(wish: Wish, works: Sequence[float]) -> None:
    earliest_s = wish.start_s + min(works)
    if earliest_s > wish.deadline_s + 1e-6:
        raise ConfigError(
            f"the deadline of {wish.deadline_s / 3600:g} h cannot be met even on on-demand: "
            f"{min(works) / 3600:g} h of work and {wish.start_s / 60:g} min to start take "
            f"{earliest_s / 3600:.2f} h: give --deadline {_up(earliest_s / 3600)} or more GPUs"
        )


def _up(hours: float) -> str:
    return f"{math.ceil(hours * 100 - 1e-6) / 100:g}"


def _choose(singles: Sequence[ForSale], together: Sequence[ForSale]) -> ForSale | None:
    """The cheapest machine with one GPU on spot, where all ways can be compared if possible."""
    both = [one for one in singles if one.spot is not None and one.on_demand is not None]
    places = {(one.cloud, one.region) for one in together if one.on_demand is not None}
    here = [one for one in both if (one.cloud, one.region) in places]
    return _cheapest(here or both, spot=True)


def _near(offers: Iterable[ForSale], other: ForSale | None) -> list[ForSale]:
    """Those of the same region."""
    return [
        one
        for one in offers
        if other is None or (one.cloud, one.region) == (other.cloud, other.region)
    ]


def _cheapest(offers: Iterable[ForSale], *, spot: bool) -> ForSale | None:
    priced = [(_price(one, spot=spot), one) for one in offers]
    found = [(price.middle_usd_per_hour, one) for price, one in priced if price is not None]
    return min(found, key=lambda pair: pair[0], default=(0.0, None))[1]


def _price(offer: ForSale, *, spot: bool) -> PriceRange | None:
    return offer.spot if spot else offer.on_demand


def _one_gpu_rate(wish: Wish, rates: Rates) -> float | None:
    """Samples per second of one such GPU: said, or measured on the smallest machine."""
    if wish.samples_per_s is not None:
        return wish.samples_per_s
    measured = sorted(
        (one.gpus, one.samples_per_s) for one in rates.values() if one.gpu == wish.gpu
    )
    return measured[0][1] / measured[0][0] if measured else None


def _work_s(
    wish: Wish, offer: ForSale, machines: int, rates: Rates, one_gpu: float | None
) -> float:
    """How long the work takes there: as wished, unless it was measured to be otherwise."""
    rate = rates.get((offer.cloud, offer.type.name))
    if rate is None or one_gpu is None:
        return wish.work_s
    return wish.work_s * (one_gpu * wish.gpus) / (rate.samples_per_s * machines)


def _option(
    wish: Wish, way: _Way, work_s: float, one_gpu: float | None, beliefs: Beliefs
) -> Option:
    forecast = _forecast(wish, way, work_s, beliefs)
    if forecast.runs == 1 and forecast.end_s.middle > wish.deadline_s + 1e-6:
        forecast = dataclasses.replace(forecast, late_frac=1.0)
    samples = None if one_gpu is None else one_gpu * wish.gpus * wish.work_s
    return Option(
        name=way.name,
        machines=way.machines,
        offer=way.offer,
        policy=way.policy,
        work_s=work_s,
        forecast=forecast,
        usd_per_million_samples=(
            None if samples is None else forecast.cost_usd.middle / samples * _MILLION
        ),
    )


def _forecast(wish: Wish, way: _Way, work_s: float, beliefs: Beliefs) -> Forecast:
    offer = way.offer
    if not way.policy:
        assert offer.on_demand is not None
        return on_demand_only(
            offer.on_demand, nodes=way.machines, work_s=work_s, start_s=wish.start_s
        )
    assert offer.spot is not None
    on = SpotNodes(
        spot=offer.spot,
        on_demand=None if way.policy == _SPOT_ONLY else offer.on_demand,
        nodes=way.machines,
        start_s=wish.start_s,
        cloud=offer.cloud,
        limit_s=beliefs.survival(offer).limit_s,
        losses=beliefs.losses(offer),
    )
    if way.policy == _ANY_ZONE:
        anywhere = fleet_policy(_ANY_ZONE, beliefs.hazards)
        return in_some_zone(anywhere, on, work_s=work_s, deadline_s=wish.deadline_s)
    return on_spot(policy(way.policy), on, work_s=work_s, deadline_s=wish.deadline_s)


def _ranking(
    wish: Wish, prices: PriceTable, rates: Rates, one_gpu: float | None, beliefs: Beliefs
) -> list[Ranked]:
    """Each type that can make up the GPUs, on each market at its cheapest region."""
    best: dict[tuple[str, str, bool], Ranked] = {}
    for offer in for_sale(prices, cloud=wish.cloud, region=wish.region):
        kind = offer.type
        rate = rates.get((offer.cloud, kind.name))
        if wish.gpus % kind.gpus or (kind.gpu != wish.gpu and rate is None):
            continue
        machines = wish.gpus // kind.gpus
        speed = machines * rate.samples_per_s if rate else None
        if speed is None and one_gpu is not None:
            speed = one_gpu * wish.gpus
        for spot in (True, False):
            price = _price(offer, spot=spot)
            if price is None:
                continue
            usd_per_hour = machines * price.middle_usd_per_hour
            survival = beliefs.survival(offer)
            restarts = (
                expected_restarts(nodes=machines, start_s=wish.start_s, survival=survival)
                if spot
                else None
            )
            work_usd = restarts.usd_per_work_hour(usd_per_hour) if restarts else usd_per_hour
            ranked = Ranked(
                machines=machines,
                offer=offer,
                spot=spot,
                usd_per_hour=usd_per_hour,
                restarts=restarts,
                usd_per_gpu_hour=work_usd / wish.gpus,
                samples_per_s=speed,
                is_measured=rate is not None,
                usd_per_million_samples=work_usd / (speed * 3600) * _MILLION if speed else None,
            )
            key = (offer.cloud, kind.name, spot)
            if key not in best or best[key].usd_per_hour > usd_per_hour:
                best[key] = ranked
    return sorted(
        best.values(), key=lambda one: one.usd_per_million_samples or one.usd_per_gpu_hour
    )


def _notes(
    wish: Wish,
    options: Sequence[Option],
    rates: Rates,
    one_gpu: float | None,
    beliefs: Beliefs,
    now_s: float | None,
) -> Iterable[str]:
    """What the numbers rest on."""
    if wish.deadline_h is None:
        yield f"no deadline was given: {wish.deadline_s / 3600:.1f} h"
    if one_gpu is None:
        yield (
            f"no rate is known: any machine with {wish.gpus} {wish.gpu} is taken to be as fast; "
            "measure with `spotray bench-node`, or give --samples-per-s"
        )
    elif not all((one.offer.cloud, one.offer.type.name) in rates for one in options):
        yield "types that were not measured are taken to be as fast as others with that GPU"
    spot = [one for one in options if one.policy]
    if spot:
        runs = max(one.forecast.runs for one in spot)
        yield (
            f"spot: {max(1, runs // ZONES)} made-up regions of {ZONES} zones, where it comes and "
            "goes as in public traces, for all machines at once; spot, "
            f"{DEFAULT} and spot only stay in one zone, spot, {_ANY_ZONE} goes to any of them"
        )
        yield (
            f"a start takes {wish.start_s / 60:g} min, going on after all nodes were lost "
            f"{ALL_LOST_S:.0f} s; neither the start nor the notice was measured on a cloud"
        )
        yield from beliefs.notes(one.offer for one in spot)
    prices = [
        price
        for one in options
        for price in (one.offer.spot, one.offer.on_demand)
        if price is not None
    ]
    told = "; ".join(sources(prices, now_s=now_s)) or "of your file"
    yield f"prices: {told}; disks and traffic are not in it"
