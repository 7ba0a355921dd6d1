"""A trial as Ray Tune sees it: a small process that asks the sweep for reports.

It imports no torch: the sweep hosts the trial's job, and its workers train. So many of
these fit on the head.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.tune import PlacementGroupFactory, Trainable
from ray.tune.result import DONE, RESULT_DUPLICATE

from spotray.cluster.job_actors import NAMESPACE
from spotray.errors import SpotrayError
from spotray.tune.messages import ITERATION, Ended, Pointer, Report

_POLL_S = 10.0  # one question to the sweep waits so long at most
_SAVE_S = 600.0  # a checkpoint takes as long as storage does, and workers may be lost meanwhile


class Trial(Trainable):
    """One trial of a `SpotTuner`; `trainable` makes the class that a sweep hands to Tune."""

    sweep_actor: ClassVar[str] = ""  # its name
    bundle: ClassVar[Mapping[str, float]] = {}  # what one such process takes
    selector: ClassVar[Mapping[str, str]] = {}  # labels of the node that it must be on

    # Set by `setup`: Ray's own class has the constructor.
    _sweep: Any  # handle of the sweep's actor
    _hyperparameters: dict[str, Any]
    _trial: str
    _token: str  # of this process, as long as it has this trial
    _pointer: Pointer | None
    _has_begun: bool

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory:
        """Where this process runs; asked for in the driver, again after a restore."""
        labels: dict[str, Any] = {}
        if cls.selector:
            labels["bundle_label_selector"] = [dict(cls.selector)]
        return PlacementGroupFactory([dict(cls.bundle)], **labels)

    def setup(self, config: dict[str, Any]) -> None:
        self._sweep = ray.get_actor(self.sweep_actor, namespace=NAMESPACE)
        self._turn_to(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Turn to another trial, or to the same one with other hyperparameters."""
        self.cleanup()
        self._turn_to(new_config)
        return True

    def load_checkpoint(self, checkpoint: Any) -> None:
        self._pointer = Pointer.from_dict(checkpoint)

    def step(self) -> dict[str, Any]:
        """The next report; the first call begins the trial."""
        if not self._has_begun:
            pointer = self._pointer.to_dict() if self._pointer is not None else None
            self._ask("begin", self._hyperparameters, pointer)
            self._has_begun = True
        while True:
            answer: Report | Ended | None = self._ask("next", _POLL_S)
            if isinstance(answer, Report):
                return answer.to_result()
            if isinstance(answer, Ended):
                if answer.lacking is not None:
                    # Tune takes no end without the metrics, and no searcher may learn from it.
                    nothing = dict.fromkeys((*answer.lacking, "loss"), math.nan)
                    return {**nothing, ITERATION: 0, "step": 0, "epoch": 0, DONE: True}
                if answer.why:
                    # Tune ended nothing, or it would not ask: what was cut short is no result.
                    raise SpotrayError(f"trial {self._trial} was stopped: {answer.why}")
                # Tune repeats the last report, with its end.
                return {DONE: True, RESULT_DUPLICATE: True}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        """A pointer to a durable checkpoint of where the workers stand."""
        if not self._has_begun and self._pointer is not None:
            return self._pointer.to_dict()
        left_s = _SAVE_S
        while left_s > 0:
            pointer = cast("dict[str, Any] | None", self._ask("save", _POLL_S))
            if pointer is not None:
                return pointer
            left_s -= _POLL_S
        raise SpotrayError(
            f"trial {self.trial_id} got no checkpoint within {_SAVE_S:.0f} s: its workers did not "
            "come to the step that it is of"
        )

    def cleanup(self) -> None:
        if self._has_begun:
            self._has_begun = False
            try:
                self._ask("leave")
            except RayActorError:  # the sweep is over, and all of its trials with it
                return

    def _turn_to(self, config: dict[str, Any]) -> None:
        self._hyperparameters = dict(config)
        self._trial = self.trial_id  # Tune changes its own before it tells
        self._token = uuid.uuid4().hex
        self._pointer = None
        self._has_begun = False

    def _ask(self, method: str, *args: Any) -> Any:
        call = getattr(self._sweep, method)
        try:
            return ray.get(call.remote(self._trial, self._token, *args))
        except RayTaskError as exc:
            raise exc.cause from None  # the training loop's error, or ours


def trainable(
    name: str, *, sweep_actor: str, bundle: Mapping[str, float], selector: Mapping[str, str]
) -> type[Trial]:
    """The class that Tune gets.

    Args:
        name: Of the class: Tune names trials by it.
        sweep_actor: Name of the sweep's actor.
        bundle: What one process takes, by Ray's names.
        selector: Labels of the node that it must be on.
    """
    fields = {"sweep_actor": sweep_actor, "bundle": dict(bundle), "selector": dict(selector)}
    return cast("type[Trial]", type(name, (Trial,), fields))
