"""The controller's state on the head's disk, so that a new start goes on with what was begun."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from pathlib import Path
from typing import Any

from spotray.controller.view import Hold, Rest, State, Swap
from spotray.folders import write_whole

log = logging.getLogger(__name__)


class StateFile:
    """Reads and writes a `State`. A disk that fails is logged and costs no decision."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Nothing is opened yet."""
        self.path = Path(path).expanduser()
        self._written: State | None = None

    def load(self) -> State:
        """What was saved last; a fresh state if nothing was, or it is damaged."""
        try:
            return decode(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return State()
        except (OSError, ValueError) as exc:
            log.warning("%s is left out, beginning anew: %s", self.path, exc)
            return State()

    def save(self, state: State) -> None:
        """Write it, if it is news."""
        if state == self._written:
            return
        try:
            write_whole(self.path, encode(state))
        except OSError as exc:
            log.warning("%s: the state is kept in memory only: %s", self.path, exc)
            return
        self._written = state


def encode(state: State) -> str:
    """As one line of JSON."""
    raw = dataclasses.asdict(state)
    if raw["swap"] is not None:
        raw["swap"]["before"] = sorted(raw["swap"]["before"])
    return json.dumps(raw)


def decode(text: str) -> State:
    """The state of a line.

    Raises:
        ValueError: it is none.
    """
    try:
        raw: dict[str, Any] = json.loads(text)
        swap, hold = raw.get("swap"), raw.get("hold")
        return State(
            swap=Swap(**{**swap, "before": frozenset(swap["before"])}) if swap else None,
            rests={name: Rest(**one) for name, one in (raw.get("rests") or {}).items()},
            hold=Hold(**hold) if hold else None,
            hurry_until_s=float(raw.get("hurry_until_s", 0.0)),
        )
    except (AttributeError, KeyError, TypeError) as exc:
        raise ValueError(f"no state of the controller: {exc!r}") from exc
