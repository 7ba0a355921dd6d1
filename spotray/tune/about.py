"""What a sweep says of itself in its folder, and how its training function is known again."""

from __future__ import annotations

import fnmatch
import functools
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import ray.cloudpickle

from spotray.errors import ConfigError
from spotray.storage import Store

FOLDER = "spotray"  # inside of the sweep's folder, beside Ray Tune's own files
ABOUT = "sweep.json"  # what a sweep is, for everybody
SETTINGS = "sweep.pkl"  # what `SpotTuner.restore` needs of it
_TUNER, _STATE = "tuner.pkl", "experiment_state-*.json"  # Ray Tune's own


def describe(own: Store, about: Mapping[str, Any], settings: Mapping[str, Any] | None) -> None:
    """Write down what a sweep is, and what it was begun with; None: that is there already."""
    own.write(ABOUT, json.dumps(about).encode())
    if settings is not None:
        own.write(SETTINGS, ray.cloudpickle.dumps(settings))


def is_sweep(home: Store) -> bool:
    """Whether a folder is a sweep's."""
    return home.exists(f"{FOLDER}/{ABOUT}") and home.exists(_TUNER)


def has_state(home: Store) -> bool:
    """Whether Ray Tune has written down how far the sweep in a folder is."""
    return any(fnmatch.fnmatch(name, _STATE) for name, _ in home.list(recursive=False))


def about_of(home: Store) -> dict[str, Any] | None:
    """What a sweep wrote down of itself; None if there is none."""
    try:
        about = json.loads(home.child(FOLDER).read(ABOUT))
    except FileNotFoundError:
        return None
    except ValueError as exc:
        raise ConfigError(f"{home.url}/{FOLDER}/{ABOUT} is damaged: {exc}") from exc
    return about if isinstance(about, dict) and "loop" in about else None


def about_of_loop(home: Store, loop: Callable[..., Any]) -> dict[str, Any]:
    """What the sweep wrote down of itself that is to go on with a training function.

    Raises:
        ConfigError: the folder is no sweep's, or its training loop is another, or it ended
            too early.
    """
    about = about_of(home)
    if about is None or not home.exists(_TUNER):
        raise ConfigError(
            f"{home.url} holds no sweep (looked for {FOLDER}/{ABOUT} and {_TUNER}): give the "
            "folder storage_path/name of one that SpotTuner.fit() began"
        )
    if (name := loop_name(loop)) != about["loop"]:
        raise ConfigError(
            f"the sweep in {home.url} trains {about['loop']!r} and not {name!r}: give that "
            "training function, or begin another sweep"
        )
    if not has_state(home):
        raise ConfigError(
            f"the sweep in {home.url} ended before Ray Tune wrote down how far it was: remove "
            "the folder and begin it anew"
        )
    return about


def settings_of(home: Store) -> dict[str, Any]:
    """What a sweep in a folder was begun with.

    Raises:
        ConfigError: nobody can say; the message says why.
    """
    own = home.child(FOLDER)
    try:
        settings: dict[str, Any] = ray.cloudpickle.loads(own.read(SETTINGS))
        return settings
    except FileNotFoundError as exc:
        raise ConfigError(f"{own.url}/{SETTINGS} is not there: restore it") from exc
    except ImportError as exc:
        raise ConfigError(
            f"the settings of the sweep in {home.url} are of a module that is not here: {exc}: "
            "go on with it where that can be imported"
        ) from exc
    except Exception as exc:  # whatever the damage makes of it
        raise ConfigError(f"{own.url}/{SETTINGS} is damaged ({exc!r}): restore it") from exc


def loop_name(loop: Callable[..., Any]) -> str:
    """By which a training function is known again, also as part of another module."""
    while isinstance(loop, functools.partial):
        loop = loop.func
    return str(getattr(loop, "__qualname__", type(loop).__qualname__))


def class_name(loop: Callable[..., Any]) -> str:
    return re.sub(r"\W+", "_", loop_name(loop).rpartition(".")[2]).strip("_") or "train_loop"
