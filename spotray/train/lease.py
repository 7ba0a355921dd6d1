"""One driver at a time for a run's folder, also where two clusters share the storage."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import uuid
from collections.abc import Callable

import psutil

from spotray.clock import Clock, SystemClock
from spotray.errors import ConfigError
from spotray.storage import Store

log = logging.getLogger(__name__)

RENEW_S = 10.0
_FILE = "driver.json"


class Lease:
    """Held by the driver of a run while it runs; renewed in the folder that it guards.

    Clocks of two machines are never compared: a lease is alive if it changes while one
    looks at it.

    Args:
        store: The run's folder.
        name: Of the job, for messages.
        clock: How time passes.
        renew_s: Seconds between two renewals.
    """

    def __init__(
        self, store: Store, name: str, *, clock: Clock | None = None, renew_s: float = RENEW_S
    ) -> None:
        self._store, self._name = store, name
        self._clock = clock or SystemClock()
        self._renew_s = renew_s
        self._owner = uuid.uuid4().hex
        self._renewals = 0
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self, *, still_there: Callable[[int], bool] = psutil.pid_exists) -> None:
        """Take the lease, from a driver that is gone if need be.

        Args:
            still_there: Whether a process of this machine lives.

        Raises:
            ConfigError: another driver runs this job.
        """
        before = self._read()
        if before is not None and not self._is_dead(before, still_there):
            log.warning(
                "%s was run by %s: looking whether it still is, %.0f s",
                self._name,
                _named(before),
                1.2 * self._renew_s,
            )
            self._clock.sleep(1.2 * self._renew_s)
            if (now := self._read()) is not None and now != before:
                raise ConfigError(
                    f"a job named {self._name!r} is running on this storage ({_named(now)}): wait "
                    "for its end, stop it, or give this one another name"
                )
        self._renew()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()

    def give_back(self) -> None:
        """Let the next driver in at once."""
        self._closing.set()
        if self._thread is None:
            return
        self._thread.join(timeout=self._renew_s)
        try:
            if (now := self._read()) is not None and now.get("owner") == self._owner:
                self._store.delete(_FILE)
        except OSError as exc:
            log.warning("the lease of %s stays in %s: %s", self._name, self._store.url, exc)

    def _run(self) -> None:
        while not self._closing.wait(self._renew_s):
            try:
                self._renew()
            except OSError as exc:  # the next one may get through; the job goes on
                log.warning("the lease of %s was not renewed: %s", self._name, exc)

    def _renew(self) -> None:
        self._renewals += 1
        lease = {
            "owner": self._owner,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "renewals": self._renewals,
        }
        self._store.write(_FILE, json.dumps(lease).encode())

    def _read(self) -> dict[str, object] | None:
        try:
            raw = json.loads(self._store.read(_FILE))
        except FileNotFoundError:
            return None
        except ValueError:
            return {"owner": "?"}  # half written by a store without atomic writes, or damaged
        return raw if isinstance(raw, dict) else {"owner": "?"}

    def _is_dead(self, lease: dict[str, object], still_there: Callable[[int], bool]) -> bool:
        """Whether its driver ran on this machine and is gone."""
        pid = lease.get("pid")
        if lease.get("host") != socket.gethostname() or not isinstance(pid, int):
            return False
        return pid == os.getpid() or not still_there(pid)


def _named(lease: dict[str, object]) -> str:
    return f"process {lease.get('pid', '?')} on {lease.get('host', '?')}"
