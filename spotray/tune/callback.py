"""What Tune's driver tells the sweep: who begins, pauses and ends."""

from __future__ import annotations

import logging
import time
from typing import Any

import ray
from ray.tune import Callback
from ray.tune.experiment import Trial
from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter
from ray.tune.utils import flatten_dict

from spotray.cluster.job_actors import NAMESPACE
from spotray.errors import ConfigError
from spotray.storage import split
from spotray.tune.checks import Limit
from spotray.tune.keeping import take_up, written_down
from spotray.tune.messages import ITERATION, RUN_DIR
from spotray.tune.variants import Variants

log = logging.getLogger(__name__)

_CALL_S = 120.0  # the actor imports torch first; and a busy head is slow
_ROOM_EVERY_S = 3.0  # between two questions how many trials fit
_OF_THE_END = frozenset({"weights_sha256", "step"})


class SweepCallback(Callback):
    """Tells the sweep's actor; pickled with the sweep, and found again by a later driver.

    Args:
        sweep_actor: Name of the actor.
        search: Tune's, which must not give trials that are there.
        limit: Where the number of trials that may run is set; None: nowhere.
        scheduler: Tune's, whose state is kept with the sweep.
    """

    def __init__(
        self,
        sweep_actor: str,
        *,
        search: Any = None,
        limit: Limit | None = None,
        scheduler: Any = None,
    ) -> None:
        self._name, self._search, self._limit = sweep_actor, search, limit
        self._scheduler = scheduler
        self._is_first_step = True
        self._kept: bytes | None = None  # the scheduler's state of an earlier driver
        self._cannot_keep = False
        self._running: set[str] = set()
        self._looked_at = float("-inf")

    def get_state(self) -> dict[str, Any] | None:
        """What Tune writes down with the trials, at the same moment."""
        if self._scheduler is None or self._cannot_keep:
            return None
        try:
            return {"scheduler": written_down(self._scheduler)}
        except Exception as exc:  # whatever a scheduler of the user's holds: Tune goes on
            self._cannot_keep = True
            log.warning(
                "the state of %s cannot be kept (%s): after the driver's death it would begin anew",
                type(self._scheduler).__name__,
                exc,
            )
            return None

    def set_state(self, state: dict[str, Any]) -> None:
        self._kept = state.get("scheduler")

    def on_step_begin(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        self._take_up(trials)
        if self._is_first_step:
            self._set_right(trials)
        self._is_first_step = False
        if self._limit is None or time.monotonic() - self._looked_at < _ROOM_EVERY_S:
            return
        self._looked_at = time.monotonic()
        search = self._limit.search
        more = isinstance(search, BasicVariantGenerator) and not search.is_finished()
        fits = int(self._ask("trials_that_fit", more))
        search.max_concurrent = max(1, min(self._limit.most, fits))

    def on_trial_start(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        # As Tune's loggers have it: its checkpoint's, which Tune goes back to next, may be older.
        last = trial.run_metadata.last_result
        run = split(str(last.get(RUN_DIR, "")))[1]
        self._ask("seen", trial.trial_id, run, int(last.get(ITERATION, 0)))
        self._running.add(trial.trial_id)

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        for trial in trials:
            if trial.trial_id not in self._running or trial.status == Trial.RUNNING:
                continue
            # Of pauses, and of the end of all trials at once, no callback tells.
            if trial.status in (Trial.PAUSED, Trial.PENDING):
                self._running.discard(trial.trial_id)
                self._ask("pause", trial.trial_id)
            else:
                is_final = trial.status == Trial.TERMINATED
                self._end(trial, f"the scheduler: {trial.status.lower()}", is_final=is_final)

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        final = self._end(trial, "Tune ended it", is_final=True)
        last = trial.run_metadata.last_result
        if last:
            # A restored trial of which Tune had every report stands at its checkpoint's again.
            is_behind = final.get(ITERATION, 0) > last.get(ITERATION, 0)
            names = final.keys() if is_behind else _OF_THE_END & final.keys()
            last.update({name: final[name] for name in names})
            trial.run_metadata.invalidate_cache()

    def on_trial_error(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        self._failed(trial)

    def on_trial_recover(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        self._failed(trial)

    def waits(self) -> bool:
        """Whether some trial waits for workers now."""
        return bool(self._ask("waits"))

    def _set_right(self, trials: list[Trial]) -> None:
        """Tell the search what became of its trials: its own state may be older, or newer."""
        search, there = self._search, {str(trial.trial_id): trial for trial in trials}
        if isinstance(search, Variants):
            search.are_there({name: trial.is_finished() for name, trial in there.items()})
        elif isinstance(search, ConcurrencyLimiter):
            for name in search.live_trials - search.cached_results.keys():
                trial = there.get(name)
                if trial is None or trial.status == Trial.ERROR:
                    search.on_trial_complete(name, error=True)
                elif trial.is_finished():
                    search.on_trial_complete(name, result=flatten_dict(trial.last_result))

    def _take_up(self, trials: list[Trial]) -> None:
        """Give the scheduler what it knew, once Tune has the trials again."""
        kept, self._kept = self._kept, None
        if kept is None:
            return
        try:
            take_up(self._scheduler, kept, {str(trial.trial_id): trial for trial in trials})
        except Exception as exc:  # without it the sweep goes on too, as Tune's own does
            log.warning(
                "%s begins anew: its state of before does not fit (%r)",
                type(self._scheduler).__name__,
                exc,
            )

    def _failed(self, trial: Trial) -> None:
        self._end(trial, "it failed", is_final=False)
        if fatal := self._ask("fatal"):
            raise ConfigError(fatal)  # no other trial would do better

    def _end(self, trial: Trial, why: str, *, is_final: bool) -> dict[str, Any]:
        self._running.discard(trial.trial_id)
        final: dict[str, Any] = self._ask("stop", trial.trial_id, why, is_final)
        return final

    def _ask(self, method: str, *args: Any) -> Any:
        sweep = ray.get_actor(self._name, namespace=NAMESPACE)
        return ray.get(getattr(sweep, method).remote(*args), timeout=_CALL_S)
