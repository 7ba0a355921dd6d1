"""The lab's end of the pipe to one node's supervisor (`spotray.lab.node`)."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from spotray.errors import LabError
from spotray.lab import processes
from spotray.lab.node import NodeOrder

log = logging.getLogger(__name__)

Report = dict[str, Any]  # what a supervisor says: ``what``, ``at_s`` and more


class Supervised:
    """A running supervisor. Its reports come on a thread of their own.

    The last report is always ``gone``, also where the supervisor itself was killed.
    """

    def __init__(self, order: NodeOrder, hear: Callable[[Report], None]) -> None:
        self._order, self._hear = order, hear
        self._writing = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "spotray.lab.node"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=order.environment,
            start_new_session=True,  # the terminal's Ctrl-C is for the driver alone
        )
        self._reader = threading.Thread(target=self._read, name=f"lab-{order.name}", daemon=True)
        self._send(order.to_json())
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, do: str, **more: str) -> None:
        """Send one command; a supervisor that has ended hears nothing."""
        self._send(json.dumps({"do": do, **more}))

    def join(self, timeout_s: float) -> None:
        """Wait for the supervisor's end.

        Raises:
            LabError: it did not end in ``timeout_s`` seconds; it is killed then.
        """
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired as exc:
            self._process.kill()
            self._process.wait()
            raise LabError(
                f"supervisor {self.pid} of node {self._order.name!r} did not end in "
                f"{timeout_s:g} s and was killed, and what it ran with it"
            ) from exc
        finally:
            if self._reader is not threading.current_thread():
                self._reader.join()

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        with self._writing, suppress(BrokenPipeError, ValueError):  # it has ended, or is ending
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def _read(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        last: Report = {}
        for line in stream:
            last = json.loads(line)
            self._tell_lab(last)
        code = self._process.wait()
        stream.close()
        with self._writing, suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        if last.get("what") != "gone":  # it was killed: what it ran is killed after it
            killed = processes.kill_session(self.pid)
            report = {"what": "gone", "at_s": None, "code": code, "processes": len(killed)}
            self._tell_lab(report)

    def _tell_lab(self, report: Report) -> None:
        try:
            self._hear(report)
        except Exception:  # the reader must live: the node's end is still to come
            log.exception("node %s: report %s was not dealt with", self._order.name, report)
