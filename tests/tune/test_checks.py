"""What is refused before a sweep begins, and how Tune is kept to what fits. No cluster."""

from __future__ import annotations

from typing import Any

import pytest
import ray.train
from ray.tune import CheckpointConfig, RunConfig, TuneConfig
from ray.tune.schedulers import (
    ASHAScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
)
from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter, Searcher

from spotray.errors import ConfigError
from spotray.tune.checks import (
    check_config,
    check_room,
    check_tracking,
    limited,
    metrics_needed,
    pauses,
)
from spotray.tune.variants import Variants


class RandomSearcher(Searcher):
    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        return {"lr": 0.1}

    def on_trial_complete(self, trial_id: str, *args: Any, **kwargs: Any) -> None:
        return


def pbt(**settings: Any) -> PopulationBasedTraining:
    return PopulationBasedTraining(hyperparam_mutations={"lr": [0.1, 0.2]}, **settings)


@pytest.mark.parametrize(
    ("tune_config", "run_config", "words"),
    [
        (TuneConfig(scheduler=pbt()), RunConfig(), "PopulationBasedTraining.*'time_total_s'"),
        (TuneConfig(scheduler=MedianStoppingRule()), RunConfig(), "MedianStoppingRule.*by time"),
        (
            TuneConfig(scheduler=ASHAScheduler(time_attr="time_since_restore")),
            RunConfig(),
            'time_attr="training_iteration"',
        ),
        (TuneConfig(), RunConfig(stop={"time_total_s": 60}), "time_budget_s"),
        (
            TuneConfig(),
            RunConfig(checkpoint_config=CheckpointConfig(num_to_keep=2)),
            r"num_to_keep=2\) would delete .*keep_checkpoints",
        ),
        (TuneConfig(max_concurrent_trials=-1), RunConfig(), "must not be negative"),
    ],
)
def test_bad_settings_are_one_clear_line(
    tune_config: TuneConfig, run_config: Any, words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        check_config(tune_config, run_config)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "scheduler",
    [
        None,
        ASHAScheduler(),
        HyperBandScheduler(),
        MedianStoppingRule(time_attr="step"),
        pbt(time_attr="training_iteration"),
    ],
)
def test_schedulers_that_count_reports_or_steps_are_taken(scheduler: Any) -> None:
    check_config(TuneConfig(scheduler=scheduler), RunConfig(stop={"step": 100}))


@pytest.mark.parametrize(
    ("present", "possible", "may_grow"),
    [(3, None, False), (0, 3, True), (3, 2, False)],
)
def test_workers_that_can_never_be_there_are_one_clear_line(
    present: int, possible: int | None, may_grow: bool
) -> None:
    with pytest.raises(ConfigError) as error:
        check_room(
            {"CPU": 1.0, "GPU": 2.0},
            least=4,
            present=present,
            possible=possible,
            may_grow=may_grow,
        )
    text = str(error.value)
    assert "at least 4 workers of 1 CPU, 2 GPU each" in text
    assert "can never hold more than 3" in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("present", "possible", "may_grow"),
    [(4, None, False), (0, 4, False), (0, None, True), (4, 1, False)],
)
def test_workers_that_may_come_are_waited_for(
    present: int, possible: int | None, may_grow: bool
) -> None:
    check_room({"CPU": 1.0}, least=4, present=present, possible=possible, may_grow=may_grow)


def test_where_nobody_knows_what_may_come_one_line_says_what_is_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    check_room({"CPU": 1.0}, least=4, present=4, possible=None, may_grow=True)
    assert not caplog.records
    labels = {"ray.io/accelerator-type": "A100"}
    check_room({"CPU": 1.0}, labels=labels, least=4, present=3, possible=None, may_grow=True)
    assert "at least 4 workers of 1 CPU each on nodes with the labels {'ray.io" in caplog.text
    assert "that are there hold 3: waiting for more" in caplog.text


def test_every_metric_that_anybody_judges_by_is_needed() -> None:
    config = TuneConfig(
        metric="accuracy",
        scheduler=ASHAScheduler(metric="val/loss", mode="min", time_attr="samples"),
        search_alg=RandomSearcher(metric="score", mode="max"),
    )
    assert metrics_needed(config) == {
        "accuracy": "TuneConfig(metric=)",
        "val/loss": "AsyncHyperBandScheduler",
        "samples": "AsyncHyperBandScheduler",
        "score": "RandomSearcher",
    }


def test_what_every_report_has_needs_no_mention() -> None:
    assert metrics_needed(TuneConfig(metric="loss", scheduler=ASHAScheduler())) == {}


def test_schedulers_that_let_trials_take_turns_are_known() -> None:
    assert pauses(pbt())
    assert pauses(HyperBandScheduler())
    assert not pauses(ASHAScheduler())
    assert not pauses(None)


def test_the_default_search_is_limited_and_the_limit_can_change() -> None:
    search, limit = limited(TuneConfig(), most=8)
    assert isinstance(search, BasicVariantGenerator)
    assert limit is not None
    assert limit.search is search
    assert (search.max_concurrent, limit.most) == (8, 8)


def test_a_users_own_limit_is_left_alone() -> None:
    own = BasicVariantGenerator(max_concurrent=2)
    search, limit = limited(TuneConfig(search_alg=own), most=8)
    assert isinstance(search, Variants)
    assert (search.max_concurrent, limit) == (2, None)
    wrapped = ConcurrencyLimiter(RandomSearcher(), max_concurrent=2)
    assert limited(TuneConfig(search_alg=wrapped), most=8) == (wrapped, None)


def test_a_searcher_is_asked_for_no_more_trials_than_fit() -> None:
    searcher = RandomSearcher()
    search, limit = limited(TuneConfig(search_alg=searcher), most=3)
    assert isinstance(search, ConcurrencyLimiter)
    assert search.searcher is searcher
    assert search.max_concurrent == 3
    assert limit is not None


def test_a_trial_that_waits_for_its_turn_is_not_counted_by_the_search() -> None:
    search, limit = limited(TuneConfig(scheduler=HyperBandScheduler()), most=3)
    assert isinstance(search, Variants)
    assert (search.max_concurrent, limit) == (0, None)


def test_a_limit_and_its_search_stay_one_through_pickling() -> None:
    search, limit = limited(TuneConfig(), most=4)
    again, its_limit = ray.cloudpickle.loads(ray.cloudpickle.dumps((search, limit)))
    assert its_limit.search is again


def test_trackers_of_a_single_run_are_refused_with_what_a_sweep_has_instead() -> None:
    check_tracking(("tensorboard",))  # the default: Tune writes its own for each trial
    check_tracking(())
    with pytest.raises(ConfigError, match=r"callbacks=\[ray.air.integrations.wandb.Wandb"):
        check_tracking(("tensorboard", "wandb"))
