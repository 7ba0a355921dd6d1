from __future__ import annotations

import itertools

import pytest

from spotray.errors import TraceError
from spotray.market.zones import generate_zone

HOUR = 3600.0
DAY = 24 * HOUR


def runs(values: tuple[float, ...]) -> list[tuple[float, int]]:
    return [(value, len(list(same))) for value, same in itertools.groupby(values)]


def test_the_same_seed_is_the_same_zone() -> None:
    one = generate_zone(3, duration_s=5 * DAY)
    assert one == generate_zone(3, duration_s=5 * DAY)
    assert one.values != generate_zone(4, duration_s=5 * DAY).values
    assert len(one.values) == 5 * 288
    assert set(one.values) == {0, 1}


def test_a_run_that_is_old_lasts_longer_than_a_young_one() -> None:
    """Of spot and of none: the hazard falls with age, which no memoryless zone shows."""
    found = [
        run for seed in range(20) for run in runs(generate_zone(seed, duration_s=30 * DAY).values)
    ]
    for look in (0, 1):
        lengths = [ticks for value, ticks in found if value == look]
        young = sum(ticks <= 12 for ticks in lengths) / len(lengths)
        old = [ticks for ticks in lengths if ticks > 48]
        older = sum(ticks <= 60 for ticks in old) / len(old)
        assert young > 2 * older  # ends within the hour: of all, and of those of four hours


def test_zones_differ_as_real_ones_do() -> None:
    shares = [
        sum(zone.values) / len(zone.values)
        for zone in (generate_zone(seed, duration_s=15 * DAY) for seed in range(30))
    ]
    assert min(shares) < 0.35
    assert max(shares) > 0.65
    assert 0.35 < sum(shares) / len(shares) < 0.65


def test_a_zone_without_length_is_refused() -> None:
    with pytest.raises(TraceError, match="give both above 0"):
        generate_zone(0, duration_s=0.0)
    with pytest.raises(TraceError, match=r"gap_s=-1\.0"):
        generate_zone(0, duration_s=DAY, gap_s=-1.0)
