"""Population based training in which a perturbation pauses no trial but the one that it changes.

Ray Tune's scheduler lets every trial pause as soon as one other is not running, so that more
trials than fit get their turns. The trial that is just being cloned is not running: so each
perturbation would pause all, and each would have to begin anew, though there is room for all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import PopulationBasedTraining, TrialScheduler


class Turns(TrialScheduler):
    """A `PopulationBasedTraining` whose trials pause only where others wait for room.

    Args:
        scheduler: The user's; it decides everything else.
        at_once: Trials that fit at once.
        waits: Whether some trial waits for workers now.
    """

    def __init__(
        self, scheduler: PopulationBasedTraining, *, at_once: int, waits: Callable[[], bool]
    ) -> None:
        self.scheduler = scheduler
        self._at_once, self._waits = at_once, waits

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        decision = str(self.scheduler.on_trial_result(tune_controller, trial, result))
        if decision != TrialScheduler.PAUSE:
            return decision
        there = [one for one in tune_controller.get_trials() if not one.is_finished()]
        if len(there) > self._at_once or self._waits():
            return decision
        return TrialScheduler.CONTINUE

    @property
    def metric(self) -> Any:
        return self.scheduler.metric

    @property
    def supports_buffered_results(self) -> bool:
        return bool(self.scheduler.supports_buffered_results)

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        return bool(self.scheduler.set_search_properties(metric, mode, **spec))

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        self.scheduler.on_trial_add(tune_controller, trial)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        self.scheduler.on_trial_error(tune_controller, trial)

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        self.scheduler.on_trial_complete(tune_controller, trial, result)

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        self.scheduler.on_trial_remove(tune_controller, trial)

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        return self.scheduler.choose_trial_to_run(tune_controller)

    def debug_string(self) -> str:
        return str(self.scheduler.debug_string())
