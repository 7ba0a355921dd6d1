"""Asking a cloud again and again how spot stands, without a launch and without a cost."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from spotray.clock import Clock
from spotray.cloud.prices import PlacementScorer, PriceSource, Quote, Score
from spotray.cloud.retry import patiently
from spotray.errors import ConfigError, NotPermittedError, SpotrayError
from spotray.events import SpotObserved

_PRICES_EVERY_S = 3600.0  # they move slowly, and Google's catalog is long


@dataclass(frozen=True, kw_only=True)
class Watch:
    """What is asked, at every look the same."""

    cloud: str
    region: str
    types: tuple[str, ...]  # any of them will do
    nodes: int
    every_s: float  # from one look to the next, seconds


@dataclass(frozen=True, kw_only=True)
class Look:
    """What one look brought. ``problems``: what was not answered, a line each."""

    at_s: float  # Unix seconds
    zones: tuple[SpotObserved, ...] = ()
    problems: tuple[str, ...] = ()


class DryRuns(Protocol):
    """Asks a cloud what it would refuse a spot launch for."""

    def zones(self) -> list[str]:
        """The region's zones that can be asked about.

        Raises: as `refusal`.
        """
        ...

    def refusal(self, zone: str, instance_type: str) -> str:
        """Capacity, quota or not-offered; empty if nothing would keep a launch from it.

        Raises:
            ConfigError: the question itself is wrong.
            NotPermittedError: these credentials may not ask: nothing is known.
            ThrottledError: ask again later.
            NotAnswered: no answer that anybody understands.
        """
        ...


class Probe(Protocol):
    """Looks once at all zones of a region."""

    def look(self, watch: Watch) -> Look:
        """How spot stands now.

        Raises:
            ConfigError: no credentials, no such region, or a question that makes no sense.
            NotPermittedError: these credentials may not ask.
            ThrottledError: ask again later.
            NotAnswered: no answer, or one that nobody understands.
        """
        ...


class CloudProbe:
    """A `Probe` from a cloud's scores, with prices and dry runs where they answer.

    Without scores there is no look; a price or a dry run that fails is only told.
    """

    def __init__(
        self,
        scorer: PlacementScorer,
        *,
        prices: Callable[[], PriceSource] | None = None,
        dry_runs: DryRuns | None = None,
        clock: Clock,
        prices_every_s: float = _PRICES_EVERY_S,
    ) -> None:
        """Nothing is asked yet.

        Args:
            scorer: tells how likely spot is to be had.
            prices: makes a source that has nothing in mind; None: no prices.
            dry_runs: None: none.
            clock: the time, and the waits while a cloud asks for patience.
            prices_every_s: at least between two questions for prices, seconds.
        """
        self._scorer, self._prices, self._dry_runs = scorer, prices, dry_runs
        self._clock, self._prices_every_s = clock, prices_every_s
        self._asked_prices_s = float("-inf")
        self._usd: dict[str, float] = {}  # by zone; "" of the whole region

    def look(self, watch: Watch) -> Look:
        at_s = self._clock.now_s()
        scores = patiently(
            lambda: self._scorer.scores(watch.region, watch.types, nodes=watch.nodes),
            clock=self._clock,
        )
        problems: list[str] = []
        self._ask_prices(watch, problems)
        refused = self._ask_dry_runs(watch, problems)
        zones = [
            SpotObserved(
                at_s=at_s,
                cloud=watch.cloud,
                region=watch.region,
                zone=zone,
                instance_types=watch.types,
                nodes=watch.nodes,
                every_s=watch.every_s,
                likely=best.obtainable_frac,
                preempted_frac=best.preempted_frac,
                usd_per_hour=self._usd.get(zone, self._usd.get("")),
                refused=refused.get(zone, ""),
            )
            for zone, best in _by_zone(scores).items()
        ]
        return Look(at_s=at_s, zones=tuple(zones), problems=tuple(problems))

    def _ask_prices(self, watch: Watch, problems: list[str]) -> None:
        now_s = self._clock.now_s()
        if self._prices is None or now_s - self._asked_prices_s < self._prices_every_s:
            return
        self._asked_prices_s = now_s  # also if it fails: the price of before will do
        try:
            source = self._prices()
            quotes = patiently(lambda: source.quotes(watch.region, watch.types), clock=self._clock)
        except SpotrayError as exc:
            problems.append(f"no prices: {_line(exc)}")
            return
        self._usd = _cheapest(quotes)

    def _ask_dry_runs(self, watch: Watch, problems: list[str]) -> dict[str, str]:
        """Zones in which every type would be refused."""
        if self._dry_runs is None:
            return {}
        runs, found = self._dry_runs, dict[str, str]()
        try:
            for zone in patiently(runs.zones, clock=self._clock):
                words = [
                    patiently(functools.partial(runs.refusal, zone, name), clock=self._clock)
                    for name in watch.types
                ]
                if all(words):
                    found[zone] = words[0]
        except (ConfigError, NotPermittedError) as exc:
            # It would be the same for all zones, always: that is no word about capacity.
            problems.append(f"no dry runs: {_line(exc)}")
            self._dry_runs = None
            return {}
        except SpotrayError as exc:
            problems.append(f"no dry runs at this look: {_line(exc)}")
        return found


def looks(
    probe: Probe,
    watch: Watch,
    *,
    clock: Clock,
    until_s: float | None = None,
) -> Iterator[Look]:
    """Look now, and then at every full multiple of ``watch.every_s``, for ever or until a time.

    So an observation that is taken up again later goes on in the same ticks. A look that
    fails is one with no zone, and its problem.

    Args:
        probe: asks.
        watch: what.
        clock: the time, and the waits.
        until_s: no look begins later, Unix seconds.

    Raises:
        ConfigError, NotPermittedError: at the first look, which no later one would mend.
    """
    is_first = True
    while True:
        began_s = clock.now_s()
        try:
            look = probe.look(watch)
        except SpotrayError as exc:
            if is_first and isinstance(exc, ConfigError | NotPermittedError):
                raise
            # An answer that was asked for too often comes again: no reason to stop after days.
            look = Look(at_s=began_s, problems=(f"no look, the next will try again: {_line(exc)}",))
        is_first = False
        yield look
        next_s = (clock.now_s() // watch.every_s + 1) * watch.every_s
        if until_s is not None and next_s > until_s:
            return
        # A clock that is being set runs slower than a sleep: that look would be too early.
        while (left_s := next_s - clock.now_s()) > 0:
            clock.sleep(left_s)


def probe_of(cloud: str, region: str, *, clock: Clock, dry_runs: bool = True) -> Probe:
    """The real probe of a cloud, with the credentials of the environment.

    Raises:
        ConfigError: its SDK or the credentials are missing, or it tells nobody.
    """
    from spotray.cloud.refresh import placement_scorer, price_source

    scorer = placement_scorer(cloud)  # first: it says which SDK is missing
    runs: DryRuns | None = None
    if cloud == "aws" and dry_runs:
        from spotray.cloud.aws.dry_runs import AwsDryRuns

        runs = AwsDryRuns(region)
    return CloudProbe(scorer, prices=lambda: price_source(cloud), dry_runs=runs, clock=clock)


def _by_zone(scores: Sequence[Score]) -> dict[str, Score]:
    """The best answer for each zone: Google has one for each type."""
    best: dict[str, Score] = {}
    for one in scores:
        zone = one.zone or one.region
        if zone not in best or one.obtainable_frac > best[zone].obtainable_frac:
            best[zone] = one
    return dict(sorted(best.items()))


def _cheapest(quotes: Sequence[Quote]) -> dict[str, float]:
    found: dict[str, float] = {}
    for one in quotes:
        if one.spot:
            found[one.zone] = min(found.get(one.zone, one.usd_per_hour), one.usd_per_hour)
    return found


def _line(exc: BaseException) -> str:
    return " ".join(str(exc).split())[:240]
