"""Keeps a scheduler's state beside Tune's own, which forgets it when its driver dies.

A scheduler knows trials as objects; written down, they are names.
"""

from __future__ import annotations

import io
import logging
import pickle
from collections.abc import Mapping
from typing import Any

import ray.cloudpickle
from ray.tune.experiment import Trial

from spotray.train.ray_internals import FutureSave

log = logging.getLogger(__name__)


def written_down(scheduler: Any) -> bytes:
    """A scheduler's state, for `take_up` in another process."""
    stream = io.BytesIO()
    pickler: Any = _Pickler
    pickler(stream).dump(scheduler.__dict__)
    return stream.getvalue()


def take_up(scheduler: Any, state: bytes, trials: Mapping[str, Trial]) -> None:
    """Give a scheduler a state that was written down.

    Args:
        scheduler: One of the same kind, with the same settings.
        state: What `written_down` made.
        trials: By id; all that were there then.

    Raises:
        KeyError: one of them is not there.
    """
    scheduler.__dict__.update(_Unpickler(io.BytesIO(state), trials).load())


class _Pickler(ray.cloudpickle.CloudPickler):
    def persistent_id(self, obj: Any) -> tuple[str, str] | None:
        if isinstance(obj, Trial):
            return ("trial", str(obj.trial_id))
        if isinstance(obj, FutureSave):
            return ("save", "")  # under way: its process is gone by then
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, trials: Mapping[str, Trial]) -> None:
        super().__init__(stream)
        self._trials = trials

    def persistent_load(self, pid: tuple[str, str]) -> Any:
        kind, trial = pid
        return self._trials[trial] if kind == "trial" else None
