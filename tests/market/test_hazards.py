"""What lives say of a market, and of its like."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from spotray.errors import ConfigError
from spotray.market.hazards import GOOGLE_LIMIT_S, age_bands, learn
from spotray.market.lives import NodeLife
from spotray.market.offer import Market
from spotray.market.survival import PRIOR, Life, Weibull

HOUR = 3600.0
DAY = 24 * HOUR
A, B = "aws/us-east-1a/g5.xlarge/spot", "aws/us-east-1b/g5.xlarge/spot"


def seen(
    market: str, count: int, truth: Weibull, *, seed: int = 0, watched_s: float = 2 * DAY
) -> list[NodeLife]:
    chance = random.Random(f"{market} {seed}")
    found = []
    for index in range(count):
        end_s = truth.scale_s * chance.expovariate(1.0) ** (1 / truth.shape)
        found.append(
            NodeLife(
                market=market,
                name=f"i-{index}",
                start_s=chance.uniform(0, 30 * DAY),
                seconds=min(end_s, watched_s),
                ended=end_s <= watched_s,
            )
        )
    return found


def test_before_anything_is_seen_it_is_the_prior() -> None:
    hazards = learn([])
    one = hazards.of(Market.parse(A))
    assert (one.name, one.lives, one.losses) == ("all spot", 0, 0)
    assert one.fit.scale_s == pytest.approx(PRIOR.scale_s, rel=0.1)


def test_a_market_with_many_lives_is_told_apart_from_its_sibling() -> None:
    good, bad = Weibull(shape=0.8, scale_s=20 * HOUR), Weibull(shape=0.5, scale_s=HOUR)
    hazards = learn([*seen(A, 300, good), *seen(B, 300, bad)])
    assert hazards.of(Market.parse(A)).fit.scale_s == pytest.approx(20 * HOUR, rel=0.25)
    assert hazards.of(Market.parse(B)).fit.scale_s == pytest.approx(HOUR, rel=0.35)


def test_a_market_with_few_lives_is_believed_to_be_like_its_type() -> None:
    bad = Weibull(shape=0.5, scale_s=0.2 * HOUR)
    hazards = learn([*seen(A, 300, bad), *seen(B, 2, bad)])
    few = hazards.of(Market.parse(B))
    assert few.name == "aws/us-east-1b/g5.xlarge"
    assert few.fit.scale_s < PRIOR.scale_s / 4
    # The fewer were seen, the less is known.
    assert few.fit.log_scale_error > hazards.of(Market.parse(A)).fit.log_scale_error


def test_a_market_without_a_life_answers_as_its_type_then_its_cloud() -> None:
    hazards = learn(seen(A, 5, PRIOR))
    assert hazards.of(Market.parse("aws/us-west-2b/g5.xlarge/spot")).name == "aws/g5.xlarge"
    assert hazards.of(Market.parse("aws/us-east-1a/p3.2xlarge/spot")).name == "aws"
    assert hazards.of(Market.parse("gcp/us-central1-a/g2-standard-4/spot")).name == "all spot"


def test_googles_limit_is_seen_and_is_no_part_of_the_fall_with_age() -> None:
    market = "gcp/us-central1-a/n1-standard-4/spot"
    truth = Weibull(shape=0.6, scale_s=30 * HOUR)
    stopped = [
        replace(one, seconds=min(one.seconds, DAY + 60.0), ended=True)
        for one in seen(market, 200, truth)
    ]
    fit = learn(stopped).of(Market.parse(market)).fit
    assert fit.limit_s == GOOGLE_LIMIT_S
    assert fit.alive_frac(DAY) == 0
    assert fit.scale_s == pytest.approx(30 * HOUR, rel=0.4)
    assert fit.shape == pytest.approx(0.6, rel=0.2)


def test_who_lived_longer_than_a_day_has_no_limit() -> None:
    market = "gcp/us-central1-a/g2-standard-4/spot"
    truth = Weibull(shape=0.6, scale_s=30 * HOUR)
    assert learn(seen(market, 200, truth)).of(Market.parse(market)).fit.limit_s > 2 * DAY


def test_an_amazon_node_that_ends_at_a_day_is_no_limit() -> None:
    day = [
        NodeLife(market=A, name=str(i), start_s=0.0, seconds=DAY - 60, ended=True) for i in (1, 2)
    ]
    assert learn(day).of(Market.parse(A)).fit.limit_s > 2 * DAY


def test_an_hour_at_which_more_are_lost_is_found_and_used() -> None:
    """All of these end between 15 and 18 o'clock, whenever they began."""
    chance = random.Random(3)
    lives = []
    for index in range(200):
        start_h = chance.uniform(0, 24)
        end_h = chance.uniform(15, 18) + (24 if start_h > 15 else 0)
        lives.append(
            NodeLife(
                market=A,
                name=str(index),
                start_s=start_h * HOUR,
                seconds=(end_h - start_h) * HOUR,
                ended=True,
            )
        )
    hazards = learn(lives)
    factors = hazards.hours["aws/us-east-1"]
    assert [one.losses for one in factors] == [0, 0, 0, 0, 0, 200, 0, 0]
    assert factors[5].low > 3
    assert factors[0].high < 0.6
    market = Market.parse(A)
    calm, rough = (
        hazards.alive_after_frac(market, 3 * HOUR, age_s=12 * HOUR, at_s=hour * HOUR)
        for hour in (0, 15)
    )
    assert calm > 0.7 > 0.3 > rough
    assert hazards.hazard_per_hour(market, age_s=HOUR, at_s=16 * HOUR) > 3 * (
        hazards.hazard_per_hour(market, age_s=HOUR)
    )


def test_hours_that_are_all_alike_are_found_to_be_so() -> None:
    factors = learn(seen(A, 600, Weibull(shape=0.5, scale_s=2 * HOUR))).hours["aws/us-east-1"]
    assert sum(one.low <= 1 <= one.high for one in factors) >= 6
    assert all(0.6 < one.factor < 1.6 for one in factors)


def test_a_chance_over_a_span_is_the_product_of_those_over_its_parts() -> None:
    hazards, market = learn(seen(A, 100, PRIOR)), Market.parse(A)
    whole = hazards.alive_after_frac(market, 10 * HOUR, age_s=HOUR, at_s=0.0)
    first = hazards.alive_after_frac(market, 4 * HOUR, age_s=HOUR, at_s=0.0)
    rest = hazards.alive_after_frac(market, 6 * HOUR, age_s=5 * HOUR, at_s=4 * HOUR)
    assert whole == pytest.approx(first * rest)


def test_the_hazard_by_age_counts_losses_over_time_seen() -> None:
    bands = age_bands(
        [
            Life(seconds=0.2 * HOUR, ended=True),
            Life(seconds=0.4 * HOUR, ended=False),
            Life(seconds=3 * HOUR, ended=True),
        ]
    )
    assert [(one.from_s / HOUR, one.losses) for one in bands] == [
        (0, 1),
        (0.25, 0),
        (0.5, 0),
        (1, 0),
        (2, 1),
    ]
    assert [one.node_hours for one in bands] == pytest.approx([0.7, 0.4, 0.5, 1, 1])
    assert bands[1].hazard_per_hour == bands[1].low_per_hour == 0
    # Of one event: 0.03 to 5.57; of none up to 3.69.
    assert bands[4].low_per_hour == pytest.approx(0.025, abs=0.02)
    assert bands[4].high_per_hour == pytest.approx(5.57, abs=0.05)
    assert bands[1].high_per_hour == pytest.approx(3.69 / 0.4, rel=0.02)


def test_an_on_demand_life_is_refused() -> None:
    market = A.replace("/spot", "/on-demand")
    one = NodeLife(market=market, name="i", start_s=0.0, seconds=1.0, ended=False)
    with pytest.raises(ConfigError, match="only spot nodes have a hazard"):
        learn([one])
