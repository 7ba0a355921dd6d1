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
    restored.are_there({trial: True for trial, _ in [*first, *later[:1]]})
    assert given(restored) == later[1:]
    assert restored.is_finished()


def test_a_trial_that_only_the_search_was_written_down_with_is_given_again(
    tmp_path: Path,
) -> None:
    search = prepared(Variants(random_state=5), tmp_path)
    everything = given(search)
    search.save_to_dir(str(tmp_path), "then")
    restored = prepared(Variants(random_state=7), tmp_path)
    restored.restore_from_dir(str(tmp_path))
    restored.are_there({trial: False for trial, _ in everything[:2]})
    assert given(restored) == everything[2:]


def test_trials_that_ended_unheard_hold_no_place_of_those_to_come(tmp_path: Path) -> None:
    search = prepared(Variants(random_state=5, max_concurrent=2), tmp_path)
    running = [search.next_trial().trial_id for _ in range(2)]
    search.save_to_dir(str(tmp_path), "then")
    restored = prepared(Variants(random_state=5, max_concurrent=2), tmp_path)
    restored.restore_from_dir(str(tmp_path))
    restored.are_there({running[0]: True, running[1]: False})
    third = restored.next_trial()
    assert third.trial_id not in running
    assert restored.next_trial() is None, "more run than may"
    restored.on_trial_complete(running[1])
    assert restored.next_trial().trial_id not in [*running, third.trial_id]
