"""Results of a sweep, in Ray Tune's own form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import ray.cloudpickle
from ray.air.result import Result
from ray.train import Checkpoint
from ray.tune import ResultGrid

from spotray.ledger.sweep import SweepSummary, TrialSummary
from spotray.storage import Store
from spotray.train.ray_internals import DICT_CHECKPOINT_FILE
from spotray.tune.messages import Pointer

SPOT = "spot"  # the part of a result's metrics that is the ledger's


class SpotResultGrid(ResultGrid):
    """Ray Tune's `ResultGrid`, with the training's own checkpoints and the sweep's ledger.

    Tune keeps a pointer for each checkpoint; here ``result.checkpoint`` is what it points to,
    to be read with `torch.distributed.checkpoint`.

    ``result.metrics["spot"]`` says what a trial went through: ``cost_usd`` (None without a
    price), ``goodput`` (fraction, 0..1), ``preemptions`` and ``steps_lost``. In the data frame
    these are the columns ``spot/cost_usd`` and so on. A trial that the budget did not let
    begin has ``held_back`` there, the reason.

    Attributes:
        summary: The sweep's ledger; None if its journal could not be read.
    """

    def __init__(self, analysis: Any, summary: SweepSummary | None = None) -> None:
        self.summary = summary
        trials = summary.trials if summary is not None else ()
        self._spot = {trial.trial: spot_metrics(trial) for trial in trials}
        held_back = summary.held_back if summary is not None else {}
        nothing = {"cost_usd": 0.0, "goodput": None, "preemptions": 0, "steps_lost": 0}
        for trial_id, why in held_back.items():
            self._spot.setdefault(trial_id, {**nothing, "held_back": why})
        # As in the ledger. After a restore Tune has them in another order, and of several
        # that are best it takes the first.
        analysis.trials.sort(key=lambda trial: trial.trial_id)
        super().__init__(analysis)

    def get_dataframe(
        self, filter_metric: str | None = None, filter_mode: str | None = None
    ) -> pd.DataFrame:
        """Ray Tune's data frame of all trials, with the ledger's columns."""
        frame = super().get_dataframe(filter_metric, filter_mode)
        if "trial_id" in frame and self._spot:
            rows = {
                trial: {f"{SPOT}/{name}": value for name, value in values.items()}
                for trial, values in self._spot.items()
            }
            frame = frame.join(pd.DataFrame.from_dict(rows, orient="index"), on="trial_id")
        return frame

    def _trial_to_result(self, trial: Any) -> Result:
        result = super()._trial_to_result(trial)
        if trial.trial_id in self._spot:
            result.metrics = result.metrics or {}  # of one that never began there are none
            result.metrics[SPOT] = dict(self._spot[trial.trial_id])
        result.checkpoint = durable(result.checkpoint)
        result.best_checkpoints = [
            (found, metrics)
            for checkpoint, metrics in result.best_checkpoints or []
            if (found := durable(checkpoint)) is not None
        ]
        return result


def spot_metrics(trial: TrialSummary) -> dict[str, Any]:
    """What a trial cost and went through, under the names that the grid gives it."""
    here = trial.presence
    return {
        "cost_usd": trial.bill.money.cost_usd,
        "goodput": trial.goodput_frac,
        "preemptions": here.preemptions_noticed + here.preemptions_silent,
        "steps_lost": trial.steps_lost,
    }


def durable(checkpoint: Checkpoint | None) -> Checkpoint | None:
    """The checkpoint that a pointer leads to; None if there is none."""
    if checkpoint is None:
        return None
    pointer = read_pointer(checkpoint)
    if pointer is None or pointer.url is None:
        return None
    # Storage with a filesystem of its own has paths without a scheme.
    filesystem = checkpoint.filesystem if "://" not in pointer.url else None
    store = Store.at(pointer.url, filesystem=filesystem)
    return Checkpoint(store.root, filesystem=store.fs)


def read_pointer(checkpoint: Checkpoint) -> Pointer | None:
    """What Tune keeps of a trial's checkpoint; None if that is not there any more."""
    path = Path(checkpoint.path, DICT_CHECKPOINT_FILE).as_posix()
    assert checkpoint.filesystem is not None, "Ray finds one for any path"
    try:
        with checkpoint.filesystem.open_input_stream(path) as stream:
            return Pointer.from_dict(ray.cloudpickle.loads(stream.readall()))
    except FileNotFoundError:
        return None
