from __future__ import annotations

import time

import pytest

from spotray.clock import FakeClock, SystemClock, wait_until


def test_fake_time_passes_only_by_sleeping_and_advancing() -> None:
    clock = FakeClock(start_s=100.0)
    assert clock.now_s() == clock.now_s() == 100.0
    clock.sleep(3600)
    clock.advance(0.5)
    assert clock.now_s() == 3700.5


def test_time_does_not_run_backwards() -> None:
    clock = FakeClock()
    with pytest.raises(ValueError, match="-1 s"):
        clock.advance(-1)


def test_the_system_clock_reads_unix_time() -> None:
    before = time.time()
    clock = SystemClock()
    clock.sleep(0.0)
    assert before <= clock.now_s() <= time.time()


def test_wait_until_ends_when_it_is_ready() -> None:
    clock = FakeClock(start_s=0.0)
    assert wait_until(lambda: clock.now_s() >= 5, timeout_s=10, clock=clock, poll_s=1)
    assert clock.now_s() == 5


def test_wait_until_gives_up_at_its_timeout() -> None:
    clock = FakeClock(start_s=0.0)
    assert not wait_until(lambda: False, timeout_s=10, clock=clock, poll_s=1)
    assert clock.now_s() == 10


def test_wait_until_asks_once_even_without_time() -> None:
    assert wait_until(lambda: True, timeout_s=0, clock=FakeClock())
