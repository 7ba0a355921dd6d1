"""How the end of a trial's job is told to Tune. No cluster."""

from __future__ import annotations

import pickle

import pytest
from ray.exceptions import RayTaskError
from ray.train.v2.api.exceptions import WorkerGroupError

from spotray.errors import ConfigError, NotLive
from spotray.train.live import GaveWay
from spotray.tune.lives import _no_live, _own

TRACE = "Traceback: train.py, line 7, in train_loop"


class OwnError(Exception):
    """Of the user's own code: a process without it cannot read it."""


def failed(cause: Exception) -> Exception:
    error = RayTaskError("run", TRACE, cause)
    return _own(WorkerGroupError(str(error), {0: error}))


def test_an_error_of_pythons_own_keeps_its_class_and_its_place() -> None:
    error = failed(ZeroDivisionError("a bug of the user's"))
    assert isinstance(error, ZeroDivisionError)
    assert str(error).startswith("a bug of the user's")
    assert TRACE in str(error)


@pytest.mark.parametrize(
    "cause", [OwnError("a bug"), UnicodeDecodeError("utf-8", b"x", 0, 1, "a bug")]
)
def test_any_other_error_is_told_in_words(cause: Exception) -> None:
    error = failed(cause)
    assert type(error) is RuntimeError
    assert "a bug" in str(error)
    assert TRACE in str(error)


def test_what_tune_hears_can_be_read_in_any_process() -> None:
    again = pickle.loads(pickle.dumps(failed(OwnError("a bug"))))
    assert "a bug" in str(again)


def test_a_loop_that_live_recovery_cannot_serve_is_the_users_to_change() -> None:
    error = _no_live(
        GaveWay("the model is sharded: no worker holds all of its state", is_unsupported=True)
    )
    assert isinstance(error, NotLive)
    assert isinstance(error, ConfigError)
    assert "the model is sharded" in str(error)
    assert "\n" not in str(error)


def test_a_job_that_never_comes_to_a_step_is_no_matter_of_settings() -> None:
    error = _no_live(GaveWay("5 generations in a row did not a single step", is_unsupported=False))
    assert not isinstance(error, ConfigError)
