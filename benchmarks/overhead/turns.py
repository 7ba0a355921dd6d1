"""Several jobs that are all there, of which only one trains at a time.

The conductor gives each side its turn: so many steps. The workers of the others wait at a
socket meanwhile, so that whatever the machine does to a side's seconds, its neighbours in
time are the other sides' turns.
"""

from __future__ import annotations

import itertools
import json
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

_LOOK_S = 1.0  # how often somebody else is asked whether the jobs live


class Turns:
    """A worker's end: call `step` at the top of every step."""

    def __init__(self, port: int, *, side: str, rank: int) -> None:
        """``port`` of the conductor, on this machine."""
        self._line = socket.create_connection(("127.0.0.1", port))
        self._answers = self._line.makefile("rb")
        self._left = 0
        self._ends: list[float] = []
        self._next_word: Any = {"side": side, "rank": rank}

    def step(self) -> bool:
        """Wait for the side's turn if it is not; False when all turns are over."""
        self._ends.append(time.perf_counter())
        if self._left == 0:
            self._line.sendall(json.dumps(self._next_word).encode() + b"\n")
            self._left = json.loads(self._answers.readline() or b"0")
            if not self._left:
                self.close()
                return False
            self._ends = self._next_word = [time.perf_counter()]
        self._left -= 1
        return True

    def close(self) -> None:
        """Leave; the conductor hears it."""
        self._answers.close()
        self._line.close()


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What one side did in one turn."""

    seconds: float  # of the slowest worker
    steps_s: tuple[float, ...]  # each step of the first worker


class Broken(Exception):
    """A job ended, or did not come to its turn in time."""


class Conductor:
    """Waits for all workers of all sides, then gives turns."""

    def __init__(self, sides: Sequence[str], workers: int, *, why_ended: Callable[[], str]) -> None:
        """``why_ended`` is asked while nothing is heard; an answer that is not empty ends it."""
        self._door = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._door.settimeout(_LOOK_S)
        self.port: int = self._door.getsockname()[1]
        self._workers, self._why_ended = workers, why_ended
        self._lines: dict[str, dict[int, socket.socket]] = {side: {} for side in sides}
        self._readers: dict[socket.socket, Any] = {}

    def gather(self, timeout_s: float) -> None:
        """Return when every worker of every side is at its first step.

        Raises:
            Broken: a job ended, or some are missing after ``timeout_s`` seconds.
        """
        until_s = time.monotonic() + timeout_s
        while any(len(lines) < self._workers for lines in self._lines.values()):
            there = ", ".join(f"{side} {len(lines)}" for side, lines in self._lines.items())
            self._check(until_s, f"not all workers came ({there} of {self._workers})")
            try:
                line, _ = self._door.accept()
            except TimeoutError:
                continue
            line.settimeout(None)
            self._readers[line] = line.makefile("rb")
            hello = json.loads(self._readers[line].readline())
            self._lines[hello["side"]][hello["rank"]] = line

    def turn(self, side: str, steps: int, *, timeout_s: float) -> Turn:
        """Let one side do so many steps.

        Raises:
            Broken: its job ended, or the steps took longer than ``timeout_s`` seconds.
        """
        for line in self._lines[side].values():
            line.sendall(b"%d\n" % steps)
        ends = self._hear(side, time.monotonic() + timeout_s)
        return Turn(
            seconds=max(times[-1] - times[0] for times in ends.values()),
            steps_s=tuple(later - earlier for earlier, later in itertools.pairwise(ends[0])),
        )

    def close(self) -> None:
        """Tell all workers that it is over: they hear nothing more."""
        for line, reader in self._readers.items():
            reader.close()
            line.close()
        self._door.close()

    def _hear(self, side: str, until_s: float) -> dict[int, list[float]]:
        """What each worker of a side says next, by rank."""
        heard: dict[int, list[float]] = {}
        with selectors.DefaultSelector() as selector:
            for rank, line in self._lines[side].items():
                selector.register(line, selectors.EVENT_READ, rank)
            while len(heard) < self._workers:
                self._check(until_s, f"{side} did not end its turn")
                for key, _ in selector.select(_LOOK_S):
                    line = key.fileobj
                    assert isinstance(line, socket.socket)
                    # A worker says one line and waits: nothing of the next is read ahead.
                    said = self._readers[line].readline()
                    if not said:
                        raise Broken(f"{side} lost a worker. {self._why_ended()}".strip())
                    heard[key.data] = json.loads(said)
                    selector.unregister(line)
        return heard

    def _check(self, until_s: float, what: str) -> None:
        if why := self._why_ended():
            raise Broken(why)
        if time.monotonic() > until_s:
            raise Broken(f"{what} in time")
