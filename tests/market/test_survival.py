from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from spotray.errors import ConfigError
from spotray.market.survival import PRIOR, Life, Weibull, fit_weibull, kaplan_meier

HOUR = 3600.0


def lives(seed: int, count: int, truth: Weibull, *, watched_s: float) -> list[Life]:
    """Nodes that live as ``truth`` says, each seen for at most ``watched_s``."""
    chance = random.Random(seed)
    ends = [truth.scale_s * chance.expovariate(1.0) ** (1 / truth.shape) for _ in range(count)]
    return [Life(seconds=min(end, watched_s), ended=end <= watched_s) for end in ends]


def test_a_life_that_goes_on_counts_for_as_long_as_it_was_seen() -> None:
    steps = kaplan_meier(
        [
            Life(seconds=1.0, ended=True),
            Life(seconds=2.0, ended=False),
            Life(seconds=3.0, ended=True),
            Life(seconds=3.0, ended=True),
            Life(seconds=9.0, ended=False),
        ]
    )
    assert [(step.age_s, step.at_risk) for step in steps] == [(1.0, 5), (3.0, 3)]
    assert [step.alive_frac for step in steps] == pytest.approx([0.8, 0.8 / 3])
    assert all(0 <= step.low_frac < step.alive_frac < step.high_frac <= 1 for step in steps)


def test_nobody_lost_is_no_step() -> None:
    assert kaplan_meier([Life(seconds=5.0, ended=False)]) == []


def test_the_confidence_holds_the_truth_about_as_often_as_it_says() -> None:
    truth = Weibull(shape=0.5, scale_s=2 * HOUR)
    held = 0
    for seed in range(200):
        steps = kaplan_meier(lives(seed, 60, truth, watched_s=6 * HOUR))
        (last, *_) = [step for step in reversed(steps) if step.age_s <= HOUR]
        held += last.low_frac <= truth.alive_frac(HOUR) <= last.high_frac
    assert 0.90 <= held / 200 <= 0.99


def test_many_lives_are_fitted_whatever_was_believed_before() -> None:
    truth = Weibull(shape=1.5, scale_s=10 * HOUR)
    fit = fit_weibull(lives(0, 2000, truth, watched_s=8 * HOUR))
    assert fit.shape == pytest.approx(1.5, rel=0.06)
    assert fit.scale_s == pytest.approx(10 * HOUR, rel=0.06)


def test_without_a_life_it_is_the_prior_and_doubts_more_than_with_many() -> None:
    none, many = fit_weibull([]), fit_weibull(lives(1, 300, PRIOR, watched_s=24 * HOUR))
    assert none.shape == pytest.approx(PRIOR.shape, rel=0.1)
    assert none.scale_s == pytest.approx(PRIOR.scale_s, rel=0.1)
    assert none.log_scale_error > 4 * many.log_scale_error
    assert none.log_shape_error > 4 * many.log_shape_error


def test_the_errors_are_as_large_as_the_fits_scatter() -> None:
    truth = Weibull(shape=0.5, scale_s=2 * HOUR)
    fits = [fit_weibull(lives(s, 80, truth, watched_s=HOUR * 8), prior_ends=0) for s in range(60)]
    within = sum(abs(fit.scale_s / truth.scale_s - 1) < 1.96 * fit.log_scale_error for fit in fits)
    assert 50 <= within <= 60
    outside = sum(abs(f.scale_s / truth.scale_s - 1) > 0.7 * f.log_scale_error for f in fits)
    assert outside > 15  # and not much too large either


def test_long_lives_without_a_loss_make_one_believe_in_longer_ones() -> None:
    seen = [Life(seconds=50 * HOUR, ended=False)] * 5
    assert fit_weibull(seen).alive_frac(24 * HOUR) > 3 * PRIOR.alive_frac(24 * HOUR)


def test_the_hazard_falls_with_age_and_the_old_live_on() -> None:
    falls = Weibull(shape=0.5, scale_s=HOUR)
    assert falls.hazard_per_hour(HOUR) == pytest.approx(0.5)
    assert falls.hazard_per_hour(4 * HOUR) == pytest.approx(0.25)
    young, old = (falls.alive_after_frac(HOUR, age_s=age) for age in (0.0, 9 * HOUR))
    assert young == pytest.approx(falls.alive_frac(HOUR))
    assert old > 2 * young
    assert Weibull(shape=1.0, scale_s=HOUR).hazard_per_hour(7.0) == pytest.approx(1.0)


def test_the_curve_is_the_one_of_a_statistics_library() -> None:
    seen = lives(5, 200, Weibull(shape=0.7, scale_s=3 * HOUR), watched_s=4 * HOUR)
    sample = stats.CensoredData.right_censored(
        np.array([one.seconds for one in seen]), np.array([not one.ended for one in seen])
    )
    theirs = stats.ecdf(sample).sf
    band = theirs.confidence_interval(method="log-log")
    for step in kaplan_meier(seen):
        assert step.alive_frac == pytest.approx(float(theirs.evaluate(step.age_s)))
        assert step.low_frac == pytest.approx(float(band.low.evaluate(step.age_s)))
        assert step.high_frac == pytest.approx(float(band.high.evaluate(step.age_s)))


def test_the_fit_is_the_one_of_a_statistics_library() -> None:
    seen = lives(6, 300, Weibull(shape=0.6, scale_s=3 * HOUR), watched_s=4 * HOUR)
    hours = np.array([one.seconds / HOUR for one in seen])
    sample = stats.CensoredData.right_censored(hours, np.array([not one.ended for one in seen]))
    shape, _, scale_h = stats.weibull_min.fit(sample, floc=0.0)
    fit = fit_weibull(seen, prior_ends=0)
    assert fit.shape == pytest.approx(shape, rel=1e-3)
    assert fit.scale_s == pytest.approx(scale_h * HOUR, rel=1e-3)


def test_the_range_of_a_fit_holds_the_truth_about_as_often_as_it_says() -> None:
    truth = Weibull(shape=0.5, scale_s=2 * HOUR)
    held = {0.3: 0, 6.0: 0}
    hazards = dict(held)
    for seed in range(100):
        fit = fit_weibull(lives(seed, 80, truth, watched_s=8 * HOUR), prior_ends=0)
        for age_h in held:
            low, high = fit.alive_range(age_h * HOUR)
            held[age_h] += low <= truth.alive_frac(age_h * HOUR) <= high
            low, high = fit.hazard_range(age_h * HOUR)
            hazards[age_h] += low <= truth.hazard_per_hour(age_h * HOUR) <= high
    assert all(88 <= count <= 100 for count in (*held.values(), *hazards.values()))


def test_nobody_lives_longer_than_a_limit() -> None:
    limited = replace(PRIOR, limit_s=24 * HOUR)
    assert limited.alive_frac(23 * HOUR) == PRIOR.alive_frac(23 * HOUR)
    assert limited.alive_frac(24 * HOUR) == 0
    assert limited.alive_after_frac(2 * HOUR, age_s=23 * HOUR) == 0
    assert limited.hazard_per_hour(24 * HOUR) == math.inf


def test_a_fit_without_errors_has_no_narrow_range() -> None:
    assert PRIOR.alive_range(HOUR) == (0.0, 1.0)
    assert PRIOR.hazard_range(HOUR) == (0.0, math.inf)


def test_what_is_no_life_is_refused() -> None:
    with pytest.raises(ConfigError, match="a life of -1"):
        Life(seconds=-1, ended=True)
    with pytest.raises(ConfigError, match="no loss was seen"):
        fit_weibull([Life(seconds=9.0, ended=False)], prior_ends=0)
