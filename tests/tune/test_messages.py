"""Names of runs, and pointers."""

from __future__ import annotations

import doctest

import numpy as np

from spotray.tune import messages
from spotray.tune.messages import Pointer, digest_of, run_of

TRIAL = "a1b2c_00003"


def pointer(run: str, config: dict[str, object], step: int = 40) -> Pointer:
    return Pointer(run=run, url=f"s3://b/{run}", step=step, iteration=4, config=digest_of(config))


def test_its_examples_hold() -> None:
    assert doctest.testmod(messages).failed == 0


def test_a_pointer_survives_the_way_through_a_dict() -> None:
    one = pointer(TRIAL, {"lr": 0.1})
    assert Pointer.from_dict({**one.to_dict(), "of a later version": 1}) == one


def test_a_trial_goes_on_in_its_own_run_while_its_config_stays() -> None:
    config = {"lr": 0.1, "layers": [1, 2]}
    assert run_of(TRIAL, config, pointer(TRIAL, config)) == TRIAL
    clone = f"{TRIAL}-0a1b2c3d"
    assert run_of(TRIAL, config, pointer(clone, config)) == clone


def test_a_clone_has_a_run_of_its_own_the_same_each_time() -> None:
    donor = pointer("a1b2c_00001", {"lr": 0.3})
    name = run_of(TRIAL, {"lr": 0.36}, donor)
    assert name.startswith(f"{TRIAL}-")
    assert name == run_of(TRIAL, {"lr": 0.36}, donor)
    later = pointer("a1b2c_00001", {"lr": 0.3}, step=80)
    assert len({name, run_of(TRIAL, {"lr": 0.24}, donor), run_of(TRIAL, {"lr": 0.36}, later)}) == 3


def test_another_config_from_the_same_state_is_another_run() -> None:
    own = pointer(TRIAL, {"lr": 0.1})
    assert run_of(TRIAL, {"lr": 0.2}, own) not in (TRIAL, run_of(TRIAL, {"lr": 0.3}, own))


def test_a_digest_does_not_depend_on_what_changes_between_processes() -> None:
    assert digest_of({"x": np.float64(0.1), "n": np.int64(3)}) == digest_of({"x": 0.1, "n": 3})
    assert digest_of({"x": np.array([1, 2])}) == digest_of({"x": [1, 2]})
    assert digest_of({"f": object()}) == digest_of({"f": object()})
    assert digest_of({"f": print}) != digest_of({"f": len})
