from __future__ import annotations

import math

import pytest

from spotray.errors import ConfigError
from spotray.policy.greedy import Greedy
from spotray.policy.job import Choice, Job, JobPolicy
from spotray.policy.loop_guard import LoopGuard, break_even_life_s
from spotray.policy.spot_only import SpotOnly
from spotray.sim.single import Moment, Outcome, simulate

HOUR = 3600.0
JOB = Job(gap_s=300.0, work_s=20 * HOUR, deadline_s=80 * HOUR, overhead_s=600.0)
TICKS = JOB.ticks_in(JOB.deadline_s)
LOOP = bytes([1, 1, 0] * TICKS)[:TICKS]  # each node is taken when its start is just over


def course(policy: JobPolicy, up: bytes) -> tuple[Outcome, list[Moment]]:
    moments: list[Moment] = []
    return simulate(policy, JOB, up, moments=moments), moments


def test_spot_that_never_gets_to_work_is_left_for_on_demand() -> None:
    guarded, moments = course(LoopGuard(), LOOP)
    unguarded, _ = course(Greedy(), LOOP)
    assert guarded.cost_usd < 0.8 * unguarded.cost_usd
    assert guarded.preemptions < 0.2 * unguarded.preemptions
    trips = [m for m in moments if m.why.startswith("loop guard")]
    assert "lived less than 19 min" in trips[0].why


def test_the_cool_down_doubles_while_it_goes_on() -> None:
    guard = LoopGuard(SpotOnly(), losses=1, cooldown_s=1800.0, cooldown_max_s=7200.0)
    _, moments = course(guard, LOOP)
    ran = [Choice.WAIT, *(moment.choice for moment in moments)]
    starts = [k for k in range(len(moments)) if ran[k] is not Choice.SPOT is ran[k + 1]]
    # Each is lost after two ticks; then 6, 12 and from then on 24 ticks, to the next spot.
    assert starts[:5] == [0, 9, 24, 51, 78]


def test_nodes_that_live_are_no_loop() -> None:
    up = bytes(([1] * 24 + [0]) * TICKS)[:TICKS]  # two hours each
    guarded, moments = course(LoopGuard(), up)
    assert not any(m.why.startswith("loop guard") for m in moments)
    assert guarded == course(Greedy(), up)[0]


def test_a_life_that_pays_follows_from_prices_and_overhead() -> None:
    cheap = Job(
        gap_s=60.0,
        work_s=HOUR,
        overhead_s=600.0,
        on_demand_usd_per_hour=4.0,
        spot_usd_per_hour=1.0,
    )
    assert break_even_life_s(cheap) == pytest.approx(600.0 * 5 / 3)
    dear = Job(gap_s=60.0, work_s=HOUR, on_demand_usd_per_hour=1.0, spot_usd_per_hour=1.0)
    assert break_even_life_s(dear) == math.inf


def test_numbers_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="losses is 0"):
        LoopGuard(losses=0)
    with pytest.raises(ConfigError, match="cooldown_max_s 60"):
        LoopGuard(cooldown_max_s=60.0)
