"""What a trial's Tune process and the sweep tell each other. Imports nothing heavy."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

RUN_DIR = "run_dir"  # in each result: the folder of the run that it is from
ITERATION = "training_iteration"  # likewise, by Ray Tune's name: the number of the report


@dataclass(frozen=True, kw_only=True)
class Pointer:
    """Where a trial stood: all that Tune keeps of a checkpoint.

    Kept as a plain dict, so that whoever reads Tune's files needs nothing of ours.
    """

    run: str  # folder of the run, below the sweep's folder of runs
    url: str | None  # of the durable checkpoint; None: none was written
    step: int  # optimizer steps in it
    iteration: int  # reports so far, those of the runs that it goes back to included
    config: str  # digest of the hyperparameters that it was trained with

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Pointer:
        return cls(**{name: raw[name] for name in cls.__dataclass_fields__})


@dataclass(frozen=True, kw_only=True)
class Report:
    """Metrics of one step, in their turn."""

    iteration: int
    step: int
    metrics: Mapping[str, Any]
    run_dir: str

    def to_result(self) -> dict[str, Any]:
        """As Tune gets it."""
        return {**self.metrics, ITERATION: self.iteration, RUN_DIR: self.run_dir}


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A run has no more reports: it is through (``why`` is empty) or was stopped.

    ``lacking``: it was stopped before its first one, which would have had these metrics.
    """

    why: str = ""
    lacking: tuple[str, ...] | None = None


def digest_of(config: Mapping[str, Any]) -> str:
    """A short name of hyperparameters, the same in every process.

    >>> digest_of({"lr": 0.1, "layers": [1, 2]}) == digest_of({"layers": (1, 2), "lr": 0.1})
    True
    """
    text = json.dumps(config, sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def run_of(trial_id: str, config: Mapping[str, Any], pointer: Pointer | None) -> str:
    """The run in which a trial goes on from where ``pointer`` says.

    Its own run, as long as the hyperparameters stay; else a clone's, which has the same
    name again when the same clone is asked for again.

    >>> run_of("a1_00003", {"lr": 0.1}, None)
    'a1_00003'
    """
    if pointer is None:
        return trial_id
    digest = digest_of(config)
    is_own = pointer.run == trial_id or pointer.run.startswith(f"{trial_id}-")
    if is_own and pointer.config == digest:
        return pointer.run
    origin = f"{pointer.run}/{pointer.step}/{digest}"
    return f"{trial_id}-{hashlib.sha256(origin.encode()).hexdigest()[:8]}"


def _plain(value: Any) -> Any:
    """Arrays and their numbers as Python's; of anything else its kind: its address may change."""
    if hasattr(value, "tolist"):
        return value.tolist()
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"
