"""What Tune's driver tells the sweep. Its controller and the sweep are scripted."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import ray.cloudpickle
from ray.tune.experiment import Trial
from ray.tune.search import ConcurrencyLimiter, Searcher

from spotray.errors import ConfigError
from spotray.tune.callback import SweepCallback
from spotray.tune.checks import Limit


class Search:
    max_concurrent = 32


class Scripted(SweepCallback):
    """Answers for the sweep."""

    def __init__(self, **settings: Any) -> None:
        super().__init__("sweep", **settings)
        self.asked: list[tuple[Any, ...]] = []
        self.answers: dict[str, Any] = {"fatal": "", "stop": {}, "trials_that_fit": 3}

    def _ask(self, method: str, *args: Any) -> Any:
        self.asked.append((method, *args))
        return self.answers.get(method)

    def about(self, method: str) -> list[tuple[Any, ...]]:
        return [asked[1:] for asked in self.asked if asked[0] == method]


def trial_at(iteration: int = 0, run_dir: str = "", status: str = Trial.RUNNING) -> Trial:
    trial = Trial("loop", stub=True, trial_id="t0")
    trial.status = status
    if iteration:
        trial.run_metadata.last_result = {"training_iteration": iteration, "run_dir": run_dir}
    return trial


def started(callback: SweepCallback, trial: Trial) -> None:
    callback.on_trial_start(iteration=0, trials=[trial], trial=trial)


def looked(callback: SweepCallback, trial: Trial) -> None:
    callback.on_step_end(iteration=0, trials=[trial])


def test_the_sweep_hears_what_tune_has_before_the_trial_goes_on() -> None:
    callback = Scripted()
    started(callback, trial_at())
    started(callback, trial_at(4, "s3://b/sweep/trials/t0-0a1b2c3d/"))
    assert callback.about("seen") == [("t0", "", 0), ("t0", "t0-0a1b2c3d", 4)]


def test_a_pause_is_seen_once() -> None:
    callback, trial = Scripted(), trial_at(1)
    started(callback, trial)
    looked(callback, trial)
    assert callback.about("pause") == []
    trial.status = Trial.PAUSED
    looked(callback, trial)
    looked(callback, trial)
    assert callback.about("pause") == [("t0",)]


def test_a_pause_that_is_over_already_is_seen_too() -> None:
    callback, trial = Scripted(), trial_at(1)
    started(callback, trial)
    trial.status = Trial.PENDING
    looked(callback, trial)
    assert callback.about("pause") == [("t0",)]


def test_the_end_of_all_trials_at_once_stops_each() -> None:
    callback, trial = Scripted(), trial_at(1)
    started(callback, trial)
    trial.status = Trial.TERMINATED
    looked(callback, trial)
    assert callback.about("stop") == [("t0", "the scheduler: terminated", True)]


def test_a_trial_that_ended_has_the_digest_of_its_weights() -> None:
    callback, trial = Scripted(), trial_at(4)
    callback.answers["stop"] = {"weights_sha256": "ab", "step": 20, "val": 9.0}
    callback.on_trial_complete(iteration=0, trials=[trial], trial=trial)
    assert trial.last_result["weights_sha256"] == "ab"
    assert trial.last_result["step"] == 20
    assert "val" not in trial.last_result, "a metric that was not reported is none"


def test_a_restored_trial_of_which_tune_had_every_report_ends_with_the_last_of_them() -> None:
    callback, trial = Scripted(), trial_at(6, "/sweep/trials/t0")
    started(callback, trial)
    # Tune goes back to the checkpoint, which is older than what it had heard.
    trial.run_metadata.last_result = {"training_iteration": 4, "step": 20, "val": 0.5}
    callback.answers["stop"] = {
        "training_iteration": 6,
        "step": 30,
        "val": 0.1,
        "weights_sha256": "ab",
    }
    callback.on_trial_complete(iteration=0, trials=[trial], trial=trial)
    assert trial.last_result["training_iteration"] == 6
    assert (trial.last_result["val"], trial.last_result["weights_sha256"]) == (0.1, "ab")


def test_what_the_end_adds_is_in_what_tune_writes_down_of_the_trial() -> None:
    callback, trial = Scripted(), trial_at(4)
    trial.run_metadata.get_json_state()  # written down once before, with the last report
    callback.answers["stop"] = {"weights_sha256": "ab", "step": 20}
    callback.on_trial_complete(iteration=0, trials=[trial], trial=trial)
    assert '"weights_sha256": "ab"' in trial.run_metadata.get_json_state()


def test_a_trial_without_a_result_gets_none_at_its_end() -> None:
    callback, trial = Scripted(), trial_at()
    callback.answers["stop"] = {"weights_sha256": "ab", "step": 0}
    callback.on_trial_complete(iteration=0, trials=[trial], trial=trial)
    assert trial.run_metadata.last_result == {}


def test_a_failed_trial_may_go_on_and_is_not_forgotten() -> None:
    callback, trial = Scripted(), trial_at(1)
    callback.on_trial_recover(iteration=0, trials=[trial], trial=trial)
    callback.on_trial_error(iteration=0, trials=[trial], trial=trial)
    assert callback.about("stop") == [("t0", "it failed", False)] * 2


@pytest.mark.parametrize("hook", ["on_trial_error", "on_trial_recover"])
def test_what_no_trial_can_do_better_ends_the_sweep(hook: str) -> None:
    callback, trial = Scripted(), trial_at(1)
    callback.answers["fatal"] = "nobody reports 'accuracy'"
    with pytest.raises(ConfigError, match="nobody reports 'accuracy'"):
        getattr(callback, hook)(iteration=0, trials=[trial], trial=trial)


@pytest.mark.parametrize(("fits", "most", "at_once"), [(3, 32, 3), (0, 32, 1), (64, 32, 32)])
def test_as_many_trials_run_as_fit(fits: int, most: int, at_once: int) -> None:
    search = Search()
    callback = Scripted(limit=Limit(search, most))
    callback.answers["trials_that_fit"] = fits
    callback.on_step_begin(iteration=0, trials=[])
    assert search.max_concurrent == at_once
    callback.on_step_begin(iteration=1, trials=[])
    assert len(callback.about("trials_that_fit")) == 1, "asked in every turn of Tune's"


def test_a_restored_search_hears_of_trials_that_ended_behind_its_back() -> None:
    class Learning(Searcher):
        heard: ClassVar[list[tuple[Any, ...]]] = []

        def suggest(self, trial_id: str) -> dict[str, Any]:
            return {"lr": 0.1}

        def on_trial_complete(
            self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
        ) -> None:
            self.heard.append((trial_id, (result or {}).get("val"), error))

    search = ConcurrencyLimiter(Learning(metric="val", mode="min"), max_concurrent=3)
    for name in ("t0", "t1", "gone"):
        assert search.suggest(name)
    ended, running = trial_at(4, status=Trial.TERMINATED), trial_at(2)
    ended.run_metadata.last_result["val"] = 0.5
    running.trial_id = "t1"
    callback = Scripted(search=search)
    callback.on_step_begin(iteration=0, trials=[ended, running])
    assert sorted(Learning.heard) == [("gone", None, True), ("t0", 0.5, False)]
    assert search.live_trials == {"t1"}, "the place of a trial that ended stays taken"


def test_a_later_driver_finds_the_same_search_in_it() -> None:
    search = Search()
    limit, its_search = ray.cloudpickle.loads(
        ray.cloudpickle.dumps((SweepCallback("sweep", limit=Limit(search, 4)), search))
    )
    assert limit._limit.search is its_search
