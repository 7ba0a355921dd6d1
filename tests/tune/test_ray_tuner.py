"""Sweeps under preemptions on real Ray nodes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import tune
from ray.tune import FailureConfig
from ray.tune.schedulers import (
    ASHAScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
)

from spotray import ConfigError, SpotTuner
from spotray.clock import SystemClock, wait_until
from spotray.controller.progress import ProgressWatch
from spotray.events import JobEnded, JobStarted, MemberFencedOut, Restored, WorkerGroupStarted
from spotray.lab.lab import Lab
from spotray.market.offer import Market
from spotray.policy.view import Preempted
from tests.tune.ray_sweeps import (
    RATES,
    ROOT,
    WORKERS,
    Disturber,
    Looker,
    fell_back,
    of,
    references,
    results_of,
    run_events,
    runs,
    tuner_of,
)
from tests.tune.sweep_jobs import STEPS_PER_EPOCH, sweep_loop

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]


def assert_every_report_came_once(path: str, count: int | None = None) -> None:
    numbers = [result["training_iteration"] for result in results_of(path)]
    assert numbers == list(range(1, len(numbers) + 1)), "a report was lost, or came twice"
    assert count is None or len(numbers) == count


def test_random_search_ends_as_if_nobody_had_taken_nodes(cluster: Lab, tmp_path: Path) -> None:
    epochs = 6
    script = {3: "kill", 8: "notice", 14: "kill", 20: "notice", 27: "notice", 33: "kill"}
    disturber, looker = Disturber(cluster, script), Looker()
    first = {node["NodeID"] for node in ray.nodes()}
    tuner = tuner_of(tmp_path, "random", lrs=RATES, epochs=epochs, callbacks=[disturber, looker])
    grid = tuner.fit()
    disturber.join()
    assert len(disturber.done) == 6, "fewer nodes were taken than planned"
    # Dozens of them share the head.
    assert disturber.trials_with_torch
    assert not any(disturber.trials_with_torch), "Tune's process of a trial has torch in memory"
    assert len(grid) == len(RATES)
    assert grid.num_errors == 0
    expected = references(RATES, epochs)
    for result in grid:
        assert result.metrics["weights_sha256"] == expected[result.config["lr"]]
        assert result.metrics["step"] == epochs * STEPS_PER_EPOCH
        assert_every_report_came_once(result.path, epochs)
        from torch.distributed.checkpoint import FileSystemReader

        names = FileSystemReader(result.checkpoint.path).read_metadata().state_dict_metadata
        assert "/model/head.weight" in names
    spot = {str(Path(result.path).name): result.metrics["spot"] for result in grid}
    assert all(0 < row["goodput"] <= 1 and row["cost_usd"] > 0 for row in spot.values())
    # A node that is taken hits each trial that has a worker on it.
    assert sum(row["preemptions"] for row in spot.values()) >= 6
    frame = grid.get_dataframe()
    assert sorted(frame["spot/cost_usd"]) == sorted(row["cost_usd"] for row in spot.values())
    assert grid.summary is not None
    assert grid.summary.preemptions_noticed + grid.summary.preemptions_silent == 6
    # The cluster's controller sees that trials went on with what replaced the nodes.
    lost_s = looker.looks[0][0]
    born_s = {node["NodeID"]: lost_s for node in ray.nodes() if node["NodeID"] not in first}
    fact = Preempted(at_s=lost_s, market=Market.parse("aws/a/g5.xlarge/spot"), name="spot-1")
    watch = ProgressWatch()
    seen = [watch.look(jobs, facts=[fact], born_s=born_s, now_s=at) for at, jobs in looker.looks]
    assert any(seen), "no trial was seen to step on a new node"


def test_asha_judges_by_reports_that_a_loss_does_not_change(cluster: Lab, tmp_path: Path) -> None:
    scheduler = ASHAScheduler(grace_period=2, max_t=8, reduction_factor=2)
    disturber = Disturber(cluster, {3: "kill", 9: "notice", 15: "kill"})
    tuner = tuner_of(
        tmp_path, "asha", lrs=RATES[:6], epochs=8, callbacks=[disturber], scheduler=scheduler
    )
    grid = tuner.fit()
    disturber.join()
    assert grid.num_errors == 0
    ended = [result.metrics["training_iteration"] for result in grid]
    assert set(ended) <= {2, 4, 8}
    assert 8 in ended
    for result in grid:
        assert_every_report_came_once(result.path)
        assert result.checkpoint is not None, "a trial that was stopped has no checkpoint"
    for run in runs(tuner):
        events = run_events(tuner, run)
        assert of(events, JobEnded)[-1].status in ("finished", "stopped")
        assert not fell_back(events), "a trial that had a checkpoint began anew"


def test_pbt_clones_from_durable_checkpoints(cluster: Lab, tmp_path: Path) -> None:
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        quantile_fraction=0.5,
        hyperparam_mutations={"lr": tune.loguniform(1e-3, 1e-1)},
    )
    disturber = Disturber(cluster, {5: "kill", 12: "notice"})
    (together := tmp_path / "together").mkdir()
    tuner = tuner_of(
        tmp_path,
        "pbt",
        lrs=[1e-6, 1e-2],
        epochs=8,
        # A trial that begins when the other has ended has nobody to be compared with.
        config={"together": (str(together), 2)},
        callbacks=[disturber],
        scheduler=scheduler,
    )
    grid = tuner.fit()
    disturber.join()
    assert grid.num_errors == 0
    clones = [run for run in runs(tuner) if "-" in run]
    assert clones, "nobody was cloned"
    for run in clones:
        first = of(run_events(tuner, run), Restored)[0]
        assert (first.source, first.step > 0) == ("other job", True)
    for result in grid:
        assert result.metrics["training_iteration"] == 8
        assert result.metrics["step"] == 8 * STEPS_PER_EPOCH
        told = results_of(result.path)
        if (Path(result.metrics["run_dir"]).name) in clones:
            # The new learning rate counts, not the one in the donor's optimizer.
            assert told[-1]["lr_now"] == pytest.approx(result.config["lr"])


def test_trials_that_begin_together_share_at_once_and_the_last_one_gets_all(
    cluster: Lab, tmp_path: Path
) -> None:
    (together := tmp_path / "together").mkdir()
    epochs = [2, 3, 4, 40]
    tuner = tuner_of(
        tmp_path,
        "shared",
        lrs=RATES[:1],
        epochs=0,
        # No trial goes on before all have workers: the first one must let go of what it took.
        config={"epochs": tune.grid_search(epochs), "together": (str(together), len(epochs))},
    )
    grid = tuner.fit()
    assert grid.num_errors == 0
    assert sorted(result.metrics["step"] for result in grid) == [
        STEPS_PER_EPOCH * count for count in epochs
    ]
    longest = next(result for result in grid if result.config["epochs"] == epochs[-1])
    events = run_events(tuner, Path(longest.metrics["run_dir"]).name)
    assert of(events, WorkerGroupStarted)[0].world_size == 1
    assert of(events, WorkerGroupStarted)[-1].world_size == WORKERS
    fenced = [event for run in runs(tuner) for event in of(run_events(tuner, run), MemberFencedOut)]
    assert not fenced, "a worker that was let go was taken for a lost one"


def hyperband() -> dict[str, Any]:
    return {"scheduler": HyperBandScheduler(max_t=4, reduction_factor=2)}


def pb2() -> dict[str, Any]:
    pytest.importorskip("GPy", reason="PB2 needs GPy")
    from ray.tune.schedulers.pb2 import PB2

    bounds = {"lr": [1e-3, 1e-1]}
    settings = {"time_attr": "training_iteration", "perturbation_interval": 2}
    return {"scheduler": PB2(hyperparam_bounds=bounds, **settings)}


def optuna_and_median_stopping() -> dict[str, Any]:
    pytest.importorskip("optuna", reason="OptunaSearch needs optuna")
    from ray.tune.search.optuna import OptunaSearch

    rule = MedianStoppingRule(
        time_attr="training_iteration", grace_period=2, min_samples_required=2
    )
    return {"scheduler": rule, "search_alg": OptunaSearch(seed=0), "num_samples": 4}


@pytest.mark.parametrize("kind", [hyperband, pb2, optuna_and_median_stopping])
def test_each_way_to_search_goes_on_through_losses(
    cluster: Lab, tmp_path: Path, kind: Callable[[], dict[str, Any]]
) -> None:
    search = kind()
    disturber = Disturber(cluster, {3: "kill", 7: "notice"})
    tuner = tuner_of(
        tmp_path,
        kind.__name__,
        lrs=tune.loguniform(1e-3, 1e-1) if "search_alg" in search else RATES[:4],
        epochs=4,
        callbacks=[disturber],
        **search,
    )
    grid = tuner.fit()
    disturber.join()
    assert len(disturber.done) == 2, "fewer nodes were taken than planned"
    assert len(grid) == 4
    assert grid.num_errors == 0
    assert max(result.metrics["training_iteration"] for result in grid) == 4
    for run in runs(tuner):
        assert not fell_back(run_events(tuner, run)), "a trial that had a checkpoint began anew"


def test_a_space_that_the_searcher_cannot_take_is_one_clear_line(
    cluster: Lab, tmp_path: Path
) -> None:
    pytest.importorskip("optuna", reason="OptunaSearch needs optuna")
    from ray.tune.search.optuna import OptunaSearch

    tuner = tuner_of(tmp_path, "space", lrs=RATES, epochs=2, search_alg=OptunaSearch())
    with pytest.raises(
        ConfigError, match="Ray Tune does not take this sweep: Grid search"
    ) as error:
        tuner.fit()
    assert "\n" not in str(error.value)
    # Nothing began, so the name is free for the sweep with another space.
    assert not runs(tuner)


def test_after_the_death_of_the_driver_a_sweep_goes_on(cluster: Lab, tmp_path: Path) -> None:
    rates, epochs = RATES[:6], 4
    command = [sys.executable, "-m", "tests.tune.sweep_driver"]
    arguments = [cluster.address, str(tmp_path), "killed", json.dumps(rates), str(epochs)]
    environment = {**os.environ, **cluster.environment(), "PYTHONPATH": str(ROOT)}
    driver = subprocess.Popen(
        [*command, *arguments], cwd=ROOT, env=environment, start_new_session=True
    )
    folder = tmp_path / "killed"

    def ended() -> list[str]:
        done = []
        for about in folder.glob("trials/*/spotray/journal/driver-*.jsonl"):
            if '"finished"' in about.read_text():
                done.append(about.parts[-4])
        return sorted(done)

    try:
        assert wait_until(lambda: len(ended()) >= 2, timeout_s=300, clock=SystemClock())
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    ended_before = ended()
    assert len(ended_before) < len(rates), "the sweep ended before its driver could be killed"
    assert SpotTuner.can_restore(folder)
    tuner = SpotTuner.restore(folder, sweep_loop)
    grid = tuner.fit()
    assert len(grid) == len(rates)
    assert grid.num_errors == 0
    expected = references(rates, epochs)
    for result in grid:
        assert result.metrics["weights_sha256"] == expected[result.config["lr"]]
        assert result.metrics["training_iteration"] == epochs
    for run in ended_before:
        assert len(of(run_events(tuner, run), JobStarted)) == 1, f"{run} was trained again"


def test_a_bug_ends_its_trial_at_once_and_no_other(cluster: Lab, tmp_path: Path) -> None:
    tuner = tuner_of(
        tmp_path,
        "bug",
        lrs=[1e-3],
        epochs=2,
        config={"bug_at": tune.grid_search([3, 1000])},
        step_s=0.0,
        run_config={"failure_config": FailureConfig(max_failures=0)},
    )
    grid = tuner.fit()
    assert grid.num_errors == 1
    bad = next(result for result in grid if result.error)
    assert bad.config["bug_at"] == 3
    assert isinstance(bad.error, ZeroDivisionError)
    assert "a bug of the user's" in str(bad.error)
    good = next(result for result in grid if not result.error)
    assert good.metrics["step"] == 2 * STEPS_PER_EPOCH


def test_a_metric_that_nobody_reports_ends_the_sweep_with_one_line(
    cluster: Lab, tmp_path: Path
) -> None:
    tuner = tuner_of(tmp_path, "missing", lrs=RATES, epochs=2, metric="accuracy", step_s=0.0)
    with pytest.raises(ConfigError, match=r"TuneConfig\(metric=\) needs the metric 'accuracy'"):
        tuner.fit()


def test_nothing_of_the_sweeps_is_left(cluster: Lab) -> None:
    names = [
        actor["Name"] or actor["ClassName"]
        for actor in ray._private.state.actors().values()
        if actor["State"] == "ALIVE"
    ]
    assert not [name for name in names if "spotray" in name or "LiveWorker" in name]
