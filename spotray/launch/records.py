"""What is known of launches on this machine: a file for each, found again by any shell.

``~/.spotray/launches/NAME.json`` is a launch, ``~/.spotray/clusters/NAME.yaml`` the spec
that a cluster was brought up with. Values of environment variables are kept in neither.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from spotray.errors import ConfigError
from spotray.folders import write_whole

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
RUNNING = ("starting", "pending", "running")  # states in which a job may still do something


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One launch: a job on a cluster, and how it stood when it was last looked at."""

    name: str
    cluster_name: str
    cluster_file: str  # the user's own; the copy of what was launched is `Records.spec_file`
    submission_id: str  # Ray's name of the job
    command: tuple[str, ...]  # script and arguments
    workdir: str
    created_at_s: float  # Unix seconds
    state: str = "starting"  # then pending, running, succeeded, failed, stopped or lost
    exit_code: int | None = None
    message: str = ""  # why, in Ray's words
    ended_at_s: float | None = None
    down: bool = False  # whether the cluster goes down when the job ends
    down_at_s: float | None = None
    deadline_s: float | None = None  # Unix seconds
    max_cost_usd: float | None = None
    env_names: tuple[str, ...] = ()
    wandb_run_id: str = ""
    restarts: int = 0  # how often the launch of this name was submitted again

    @property
    def is_over(self) -> bool:
        """Whether the job can do nothing any more."""
        return self.state not in RUNNING


class Records:
    """The launches and clusters that this user's shells know of."""

    def __init__(self, home: Path | None = None) -> None:
        """``home``: where they are kept; default ``~/.spotray``."""
        home = home or Path.home() / ".spotray"
        self._launches, self._clusters = home / "launches", home / "clusters"

    def save(self, launch: Launch) -> None:
        """Write a launch over what was there before, in one step."""
        text = json.dumps(dataclasses.asdict(launch), indent=2) + "\n"
        write_whole(self._launches / f"{launch.name}.json", text)

    def get(self, name: str) -> Launch | None:
        """The launch of that name, or None.

        Raises:
            ConfigError: its file is damaged.
        """
        path = self._launches / f"{name}.json"
        if not NAME.fullmatch(name) or not path.is_file():
            return None
        return _launch(path)

    def need(self, name: str) -> Launch:
        """The launch of that name.

        Raises:
            ConfigError: there is none; those that there are, are named.
        """
        if (found := self.get(name)) is not None:
            return found
        known = [one.name for one in self.all()[-5:]]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else "`spotray jobs` lists them"
        raise ConfigError(f"there is no launch {name!r} here: {hint}")

    def all(self) -> list[Launch]:
        """All launches, the oldest first; damaged files are left out."""
        found = []
        for path in self._launches.glob("*.json"):
            try:
                found.append(_launch(path))
            except ConfigError:
                continue  # `get` tells of it to who asks for this one
        return sorted(found, key=lambda one: (one.created_at_s, one.name))

    def free_name(self, stem: str) -> str:
        """A name that no launch has: the stem and a number."""
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:50] or "job"
        number = 1
        while (self._launches / f"{stem}-{number}.json").exists():
            number += 1
        return f"{stem}-{number}"

    def spec_file(self, cluster_name: str) -> Path:
        """Where the spec of a cluster is kept."""
        return self._clusters / f"{cluster_name}.yaml"

    def save_spec(self, cluster_name: str, text: str) -> None:
        """Keep the spec that a cluster is brought up with."""
        write_whole(self.spec_file(cluster_name), text)

    def spec(self, cluster_name: str) -> str | None:
        """The spec that a cluster was brought up with, or None if it was not from here."""
        path = self.spec_file(cluster_name)
        return path.read_text(encoding="utf-8") if path.is_file() else None


def spec_diff(before: str, now: str) -> list[str]:
    """How two specs differ in what they say, not in how they say it; empty if they do not."""
    old, new = (yaml.safe_load(text) for text in (before, now))
    if old == new:
        return []
    before, now = (yaml.safe_dump(one, sort_keys=True) for one in (old, new))
    lines = difflib.unified_diff(
        before.splitlines(), now.splitlines(), fromfile="running", tofile="yours", lineterm="", n=1
    )
    return list(lines)


def _launch(path: Path) -> Launch:
    try:
        raw: Any = json.loads(path.read_text(encoding="utf-8"))
        known = {one.name for one in dataclasses.fields(Launch)}
        if not isinstance(raw, Mapping):
            raise TypeError("no map")
        # A newer version may have written more.
        given = {key: value for key, value in raw.items() if key in known}
        lists = {key: tuple(value) for key, value in given.items() if isinstance(value, list)}
        return Launch(**{**given, **lists})
    except (OSError, ValueError, TypeError) as exc:
        raise ConfigError(f"{path} is damaged ({exc}): remove it") from exc
