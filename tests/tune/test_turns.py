"""Population based training that pauses no more trials than it must. No cluster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import ray.cloudpickle
from ray.tune.experiment import Trial
from ray.tune.schedulers import PopulationBasedTraining, TrialScheduler

from spotray.tune.turns import Turns

METRIC = {"metric": "val", "mode": "max"}


def pbt() -> PopulationBasedTraining:
    return PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=1,
        quantile_fraction=0.0,  # nobody is cloned: only the pausing is looked at
        hyperparam_mutations={"lr": [0.1, 0.2]},
        **METRIC,
    )


class Population:
    """Trials of which the first reports, and Tune's controller around them."""

    search_alg = None

    def __init__(self, scheduler: Any, *statuses: str) -> None:
        self.trials = []
        for index, status in enumerate(statuses):
            trial = Trial("loop", stub=True, trial_id=f"t{index}", config={"lr": 0.1})
            trial.status = status
            self.trials.append(trial)
            scheduler.on_trial_add(self, trial)

    def get_trials(self) -> list[Trial]:
        return self.trials


def decision(scheduler: Any, population: Population) -> str:
    result = {"training_iteration": 1, "val": 1.0}
    return str(scheduler.on_trial_result(population, population.trials[0], result))


def turns(*, at_once: int, waits: bool = False) -> Turns:
    return Turns(pbt(), at_once=at_once, waits=lambda: waits)


def test_rays_own_scheduler_pauses_as_soon_as_one_other_is_not_running() -> None:
    scheduler = pbt()
    population = Population(scheduler, Trial.RUNNING, Trial.RUNNING, Trial.PAUSED)
    assert decision(scheduler, population) == TrialScheduler.PAUSE


@pytest.mark.parametrize("status", [Trial.PAUSED, Trial.PENDING])
def test_with_room_for_all_nobody_pauses_for_another(status: str) -> None:
    scheduler = turns(at_once=3)
    population = Population(scheduler, Trial.RUNNING, Trial.RUNNING, status)
    assert decision(scheduler, population) == TrialScheduler.CONTINUE


def test_more_trials_than_fit_take_turns() -> None:
    scheduler = turns(at_once=2)
    population = Population(scheduler, Trial.RUNNING, Trial.RUNNING, Trial.PENDING)
    assert decision(scheduler, population) == TrialScheduler.PAUSE


def test_trials_take_turns_while_one_waits_for_workers() -> None:
    scheduler = turns(at_once=3, waits=True)
    population = Population(scheduler, Trial.RUNNING, Trial.RUNNING, Trial.PAUSED)
    assert decision(scheduler, population) == TrialScheduler.PAUSE


def test_trials_that_ended_need_no_turn() -> None:
    scheduler = turns(at_once=2)
    population = Population(scheduler, Trial.RUNNING, Trial.PAUSED, Trial.TERMINATED)
    assert decision(scheduler, population) == TrialScheduler.CONTINUE


def test_everything_else_is_the_users_scheduler() -> None:
    scheduler = Turns(
        PopulationBasedTraining(
            time_attr="training_iteration", hyperparam_mutations={"lr": [0.1, 0.2]}
        ),
        at_once=1,
        waits=lambda: False,
    )
    assert scheduler.set_search_properties("val", "max")
    assert scheduler.metric == "val"
    assert scheduler.supports_buffered_results == scheduler.scheduler.supports_buffered_results
    population = Population(scheduler, Trial.PENDING)
    assert scheduler.choose_trial_to_run(population) is population.trials[0]
    assert scheduler.debug_string() == scheduler.scheduler.debug_string()
    scheduler.on_trial_remove(population, population.trials[0])
    scheduler.on_trial_complete(population, population.trials[0], {})
    scheduler.on_trial_error(population, population.trials[0])


def test_it_is_written_down_as_one_with_the_users_scheduler() -> None:
    owner = SimpleNamespace(scheduler=None)
    wrapped = turns(at_once=1)
    owner.scheduler = wrapped.scheduler
    again, its_owner = ray.cloudpickle.loads(ray.cloudpickle.dumps((wrapped, owner)))
    assert its_owner.scheduler is again.scheduler
