"""Ray Tune's own search, grid and random, that gives each trial once also after a restore.

Tune writes down its trials and its search in files of their own. A driver that is killed while
these go to a bucket leaves newer ones of one kind beside older ones of the other: the restored
search would give trials again that are there, or leave out some that are not.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Mapping
from typing import Any

import ray.cloudpickle
from ray.tune.search import BasicVariantGenerator


class Variants(BasicVariantGenerator):
    """`BasicVariantGenerator` that gives exactly the trials which are not there."""

    _there: Mapping[str, bool] = {}
    _at_first: bytes = b""  # its generators, before they gave anything; empty: of Ray alone

    @classmethod
    def of(cls, search: BasicVariantGenerator) -> Variants:
        """One with the settings of another, from which no trial was taken yet."""
        made = cls.__new__(cls)
        made.__dict__.update(search.__dict__)
        return made

    def add_configurations(self, experiments: Any) -> None:
        add: Any = super().add_configurations  # without types in Ray
        add(experiments)
        if not any(one.lazy_eval for one in self._iterators):  # else Ray keeps no state either
            self._at_first = ray.cloudpickle.dumps(self._iterators)

    def are_there(self, trials: Mapping[str, bool]) -> None:
        """Trials that need not be given any more.

        Args:
            trials: By their ids; whether each has ended.
        """
        self._there = dict(trials)
        # Of one that ended it might never hear, and count it as running for ever.
        self._live_trials = {trial for trial, has_ended in trials.items() if not has_ended}
        if self._at_first:
            self._iterators = pickle.loads(self._at_first)
            generator: Any = itertools.chain(*self._iterators)  # as Ray has it, whatever it says
            self._trial_generator = generator
            self._trial_iter = None
            self._finished = False

    def next_trial(self) -> Any:
        give: Any = super().next_trial  # without types in Ray
        trial = give()
        while trial is not None and trial.trial_id in self._there:
            if self._there[trial.trial_id]:
                self._live_trials.discard(trial.trial_id)
            trial = give()
        return trial
