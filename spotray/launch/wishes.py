"""What a user wishes of a launch, from words: durations, dollars, environment variables."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime

from spotray.errors import ConfigError

_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "min": 60.0, "s": 1.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:min|[dhms]))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(min|[dhms])")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

DEADLINE = "SPOTRAY_DEADLINE_S"  # Unix seconds; `SpotConfig.deadline_s` reads it
MAX_COST = "SPOTRAY_MAX_COST_USD"  # `SpotConfig.max_cost_usd` reads it
LAUNCH = "SPOTRAY_LAUNCH"  # the launch's name
_OURS = {DEADLINE: "--deadline", MAX_COST: "--max-cost", LAUNCH: "--name"}


def duration_s(text: str) -> float:
    """Seconds of a duration.

    Raises:
        ConfigError: it is none.

    >>> duration_s("1h30m"), duration_s("2d"), duration_s("45s")
    (5400.0, 172800.0, 45.0)
    """
    if not _DURATION.fullmatch(text):
        raise ConfigError(f"{text!r} is no duration: write 6h, 90m or 1h30m")
    seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    if seconds <= 0:
        raise ConfigError(f"{text!r} is no time at all: write 6h, 90m or 1h30m")
    return seconds


def deadline_s(text: str, *, now_s: float) -> float:
    """When a launch must be over, Unix seconds: after a duration, or at a moment.

    Raises:
        ConfigError: it is neither, or it is over already.
    """
    if _DURATION.fullmatch(text):
        return now_s + duration_s(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError as exc:
        raise ConfigError(
            f"deadline {text!r}: write a duration (6h) or a time (2026-01-31T18:00+01:00)"
        ) from exc
    if at.timestamp() <= now_s:  # without an offset it is this machine's local time
        raise ConfigError(f"deadline {text!r} is over already")
    return at.timestamp()


def dollars(text: str) -> float:
    """An amount above zero.

    Raises:
        ConfigError: it is none.

    >>> dollars("$20")
    20.0
    """
    try:
        amount = float(text.removeprefix("$"))
    except ValueError as exc:
        raise ConfigError(f"{text!r} is no amount in dollars: write 20") from exc
    if not 0 < amount < math.inf:
        raise ConfigError(f"{text!r} is no amount above 0: write 20")
    return amount


def environment(
    given: Sequence[str], *, files: Mapping[str, str], shell: Mapping[str, str]
) -> dict[str, str]:
    """The variables that a job gets.

    Args:
        given: ``K=V``, or ``K`` for the value that it has in ``shell``; they win over files.
        files: documents of lines ``K=V``, by name; quotes, comments and ``export`` are known.
        shell: this process's own environment.

    Raises:
        ConfigError: something is no variable, is not set here, or has an option of its own.
    """
    found: dict[str, str] = {}
    for name, text in files.items():
        for number, line in enumerate(text.splitlines(), 1):
            where = f"{name}, line {number}"
            try:
                words = shlex.split(line, comments=True)
            except ValueError as exc:
                raise ConfigError(f"{where}: {exc}") from exc
            words = words[1:] if words[:1] == ["export"] else words
            if len(words) > 1:
                raise ConfigError(f"{where}: more than K=V: put a value with spaces in quotes")
            found |= dict(_variable(word, shell, where) for word in words)
    found |= dict(_variable(one, shell, "--env") for one in given)
    return found


def _variable(word: str, shell: Mapping[str, str], where: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{where}: {name!r} is no name of a variable: write K=V")
    if name in _OURS:
        raise ConfigError(f"{where}: {name} is set by {_OURS[name]}: use that")
    if equals:
        return name, value
    if name not in shell:
        raise ConfigError(f"{where}: {name} is not set here: write {name}=VALUE")
    return name, shell[name]
