"""What launches have taught, on the head's disk: one line of JSON per fact, only ever appended.

Ray's monitor and whoever watches for preemptions write to it at the same time, and it
outlives both. What is older than `HORIZON_S` is dropped when the file has grown long.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import logging
import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spotray.clock import Clock, SystemClock
from spotray.errors import ConfigError
from spotray.folders import write_whole
from spotray.market.offer import Market
from spotray.policy.view import (
    Fact,
    Launched,
    OnDemandFirst,
    Preempted,
    Progressed,
    Refusal,
    Refused,
    SpotOnly,
)

log = logging.getLogger(__name__)

HORIZON_S = 2 * 86400.0  # no rule looks back further
MAX_BYTES = 128 * 1024  # about 800 facts; the file is shortened then

_KINDS: dict[str, type[Fact]] = {
    cls.__name__: cls for cls in (Launched, Refused, Preempted, Progressed, SpotOnly, OnDemandFirst)
}


class LaunchMemory:
    """The facts of one cluster's launches, shared by all who open the same path.

    A disk that fails loses nothing while the process lives: what cannot be written is
    kept and tried again with the next fact. Safe from any thread.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """Nothing is opened yet. ``path``: a local file; ``~`` is the user's home."""
        self.path = Path(path).expanduser()
        self._clock = clock or SystemClock()
        self._max_bytes = max_bytes
        self._unsaved: list[Fact] = []
        self._seen: tuple[int, int, int] | None = None  # of the file that `_facts` came from
        self._facts: tuple[Fact, ...] = ()
        self._damaged = 0
        self._lock = threading.Lock()

    def add(self, fact: Fact) -> None:
        """Remember a fact; it is on the disk on return, or the log says why not."""
        with self._lock:
            self._unsaved.append(fact)
            try:
                self._append("".join(encode(one) + "\n" for one in self._unsaved).encode())
            except OSError as exc:
                log.warning(
                    "%s: %d facts are kept in memory only: %s", self.path, len(self._unsaved), exc
                )
            else:
                self._unsaved.clear()

    def facts(self) -> tuple[Fact, ...]:
        """All that is remembered, by time. A damaged line is passed over, with a warning."""
        with self._lock:
            try:
                self._read()
            except FileNotFoundError:
                self._facts, self._seen = (), None
            except OSError as exc:
                log.warning("%s cannot be read, what was read before stands: %s", self.path, exc)
            known = [*self._facts, *self._unsaved]
        return tuple(sorted(known, key=lambda fact: fact.at_s))

    def preempted(self, market: Market, name: str, *, lived_s: float | None = None) -> None:
        """Remember that the cloud took a node; several may tell of the same ``name``."""
        self.add(Preempted(at_s=self._clock.now_s(), market=market, name=name, lived_s=lived_s))

    def spot_only(self, until_s: float) -> None:
        """Forbid on-demand launches until then; a time that is over allows them again."""
        self.add(SpotOnly(at_s=self._clock.now_s(), until_s=until_s))

    def _read(self) -> None:
        with open(self.path, "rb") as file:
            stat = os.fstat(file.fileno())
            state = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if state == self._seen:
                return
            data = file.read()
        self._facts, damaged = _decoded(data)
        self._seen = state
        if damaged > self._damaged:
            log.warning("%s: %d damaged lines are passed over", self.path, damaged)
        self._damaged = damaged

    def _append(self, lines: bytes) -> None:
        with self._locked():
            fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                size = os.fstat(fd).st_size
                if size and os.pread(fd, 1, size - 1) != b"\n":
                    lines = b"\n" + lines  # a writer died in the middle of its line
                try:
                    written = os.write(fd, lines)
                    if written < len(lines):
                        raise OSError(f"only {written} of {len(lines)} bytes were taken")
                    os.fsync(fd)
                except OSError:
                    os.ftruncate(fd, size)  # all of it is given again
                    raise
            finally:
                os.close(fd)
            if size + len(lines) > self._max_bytes:
                self._shorten()

    def _shorten(self) -> None:
        """Drop what is too old to matter; the caller holds the file's lock."""
        oldest_s = self._clock.now_s() - HORIZON_S
        facts, _ = _decoded(self.path.read_bytes())
        kept = [fact for fact in facts if fact.at_s >= oldest_s]
        lines = [encode(fact) + "\n" for fact in kept]
        # A burst that fills the file within the horizon must not make each fact rewrite it.
        while sum(map(len, lines)) > self._max_bytes // 2:
            lines = lines[len(lines) // 4 + 1 :]
        write_whole(self.path, "".join(lines))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time; in a file of its own, since the facts' file is replaced."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.path.with_name(f".{self.path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def encode(fact: Fact) -> str:
    """One line of JSON, without the line's end."""
    fields = {f.name: getattr(fact, f.name) for f in dataclasses.fields(fact)}
    if "market" in fields:
        fields["market"] = str(fields["market"])
    if "kind" in fields:
        fields["refusal"] = str(fields.pop("kind"))  # the line's own kind is the fact's
    return json.dumps({"kind": type(fact).__name__, **fields})


def decode(line: str) -> Fact:
    """The fact of one line.

    Raises:
        ValueError: it is none.
    """
    raw = json.loads(line)
    if not isinstance(raw, dict) or raw.get("kind") not in _KINDS:
        raise ValueError(f"not a fact: {line[:80]!r}")
    cls = _KINDS[raw["kind"]]
    known = {f.name for f in dataclasses.fields(cls)}
    fields: dict[str, Any] = {name: value for name, value in raw.items() if name in known}
    for name in ("at_s", "until_s", "lived_s", "retry_after_s"):
        if fields.get(name) is not None:
            fields[name] = float(fields[name])
            if not math.isfinite(fields[name]):
                raise ValueError(f"{name} is {fields[name]}")
    try:
        if "market" in fields:
            fields["market"] = Market.parse(fields["market"])
        if "names" in fields:
            fields["names"] = tuple(str(name) for name in fields["names"])
        if cls is Refused:
            fields["kind"] = Refusal(raw["refusal"])
        return cls(**fields)
    except (AttributeError, ConfigError, KeyError, TypeError) as exc:
        raise ValueError(f"not a {raw['kind']}: {line[:80]!r}: {exc}") from exc


def _decoded(data: bytes) -> tuple[tuple[Fact, ...], int]:
    facts, damaged = [], 0
    for line in data.split(b"\n"):
        if not line.strip():
            continue
        try:
            facts.append(decode(line.decode()))
        except (ValueError, RecursionError):
            damaged += 1
    return tuple(facts), damaged
