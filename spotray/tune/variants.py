"""Ray Tune's own search, grid and random, that gives each trial once also after a restore.

Tune writes down its trials and its search in files of their own. A driver that is killed while
these go to a bucket leaves newer ones of the first kind beside older ones of the second: the
restored search would give trials again that are there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ray.tune.search import BasicVariantGenerator


class Variants(BasicVariantGenerator):
    """`BasicVariantGenerator` that leaves out trials which are there."""

    _there: frozenset[str] = frozenset()

    @classmethod
    def of(cls, search: BasicVariantGenerator) -> Variants:
        """One with the settings of another, from which no trial was taken yet."""
        made = cls.__new__(cls)
        made.__dict__.update(search.__dict__)
        return made

    def are_there(self, trials: Iterable[str]) -> None:
        """Trials that need not be given any more, by their ids."""
        self._there = frozenset(trials)

    def next_trial(self) -> Any:
        give: Any = super().next_trial  # without types in Ray
        trial = give()
        while trial is not None and trial.trial_id in self._there:
            trial = give()
        return trial
