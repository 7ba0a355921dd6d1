from __future__ import annotations

import pytest

from spotray.clock import FakeClock
from spotray.cloud.retry import patiently
from spotray.errors import ConfigError, ThrottledError


def throttled(retry_after_s: float = 0.0) -> ThrottledError:
    return ThrottledError("slower", market="aws", retry_after_s=retry_after_s)


class Script:
    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)

    def __call__(self) -> object:
        one = self.answers.pop(0)
        if isinstance(one, Exception):
            raise one
        return one


def test_it_asks_again_later_and_later() -> None:
    clock = FakeClock(0.0)
    script = Script(throttled(), throttled(), throttled(), "at last")
    assert patiently(script, clock=clock, chance=lambda: 1.0) == "at last"
    assert clock.now_s() == 2 + 4 + 8


def test_it_waits_at_least_as_long_as_it_was_told_to() -> None:
    clock = FakeClock(0.0)
    assert patiently(Script(throttled(1.5), 7), clock=clock, chance=lambda: 0.0) == 7
    assert clock.now_s() == 1.5


def test_a_cloud_that_names_an_hour_is_not_waited_for_that_long() -> None:
    clock = FakeClock(0.0)
    patiently(Script(throttled(3600), 7), clock=clock, chance=lambda: 0.0)
    assert clock.now_s() <= 2


def test_after_the_last_attempt_the_error_is_the_answer() -> None:
    clock = FakeClock()
    with pytest.raises(ThrottledError):
        patiently(Script(throttled(), throttled(), "late"), clock=clock, attempts=2)


def test_what_no_patience_helps_is_raised_at_once() -> None:
    clock = FakeClock(0.0)
    with pytest.raises(ConfigError):
        patiently(Script(ConfigError("wrong"), 1), clock=clock)
    assert clock.now_s() == 0
