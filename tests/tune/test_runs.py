"""Folders of runs: which one a trial goes on in, and what it told before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spotray.errors import CheckpointError, ConfigError
from spotray.events import CheckpointCommitted, Event, Reported, TrainingDone
from spotray.ledger.journal import JournalWriter
from spotray.storage import Store
from spotray.tune.messages import Pointer, digest_of
from spotray.tune.runs import Told, open_run, told_by

TRIAL = "a1b2c_00000"


@pytest.fixture
def home(tmp_path: Path) -> Store:
    return Store.at(tmp_path)


def reported(step: int, at_s: float = 0.0, **metrics: float) -> Reported:
    return Reported(at_s=at_s, step=step, epoch=0, metrics={"step": step, **metrics})


def committed(step: int, path: str) -> CheckpointCommitted:
    return CheckpointCommitted(
        at_s=1.0, step=step, path=path, seconds=1.0, blocked_s=0.1, size_bytes=1
    )


def donor(**changes: object) -> Pointer:
    fields = {"run": "a1b2c_00001", "url": "/ckpt", "step": 40, "iteration": 4, "config": "x"}
    return Pointer(**{**fields, **changes})  # type: ignore[arg-type]


def test_a_new_trial_begins_in_a_run_of_its_name(home: Store) -> None:
    run = open_run(home, TRIAL, {"lr": 0.1}, None)
    assert (run.name, run.base, run.begins_from) == (TRIAL, 0, None)
    assert run.url == home.child("trials", TRIAL).url
    again = open_run(home, TRIAL, {"lr": 0.1}, None)
    assert (again.name, again.base) == (TRIAL, 0)


def test_a_clone_begins_from_the_donors_checkpoint_and_goes_on_counting(home: Store) -> None:
    run = open_run(home, TRIAL, {"lr": 0.2}, donor())
    assert run.name.startswith(f"{TRIAL}-")
    assert (run.base, run.begins_from, run.begins_at) == (4, "/ckpt", 40)


def test_nobody_is_cloned_that_has_no_checkpoint(home: Store) -> None:
    with pytest.raises(CheckpointError, match="cannot be cloned from a1b2c_00001"):
        open_run(home, TRIAL, {"lr": 0.2}, donor(url=None))


def test_a_clone_that_goes_on_keeps_where_it_began(home: Store) -> None:
    run = open_run(home, TRIAL, {"lr": 0.2}, donor())
    own = donor(run=run.name, url="/later", step=90, iteration=9, config=digest_of({"lr": 0.2}))
    again = open_run(home, TRIAL, {"lr": 0.2}, own)
    assert (again.name, again.base, again.begins_from) == (run.name, 4, "/ckpt")


def test_a_name_that_came_up_again_with_another_config_gets_a_run_of_its_own(home: Store) -> None:
    # The searcher's state was older than the trial: it made another one of this name.
    first = open_run(home, TRIAL, {"lr": 0.1}, None)
    second = open_run(home, TRIAL, {"lr": 0.7}, None)
    assert second.name != first.name
    assert second.begins_from is None
    assert open_run(home, TRIAL, {"lr": 0.7}, None).name == second.name


def test_a_damaged_folder_is_one_clear_line(home: Store) -> None:
    run = open_run(home, TRIAL, {}, None)
    run.store.write("trial.json", b"{")
    with pytest.raises(ConfigError, match=r"trial\.json is damaged .* restore it"):
        open_run(home, TRIAL, {}, None)
    run.store.write("trial.json", json.dumps({"config": "x"}).encode())
    with pytest.raises(ConfigError, match=r"is no file of a trial"):
        open_run(home, TRIAL, {}, None)


def test_a_step_that_was_reported_twice_counts_once() -> None:
    told = told_by([reported(10, val=1.0), reported(20), reported(10, at_s=5.0, val=1.0)])
    assert [step for step, _ in told.reports] == [10, 20]
    assert told.final is None


def test_a_step_that_was_passed_without_a_report_has_none() -> None:
    told = told_by([reported(10), reported(20), reported(13, at_s=5.0), reported(30, at_s=6.0)])
    assert [step for step, _ in told.reports] == [10, 20, 30]


def test_the_end_is_known_with_its_checkpoint() -> None:
    done = TrainingDone(at_s=2.0, step=20, weights_sha256="ab", metrics={"step": 20})
    facts: list[Event] = [reported(10), committed(10, "/c10"), committed(20, "/c20"), done]
    told = told_by(facts)
    assert (told.final, told.checkpoint) == ({"step": 20}, "/c20")


def test_an_end_without_its_checkpoint_is_no_end() -> None:
    # The worker died between telling and committing: it is to be done once more.
    done = TrainingDone(at_s=2.0, step=20, metrics={"step": 20})
    assert told_by([committed(10, "/c10"), done]).final is None


def test_a_run_reads_its_own_journal(home: Store) -> None:
    run = open_run(home, TRIAL, {}, None)
    assert run.told() == Told()
    with JournalWriter(run.store.child("journal"), writer="w") as journal:
        journal.append(reported(10, val=0.5))
    assert run.told().reports == ((10, {"step": 10, "val": 0.5}),)
