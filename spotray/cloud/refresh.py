"""Asking clouds for their prices, and keeping what they say."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from spotray.clock import Clock
from spotray.cloud.price_cache import FRESH_S, PriceCache, Told
from spotray.cloud.prices import PlacementScorer, PriceSource, Quote
from spotray.cloud.retry import patiently
from spotray.errors import ConfigError, NotPermittedError, SpotrayError


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked of one cloud."""

    cloud: str
    region: str
    types: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """How a question went."""

    question: Question
    prices: int  # that were told
    age_s: float  # 0: asked now; else what is kept was young enough
    error: str = ""  # one line; empty: it went well


def refresh(
    questions: Iterable[Question],
    *,
    sources: Callable[[str], PriceSource],
    cache: PriceCache,
    clock: Clock,
    fresh_s: float = FRESH_S,
) -> list[Answer]:
    """Ask what was not asked lately; keep the answers.

    One that fails leaves what was kept; if no other question to that cloud could go better, for
    lack of credentials or rights, none is asked.

    Args:
        questions: each with its cloud, a region and types.
        sources: a cloud's source, made once for each.
        cache: where answers are kept.
        clock: the time, and the waits while a cloud asks for patience.
        fresh_s: what is younger is not asked for again.

    Raises:
        ConfigError: an answer cannot be kept.
    """
    made: dict[str, PriceSource] = {}
    hopeless: dict[str, str] = {}
    answers = []
    for one in questions:
        age_s = cache.age_s(one.cloud, one.region, one.types, now_s=clock.now_s())
        if age_s < fresh_s:
            answers.append(Answer(question=one, prices=0, age_s=age_s))
            continue
        if one.cloud in hopeless:
            continue
        try:
            source = made.get(one.cloud) or made.setdefault(one.cloud, sources(one.cloud))
            quotes = patiently(_asking(source, one), clock=clock)
        except SpotrayError as exc:
            words = " ".join(str(exc).split())
            answers.append(Answer(question=one, prices=0, age_s=0.0, error=words))
            if isinstance(exc, ConfigError | NotPermittedError):
                hopeless[one.cloud] = words
            continue
        told = Told(
            cloud=one.cloud,
            region=one.region,
            at_s=clock.now_s(),
            types=one.types,
            quotes=tuple(quotes),
        )
        cache.keep(told)
        answers.append(Answer(question=one, prices=len(quotes), age_s=0.0))
    return answers


def price_source(cloud: str) -> PriceSource:
    """The real source of a cloud, with the credentials of the environment.

    Raises:
        ConfigError: its SDK or the credentials are missing.
    """
    if cloud == "aws":
        from spotray.cloud.aws.prices import AwsPrices

        return AwsPrices()
    if cloud == "gcp":
        from spotray.cloud.gcp.prices import GcpPrices

        return GcpPrices()
    from spotray.cloud.azure.prices import AzurePrices

    return AzurePrices()


def placement_scorer(cloud: str) -> PlacementScorer:
    """The real scorer of a cloud, with the credentials of the environment.

    Raises:
        ConfigError: its SDK or the credentials are missing, or it has no such thing.
    """
    if cloud == "aws":
        from spotray.cloud.aws.prices import AwsScores

        return AwsScores()
    if cloud == "gcp":
        from spotray.cloud.gcp.prices import GcpScores

        return GcpScores()
    raise ConfigError("Azure tells nobody how likely spot is to be had: leave out --score")


def _asking(source: PriceSource, one: Question) -> Callable[[], list[Quote]]:
    return lambda: source.quotes(one.region, one.types)
