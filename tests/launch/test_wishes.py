from __future__ import annotations

from datetime import UTC, datetime

import pytest

from spotray.errors import ConfigError
from spotray.launch.wishes import deadline_s, dollars, duration_s, environment

NOW_S = datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("text", "seconds"), [("6h", 21600), ("1h30m", 5400), ("90min", 5400), ("1.5d", 129600)]
)
def test_a_duration_is_its_seconds(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds
    assert deadline_s(text, now_s=NOW_S) == NOW_S + seconds


@pytest.mark.parametrize("text", ["", "6", "h", "-6h", "6h!", "0h", "six hours"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="6h"):
        duration_s(text)


def test_a_deadline_may_be_a_moment_in_any_zone() -> None:
    assert deadline_s("2026-01-01T14:00+01:00", now_s=NOW_S) == NOW_S + 3600


@pytest.mark.parametrize("text", ["2026-01-01T13:00+01:00", "yesterday", "2025-01-01"])
def test_a_deadline_that_is_over_or_no_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="deadline"):
        deadline_s(text, now_s=NOW_S)


@pytest.mark.parametrize("text", ["0", "-3", "nan", "inf", "much"])
def test_an_amount_is_above_zero_and_finite(text: str) -> None:
    assert dollars("20.5") == 20.5
    with pytest.raises(ConfigError, match="20"):
        dollars(text)


def test_variables_come_from_files_then_from_options_then_from_the_shell() -> None:
    found = environment(
        ["A=3", "KEY"],
        files={"f.env": "# why\nexport A=1\nB='two words' # so\n\nC=\n"},
        shell={"KEY": "secret", "OTHER": "stays"},
    )
    assert found == {"A": "3", "B": "two words", "C": "", "KEY": "secret"}


@pytest.mark.parametrize(
    ("given", "text", "said"),
    [
        (["NOT_HERE"], "", "NOT_HERE is not set here"),
        (["1A=2"], "", "'1A' is no name"),
        (["SPOTRAY_DEADLINE_S=5"], "", "use that"),
        ([], "A=1 B=2", "f.env, line 1: more than K=V"),
        ([], "A=1\nB='", "f.env, line 2"),
    ],
)
def test_a_wrong_variable_is_refused_with_its_place(given: list[str], text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        environment(given, files={"f.env": text}, shell={})
