"""Sweeps at their limits, on real Ray nodes: one worker a trial, a bucket, a budget."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from ray.tune import Callback

from spotray import SpotConfig, SpotTuner
from spotray.clock import SystemClock, wait_until
from spotray.events import JobEnded, JobStarted, Restored, TrainingDone
from spotray.lab import processes
from spotray.lab.lab import Lab
from spotray.lab.scenario import Scenario
from spotray.ledger.sweepdir import SweepReader, load_sweep
from spotray.storage import split
from tests.tune.ray_sweeps import (
    RATES,
    ROOT,
    WORKERS,
    Disturber,
    of,
    references,
    run_events,
    runs,
    tuner_of,
)
from tests.tune.sweep_jobs import STEPS_PER_EPOCH, sweep_loop

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

STEP_S, SNAPSHOT_S = 0.2, 0.5
# A snapshot is taken with the first step after its time, and copied beside the next one.
MOST_REDONE = round(SNAPSHOT_S / STEP_S) + 2
IN_MEMORY = SpotConfig(
    snapshot_interval_s=SNAPSHOT_S,
    checkpoint_interval_s=3600.0,  # nothing but memory can help
    save_cost_frac=0.9,  # steps as short as these cannot afford the interval
)


class Counter(Callback):
    """Counts the trials' processes at each report; of this test's own cluster."""

    def __init__(self) -> None:
        self.most: dict[str, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune keeps its callbacks

    def on_trial_result(self, *_: Any, **__: Any) -> None:
        titles = []
        for pid in processes.descendants(os.getpid()):
            try:
                titles.append(Path(f"/proc/{pid}/cmdline").read_bytes().decode())
            except (FileNotFoundError, ProcessLookupError):  # it ended just now
                continue
        for name in ("LiveWorker", "sweep_loop", "SweepActor"):
            count = sum(title.startswith(f"ray::{name}") for title in titles)
            self.most[name] = max(count, self.most.get(name, 0))


def test_single_workers_whose_nodes_go_silently_repeat_a_snapshots_interval_at_most(
    cluster: Lab, tmp_path: Path
) -> None:
    epochs, counter = 6, Counter()
    disturber = Disturber(cluster, {10: "kill", 22: "kill", 36: "kill"})
    tuner = tuner_of(
        tmp_path,
        "single",
        lrs=RATES,
        epochs=epochs,
        workers=(1, 1),
        step_s=STEP_S,
        spot=IN_MEMORY,
        callbacks=[disturber, counter],
    )
    grid = tuner.fit()
    disturber.join()
    assert len(disturber.done) == 3, "fewer nodes were taken than planned"
    assert grid.num_errors == 0
    expected = references(RATES, epochs)
    for result in grid:
        assert result.metrics["weights_sha256"] == expected[result.config["lr"]]
    # A trial that began just now, or whose copy's node went just before, may have no copy yet: on
    # a busy machine for seconds. Who has one goes on from it.
    again = [(run, e) for run in runs(tuner) for e in of(run_events(tuner, run), Restored)[1:]]
    from_copies = [(run, e) for run, e in again if e.source == "snapshot"]
    assert from_copies, f"nobody went on from a copy in another node's memory: {again}"
    for run, one in from_copies:
        assert one.reached_step is not None
        assert one.reached_step - one.step <= MOST_REDONE, (run, one)
    # A trial that runs has its worker, and Tune's process; those that wait have none.
    assert counter.most["SweepActor"] == 1
    assert 1 < counter.most["LiveWorker"] <= WORKERS
    assert counter.most["sweep_loop"] <= WORKERS


def test_a_sweep_on_a_bucket_goes_on_after_the_death_of_its_driver(
    cluster: Lab, tmp_path: Path, s3_server: Any
) -> None:
    # Workers get the environment of the raylets, which knows no bucket: the URL says it.
    endpoint = s3_server.endpoint_url.removeprefix("http://")
    query = f"endpoint_override={endpoint}&scheme=http"
    storage = f"s3://testing:testing@{s3_server.bucket}/sweeps?{query}"
    folder = f"s3://testing:testing@{s3_server.bucket}/sweeps/bucket?{query}"
    rates, epochs = RATES[:5], 4  # more trials than nodes: some have yet to begin
    command = [sys.executable, "-m", "tests.tune.sweep_driver"]
    arguments = [cluster.address, storage, "bucket", json.dumps(rates), str(epochs)]
    environment = {**os.environ, **cluster.environment(), "PYTHONPATH": str(ROOT)}
    driver = subprocess.Popen(
        [*command, *arguments], cwd=ROOT, env=environment, start_new_session=True
    )

    reader = SweepReader(folder)

    def ended() -> list[str]:
        told = reader.poll().runs
        return sorted(
            run
            for run, own in told.items()
            if [e.status for e in of(own, JobEnded)] == ["finished"]
        )

    try:
        assert wait_until(lambda: bool(ended()), timeout_s=300, clock=SystemClock())
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    ended_before = ended()
    assert len(ended_before) < len(rates), "the sweep ended before its driver could be killed"
    assert SpotTuner.can_restore(folder)
    tuner = SpotTuner.restore(folder, sweep_loop)
    grid = tuner.fit()
    assert grid.num_errors == 0
    expected = references(rates, epochs)
    told = load_sweep(tuner.sweep_dir).runs
    trained = {
        r.config["lr"]: of(told[split(r.metrics["run_dir"])[1]], TrainingDone)[-1].weights_sha256
        for r in grid
    }
    assert trained == expected
    for result in grid:
        assert result.metrics["weights_sha256"] == expected[result.config["lr"]]
        assert result.metrics["training_iteration"] == epochs
        assert result.checkpoint is not None
        with result.checkpoint.as_directory() as checkpoint:
            assert Path(checkpoint, ".metadata").exists(), "the last checkpoint is not whole"
    assert len(told) == len(rates)
    for run in ended_before:
        assert len(of(told[run], JobStarted)) == 1, f"{run} was trained again"


class PriceRise(Callback):
    """Makes the market very dear at the sweep's first report.

    Args:
        lab: Whose market.
    """

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self.at_s = float("inf")
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune keeps its callbacks; the lab is this process's alone

    def on_trial_result(self, *_: Any, **__: Any) -> None:
        with self._lock:
            if self.at_s == float("inf"):
                self._lab.set_spot_price(10_000.0)
                self.at_s = time.time()


def test_a_budget_that_is_spent_lets_no_other_trial_begin_and_the_grid_says_so(
    cluster: Lab, tmp_path: Path
) -> None:
    before = Scenario().market.load_prices().value_at(0)
    rise = PriceRise(cluster)
    try:
        tuner = tuner_of(
            tmp_path,
            "budget",
            lrs=RATES,
            epochs=4,
            workers=(1, 1),
            spot=SpotConfig(max_cost_usd=1.0),
            callbacks=[rise],
        )
        grid = tuner.fit()
    finally:
        cluster.set_spot_price(before)
    assert grid.num_errors == 0
    assert len(grid) == len(RATES)
    assert grid.summary is not None
    starts = [of(own, JobStarted) for own in load_sweep(tuner.sweep_dir).runs.values()]
    begun = [events[0].at_s for events in starts if events]
    assert 1 <= len(begun) <= WORKERS
    assert max(begun) < rise.at_s + 5.0, "a trial began past the budget"
    assert len(grid.summary.held_back) == len(RATES) - len(begun)
    held = [r.metrics["spot"] for r in grid if "held_back" in r.metrics["spot"]]
    assert len(held) == len(grid.summary.held_back)
    assert all("of $1.00" in one["held_back"] and one["cost_usd"] == 0.0 for one in held)
    ran = [r for r in grid if "held_back" not in r.metrics["spot"]]
    assert all(r.metrics["step"] == 4 * STEPS_PER_EPOCH for r in ran), "a trial was cut short"
    frame = grid.get_dataframe()
    assert frame["spot/held_back"].notna().sum() == len(held)
