"""Lets trials begin one after the other, as long as the sweep's budget allows."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from spotray.errors import JournalError
from spotray.ledger.sweep import SweepState
from spotray.tune.budget import Verdict, may_launch, spending
from spotray.tune.hosted import Seat

log = logging.getLogger(__name__)

_LOOK_S = 2.0  # between two looks at what is spent


class Gate:
    """Whether one more trial of a sweep may begin.

    Args:
        state: The sweep's ledger now; None: nobody knows yet.
        max_cost_usd: The budget, USD.
        room: Trials for which there is room now.
    """

    def __init__(
        self,
        state: Callable[[], SweepState | None],
        *,
        max_cost_usd: float,
        room: Callable[[], int],
    ) -> None:
        self._state, self._max_usd, self._room = state, max_cost_usd, room
        self._changed = threading.Condition()
        self._under_way: set[str] = set()
        self._look_at = float("-inf")  # not before that, monotonic
        self._why = ""

    def goes_on(self, trial: str) -> None:
        """A trial that began before does: it may, and counts."""
        with self._changed:
            self._under_way.add(trial)

    def ended(self, trial: str) -> None:
        """A trial takes nothing more: whoever waits is looked at again."""
        with self._changed:
            self._under_way.discard(trial)
            self._look_at = float("-inf")
            self._changed.notify_all()

    def ask(self, trial: str, timeout_s: float) -> Verdict:
        """Whether a trial may begin; one that may counts from now on.

        Waits a while before it says so again that the trial has to wait.
        """
        with self._changed:
            if time.monotonic() >= self._look_at:
                verdict = self._look()
                if verdict.kind == "launch":
                    self._under_way.add(trial)
                    return verdict
                if verdict.kind == "stop":
                    return verdict
                if verdict.why != self._why:
                    log.info("trial %s does not begin yet: %s", trial, verdict.why)
                self._why = verdict.why
                self._look_at = time.monotonic() + _LOOK_S
            self._changed.wait(timeout_s)
            return Verdict(kind="wait", why=self._why)

    def _look(self) -> Verdict:
        try:
            state = self._state()
        except JournalError as exc:
            return Verdict(kind="wait", why=f"what is spent could not be read: {exc}")
        if state is None:
            return Verdict(kind="wait", why="nothing is known of the sweep's cost yet")
        spent = spending(state, running=self._under_way)
        return may_launch(spent, max_cost_usd=self._max_usd, room=self._room())


class GatedSeat:
    """A seat that is taken only when the budget allows the trial to begin.

    Args:
        seat: In the pool of workers.
        gate: The sweep's.
        trial: Who sits there.
        has_begun: It did some time before: then it may go on.
        stop: Called with the reason when it shall not begin at all.
    """

    def __init__(
        self, seat: Seat, gate: Gate, trial: str, *, has_begun: bool, stop: Callable[[str], None]
    ) -> None:
        self._seat, self._gate, self._trial, self._stop = seat, gate, trial, stop
        self._may_begin = has_begun
        if has_begun:
            gate.goes_on(trial)

    def wait(self, timeout_s: float) -> bool:
        if not self._seat.wait(timeout_s):
            return False
        if not self._may_begin:
            verdict = self._gate.ask(self._trial, timeout_s)
            self._may_begin = verdict.kind == "launch"
            if verdict.kind == "stop":
                log.warning("trial %s does not begin: %s", self._trial, verdict.why)
                self._stop(verdict.why)
        return self._may_begin

    def leave(self) -> None:
        self._gate.ended(self._trial)
        self._seat.leave()
