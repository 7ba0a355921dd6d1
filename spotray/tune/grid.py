"""Results of a sweep, in Ray Tune's own form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ray.cloudpickle
from ray.air.result import Result
from ray.train import Checkpoint
from ray.tune import ResultGrid

from spotray.storage import Store
from spotray.train.ray_internals import DICT_CHECKPOINT_FILE
from spotray.tune.messages import Pointer


class SpotResultGrid(ResultGrid):
    """Ray Tune's `ResultGrid`, whose checkpoints are those that the training wrote.

    Tune keeps a pointer for each of them; here ``result.checkpoint`` is what it points to,
    to be read with `torch.distributed.checkpoint`.
    """

    def _trial_to_result(self, trial: Any) -> Result:
        result = super()._trial_to_result(trial)
        result.checkpoint = durable(result.checkpoint)
        result.best_checkpoints = [
            (found, metrics)
            for checkpoint, metrics in result.best_checkpoints or []
            if (found := durable(checkpoint)) is not None
        ]
        return result


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
