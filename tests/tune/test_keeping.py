"""A scheduler that is written down judges as if it had never stopped. No cluster."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune.experiment import Trial
from ray.tune.schedulers import (
    ASHAScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
)

from spotray.tune.callback import SweepCallback
from spotray.tune.keeping import take_up, written_down

SCHEDULERS = {
    "asha": lambda: ASHAScheduler(
        metric="val", mode="max", grace_period=1, max_t=4, reduction_factor=2
    ),
    "hyperband": lambda: HyperBandScheduler(metric="val", mode="max", max_t=9),
    "median": lambda: MedianStoppingRule(
        time_attr="training_iteration",
        metric="val",
        mode="max",
        grace_period=0,
        min_samples_required=1,
    ),
    "pbt": lambda: PopulationBasedTraining(
        time_attr="training_iteration",
        metric="val",
        mode="max",
        perturbation_interval=10,
        hyperparam_mutations={"lr": [0.1, 0.2]},
    ),
}


class Controller(SimpleNamespace):
    """As much of Tune's controller as schedulers ask for."""

    search_alg = None

    def get_live_trials(self) -> list[Trial]:
        return list(self.trials)

    def get_trials(self) -> list[Trial]:
        return list(self.trials)


def trials(count: int) -> list[Trial]:
    made = []
    for index in range(count):
        trial = Trial("loop", stub=True, trial_id=f"t{index}", config={"lr": 0.1})
        trial.status = Trial.RUNNING
        made.append(trial)
    return made


def tell(scheduler: Any, controller: Controller, trial: Trial, iteration: int, val: float) -> str:
    result = {"training_iteration": iteration, "val": val, "trial_id": trial.trial_id}
    return str(scheduler.on_trial_result(controller, trial, result))


def begun(kind: str, mine: list[Trial]) -> tuple[Any, Controller]:
    """A scheduler that has seen the first report of all trials but the last."""
    scheduler, controller = SCHEDULERS[kind](), Controller(trials=mine)
    for trial in mine:
        scheduler.on_trial_add(controller, trial)
    for index, trial in enumerate(mine[:-1]):
        tell(scheduler, controller, trial, 1, 1.0 + index)
    return scheduler, controller


@pytest.mark.parametrize("kind", sorted(SCHEDULERS))
def test_it_decides_as_the_one_that_never_stopped(kind: str) -> None:
    before, controller = begun(kind, trials(4))
    state = written_down(before)
    again = trials(4)
    after, its_controller = SCHEDULERS[kind](), Controller(trials=again)
    for trial in again:
        after.on_trial_add(its_controller, trial)
    take_up(after, state, {trial.trial_id: trial for trial in again})
    expected = tell(before, controller, controller.trials[-1], 1, 0.5)
    assert tell(after, its_controller, again[-1], 1, 0.5) == expected


def test_without_its_state_it_would_decide_otherwise() -> None:
    before, controller = begun("asha", trials(4))
    assert tell(before, controller, controller.trials[-1], 1, 0.5) == "STOP"
    fresh, mine = SCHEDULERS["asha"](), trials(4)
    its_controller = Controller(trials=mine)
    for trial in mine:
        fresh.on_trial_add(its_controller, trial)
    assert tell(fresh, its_controller, mine[-1], 1, 0.5) == "CONTINUE"


def test_trials_in_its_state_are_those_that_tune_has_now() -> None:
    before, _ = begun("pbt", trials(2))
    again = trials(2)
    after = SCHEDULERS["pbt"]()
    take_up(after, written_down(before), {trial.trial_id: trial for trial in again})
    assert set(after._trial_state) == set(again)


def test_a_callback_hands_the_state_to_the_next_drivers() -> None:
    before, controller = begun("asha", trials(4))
    state = SweepCallback("sweep", scheduler=before).get_state()
    assert state is not None
    fresh, mine = SCHEDULERS["asha"](), trials(4)
    callback = SweepCallback("sweep", scheduler=fresh)
    callback.set_state(copy.deepcopy(state))
    its_controller = Controller(trials=mine)
    for trial in mine:
        fresh.on_trial_add(its_controller, trial)
    callback.on_step_begin(iteration=0, trials=mine)
    assert tell(fresh, its_controller, mine[-1], 1, 0.5) == "STOP"
    assert tell(before, controller, controller.trials[-1], 1, 0.5) == "STOP"


def test_a_state_that_does_not_fit_ends_no_sweep(caplog: pytest.LogCaptureFixture) -> None:
    before, _ = begun("pbt", trials(3))
    state = SweepCallback("sweep", scheduler=before).get_state()
    assert state is not None
    callback = SweepCallback("sweep", scheduler=SCHEDULERS["pbt"]())
    callback.set_state(state)
    callback.on_step_begin(iteration=0, trials=trials(1))
    assert "PopulationBasedTraining begins anew" in caplog.text


def test_a_scheduler_that_cannot_be_written_down_ends_no_sweep(
    caplog: pytest.LogCaptureFixture,
) -> None:
    import threading

    scheduler = SCHEDULERS["asha"]()
    scheduler.lock = threading.Lock()
    callback = SweepCallback("sweep", scheduler=scheduler)
    assert callback.get_state() is None
    assert callback.get_state() is None
    assert caplog.text.count("cannot be kept") == 1
