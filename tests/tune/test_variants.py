"""Tune's own search after a restore from files of different ages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.experiment import Experiment
from ray.tune.search import BasicVariantGenerator

from spotray.tune.variants import Variants


def prepared(search: BasicVariantGenerator, storage: Path) -> BasicVariantGenerator:
    def train(config: dict[str, Any]) -> None:
        """Never runs."""

    config = {"lr": tune.uniform(0.0, 1.0), "size": tune.grid_search([1, 2])}
    experiment = Experiment("x", train, config=config, num_samples=3, storage_path=str(storage))
    search.add_configurations(experiment)
    return search


def given(search: BasicVariantGenerator, count: int = 99) -> list[tuple[str, Any]]:
    found = []
    while len(found) < count and (trial := search.next_trial()) is not None:
        found.append((trial.trial_id, trial.config))
        search.on_trial_complete(trial.trial_id)
    return found


def test_it_gives_what_rays_own_gives(tmp_path: Path) -> None:
    theirs = prepared(BasicVariantGenerator(random_state=5), tmp_path)
    ours = Variants.of(BasicVariantGenerator(random_state=5))
    ours._uuid_prefix = theirs._uuid_prefix  # of the trials' ids, drawn anew by each
    prepared(ours, tmp_path)
    assert given(ours) == given(theirs)
    assert ours.is_finished()


def test_trials_that_are_there_are_not_given_again(tmp_path: Path) -> None:
    search = prepared(Variants(random_state=5), tmp_path)
    first = given(search, 2)
    search.save_to_dir(str(tmp_path), "then")
    later = given(search)
    restored = prepared(Variants(random_state=5), tmp_path)
    restored.restore_from_dir(str(tmp_path))
    # The trials were written down once more before the driver died, the search was not.
    restored.are_there(trial for trial, _ in [*first, *later[:1]])
    assert given(restored) == later[1:]
    assert restored.is_finished()
