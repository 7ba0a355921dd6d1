"""Tables are aligned; money, fractions and durations are told in few signs."""

from __future__ import annotations

import pytest

from spotray.report.tables import duration, fine_duration, percent, plain_table, usd


def test_a_column_is_as_wide_as_its_widest_cell_and_its_name() -> None:
    lines = plain_table("T", ["a", ">count"], [["x", "1"], ["long", "22"]])
    assert lines == ["T", "  a     count", "  x         1", "  long     22"]
    assert plain_table("", ["a"], []) == ["  a"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "unknown"),
        (0.0, "$0.00"),
        (0.01234, "$0.0123"),
        (12.345, "$12.35"),
        (-0.5, "$-0.5000"),
    ],
)
def test_money_has_cents_and_more_digits_below_a_dollar(value: float | None, words: str) -> None:
    assert usd(value) == words


def test_a_fraction_is_told_in_percent() -> None:
    assert [percent(value) for value in (None, 0.0, 0.625, 1.0)] == [
        "unknown",
        "0.0 %",
        "62.5 %",
        "100.0 %",
    ]


@pytest.mark.parametrize(
    ("seconds", "words", "fine"),
    [
        (None, "-", "-"),
        (0.0523, "0.1 s", "0.05 s"),
        (9.994, "10.0 s", "9.99 s"),
        (59.96, "1 min 0 s", "1 min 0 s"),
        (3599.6, "1 h 0 min", "1 h 0 min"),
        (7384, "2 h 3 min", "2 h 3 min"),
    ],
)
def test_a_duration_has_the_units_that_say_something(
    seconds: float | None, words: str, fine: str
) -> None:
    assert duration(seconds) == words
    assert fine_duration(seconds) == fine
