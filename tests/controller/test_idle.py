from __future__ import annotations

from dataclasses import replace

import pytest

from spotray.controller.idle import IdleWatch, Use

IDLE = Use(now_s=0.0, drivers=0, busy_workers=0, waiting=0)


def test_an_idle_cluster_goes_down_once_after_its_time() -> None:
    watch = IdleWatch(600)
    due = [watch.is_due(replace(IDLE, now_s=now_s)) for now_s in (0.0, 599.0, 600.0, 601.0)]
    assert due == [False, False, True, True]  # until it worked
    watch.is_done()
    assert not watch.is_due(replace(IDLE, now_s=9000.0))
    assert not watch.is_due(replace(IDLE, now_s=9001.0, drivers=1))
    assert not watch.is_due(replace(IDLE, now_s=9002.0))
    assert watch.is_due(replace(IDLE, now_s=9602.0))


@pytest.mark.parametrize("use", ["drivers", "busy_workers", "waiting"])
def test_any_use_starts_the_time_anew(use: str) -> None:
    watch = IdleWatch(600)
    assert not watch.is_due(IDLE)
    assert not watch.is_due(replace(IDLE, now_s=500.0, **{use: 1}))  # type: ignore[arg-type]
    assert not watch.is_due(replace(IDLE, now_s=700.0))
    assert not watch.is_due(replace(IDLE, now_s=1200.0))
    assert watch.is_due(replace(IDLE, now_s=1300.0))
