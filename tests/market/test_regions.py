"""Made-up regions behave as the public traces do, as far as those were measured."""

from __future__ import annotations

import math

import numpy as np
import pytest

from spotray.errors import TraceError
from spotray.market.regions import MadeUpZone, generate_regions, generate_ups

DAY = 24 * 3600.0


@pytest.fixture(scope="module")
def worlds() -> list[list[MadeUpZone]]:
    return [
        generate_regions(seed, regions=3, zones=3, nodes=16, duration_s=30 * DAY, gap_s=600)
        for seed in range(4)
    ]


def test_the_same_seed_is_the_same_world() -> None:
    def make(seed: int) -> list[MadeUpZone]:
        return generate_regions(seed, regions=2, zones=2, nodes=4, duration_s=2 * DAY)

    assert make(3) == make(3)
    assert make(3) != make(4)
    assert [one.zone for one in make(3)] == [
        *("made-up-1a", "made-up-1b", "made-up-2a", "made-up-2b"),
    ]
    assert len(make(3)[0].capacity.values) == 2 * 288


def ups(world: list[MadeUpZone]) -> np.ndarray:
    return np.array([one.capacity.values for one in world]) > 0


def test_zones_of_a_region_go_together_more_than_others(worlds: list[list[MadeUpZone]]) -> None:
    near, far = [], []
    for world in worlds:
        found = np.corrcoef(ups(world))
        for one in range(9):
            for other in range(one):
                (near if one // 3 == other // 3 else far).append(found[one, other])
    assert 0.3 < np.mean(near) < 0.66
    assert -0.05 < np.mean(far) < 0.27


def test_zones_are_up_as_much_as_real_ones(worlds: list[list[MadeUpZone]]) -> None:
    shares = np.concatenate([ups(world).mean(axis=1) for world in worlds])
    assert 0.35 < shares.mean() < 0.65
    assert shares.min() < 0.35
    assert shares.max() > 0.65
    assert np.mean([ups(world).any(axis=0).mean() for world in worlds]) > 0.9


def test_a_run_that_is_old_lasts_longer_than_a_young_one(worlds: list[list[MadeUpZone]]) -> None:
    lengths = []
    for world in worlds:
        for row in ups(world):
            edges = np.flatnonzero(np.diff(row.astype(int)))
            lengths += list(np.diff(edges))
    runs = np.array(lengths)
    young = (runs <= 6).mean()
    old = runs[runs > 24]
    assert young > 2 * (old <= 30).mean()


def test_pools_mostly_hold_all_or_nothing_and_lose_half_at_once(
    worlds: list[list[MadeUpZone]],
) -> None:
    held = np.concatenate([[one.capacity.values for one in world] for world in worlds])
    assert held.max() == 16
    assert set(np.unique(held)) <= set(range(17))
    assert 0.7 < (held == 16).sum() / (held > 0).sum() < 0.95
    lost = -np.diff(held, axis=1)
    some = lost[(lost > 0) & (held[:, 1:] > 0)]
    assert 7 <= np.median(some) <= 11


def test_prices_stay_below_on_demand_and_change_now_and_then(
    worlds: list[list[MadeUpZone]],
) -> None:
    prices = np.array([one.price_frac.values for one in worlds[0]])
    assert prices.min() > 0.1
    assert prices.max() <= 1
    changes_per_day = (np.diff(prices, axis=1) != 0).mean() * 144
    assert 4 < changes_per_day < 8


@pytest.mark.parametrize("wrong", [{"regions": 0}, {"zones": 27}, {"nodes": 0}, {"gap_s": 0.0}])
def test_a_world_cannot_be_made_of_nonsense(wrong: dict[str, float]) -> None:
    asked = {"regions": 1, "zones": 1, "nodes": 1, "duration_s": DAY} | wrong
    with pytest.raises(TraceError, match=f"{next(iter(wrong))}={next(iter(wrong.values()))}"):
        generate_regions(0, **asked)  # type: ignore[arg-type]


def test_one_region_alone_is_lost_as_often_as_is_asked() -> None:
    asked = {"zones": 3, "duration_s": 20 * DAY, "gap_s": 600.0}
    runs = {}
    for losses in (0.2, 1.0, 5.0):
        up = generate_ups(1, losses=losses, **asked)  # type: ignore[arg-type]
        assert (up == generate_ups(1, losses=losses, **asked)).all()  # type: ignore[arg-type]
        assert up.shape == (2880, 3)
        lost = (up[:-1] & ~up[1:]).sum()
        runs[losses] = lost / up.sum()
    assert runs[0.2] < runs[1.0] / 2 < runs[1.0] < runs[5.0] / 2


@pytest.mark.parametrize("wrong", [{"zones": 0}, {"losses": 0.0}, {"duration_s": math.inf}])
def test_a_region_cannot_be_made_of_nonsense(wrong: dict[str, float]) -> None:
    asked = {"zones": 1, "duration_s": DAY, "gap_s": 600.0} | wrong
    with pytest.raises(TraceError, match=f"{next(iter(wrong))}={next(iter(wrong.values()))}"):
        generate_ups(0, **asked)  # type: ignore[arg-type]
