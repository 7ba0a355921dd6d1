"""Words about money say what is known, and no more."""

from __future__ import annotations

import pytest

from spotray.ledger.pricing import Money
from spotray.ledger.sweep import watch_sweep
from spotray.report.sweep import cost_words, market_words, metric_words, sweep_cost_words
from tests.ledger.sweep_story import HOUR_S, SweepStory


@pytest.mark.parametrize(
    ("money", "unseen", "words"),
    [
        (Money(), 0, "-"),
        (Money(), 1, "unknown"),
        (Money(seconds=60.0, cost_usd=2.5), 0, "$2.50"),
        (Money(seconds=60.0, cost_usd=2.5), 1, "over $2.50"),
        (Money(seconds=60.0, cost_usd=2.5, unpriced_s=1.0), 0, "over $2.50"),
        (Money(seconds=60.0, unpriced_s=60.0), 0, "unknown"),
    ],
)
def test_a_cost_says_how_much_of_it_is_known(money: Money, unseen: int, words: str) -> None:
    assert cost_words(money, unseen_nodes=unseen) == words


def test_of_several_markets_the_one_with_most_workers_is_named() -> None:
    assert market_words({}) == "-"
    assert market_words({"m/a/spot": 9}) == "m/a/spot"
    assert market_words({"m/a/spot": 1, "m/b/spot": 2, "m/c/spot": 2}) == "m/b/spot and 2 more"


def test_a_metric_has_four_digits() -> None:
    words = [metric_words(value) for value in (0.123456, 1e-9, 12345.6, float("nan"), None)]
    assert words == ["0.1235", "1e-09", "1.235e+04", "nan", "-"]


def test_what_served_no_trial_is_named_beside_the_sum() -> None:
    story = SweepStory()
    story.up("head", "a", "b")
    story.starts("one", "a")
    cost = watch_sweep(story.told(), until_s=HOUR_S).cost
    assert sweep_cost_words(cost) == "$3.00 (idle $1.00, head $1.00)"
