"""What a sweep says of itself in its folder, and how its training function is known again."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from typing import Any

from spotray.errors import ConfigError
from spotray.storage import Store

FOLDER = "spotray"  # inside of the sweep's folder, beside Ray Tune's own files
ABOUT = "sweep.json"  # what a sweep is, for everybody
SETTINGS = "sweep.pkl"  # what `SpotTuner.restore` needs of it


def about_of(home: Store) -> dict[str, Any] | None:
    """What a sweep wrote down of itself; None if there is none."""
    try:
        about = json.loads(home.child(FOLDER).read(ABOUT))
    except FileNotFoundError:
        return None
    except ValueError as exc:
        raise ConfigError(f"{home.url}/{FOLDER}/{ABOUT} is damaged: {exc}") from exc
    return about if isinstance(about, dict) and "loop" in about else None


def loop_name(loop: Callable[..., Any]) -> str:
    """By which a training function is known again, also as part of another module."""
    while isinstance(loop, functools.partial):
        loop = loop.func
    return str(getattr(loop, "__qualname__", type(loop).__qualname__))


def class_name(loop: Callable[..., Any]) -> str:
    return re.sub(r"\W+", "_", loop_name(loop).rpartition(".")[2]).strip("_") or "train_loop"
