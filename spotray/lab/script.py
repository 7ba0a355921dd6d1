"""Plays a scenario's script on a running lab."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from spotray.errors import LabError
from spotray.lab.scenario import ScriptedEvent

if TYPE_CHECKING:
    from spotray.lab.fleet import LabNode
    from spotray.lab.lab import Lab

log = logging.getLogger(__name__)

_LOOK_S = 0.02  # how often the training's step is read: nobody announces it


class Play:
    """A script in progress. One that cannot be done as written goes on with the rest."""

    def __init__(self, lab: Lab, events: Sequence[ScriptedEvent], step: Callable[[], int]) -> None:
        self._lab, self._step = lab, step
        self._events = list(events)
        self._stopping = threading.Event()
        self._errors: list[str] = []
        self._thread = threading.Thread(target=self._work, name="lab-script", daemon=True)
        self._thread.start()

    @property
    def errors(self) -> tuple[str, ...]:
        """What could not be done, and why."""
        return tuple(self._errors)

    def wait(self, timeout_s: float) -> bool:
        """Whether the script is done ``timeout_s`` seconds from now at the latest."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Leave out the rest."""
        self._stopping.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _work(self) -> None:
        begin_s = time.monotonic()
        left = self._events
        while left and not self._stopping.wait(_LOOK_S):
            elapsed_s = time.monotonic() - begin_s
            step = self._step() if any(e.at_step is not None for e in left) else 0
            due = [event for event in left if _is_due(event, elapsed_s, step)]
            left = [event for event in left if event not in due]
            for event in due:
                self._try(event)

    def _try(self, event: ScriptedEvent) -> None:
        try:
            self._do(event)
        except LabError as exc:
            if not self._stopping.is_set():
                log.warning("the script's %s is left out: %s", event.action, exc)
                self._errors.append(f"{event.action}: {exc}")

    def _do(self, event: ScriptedEvent) -> None:
        lab = self._lab
        match event.action:
            case "capacity":
                assert event.count is not None
                lab.set_capacity(event.count, notice_s=event.notice_s)
                return
            case "kill_all":
                lab.kill_all()
                return
        for name in self._targets(event):
            match event.action:
                case "notice":
                    lab.preempt(name, notice_s=event.notice_s)
                case "kill":
                    lab.kill(name)
                case "freeze":
                    lab.freeze(name)
                case "thaw":
                    lab.thaw(name)
                case "cancel":
                    lab.cancel_notice(name)
                case "rebalance":
                    lab.rebalance(name)

    def _targets(self, event: ScriptedEvent) -> list[str]:
        if event.node is not None:
            return [event.node]
        nodes = [node for node in self._lab.nodes() if node.spot and _suits(event.action, node)]
        if event.rank is not None:
            nodes = nodes[event.rank : event.rank + 1]
        else:
            assert event.count is not None
            nodes = nodes[-event.count :] if event.count <= len(nodes) else []
        if not nodes:
            raise LabError(f"{event} finds no such spot node")
        return [node.name for node in nodes]


def _suits(action: str, node: LabNode) -> bool:
    """Whether an event that names no node may take this one."""
    match action:
        case "thaw":
            return node.state == "frozen"
        case "cancel":
            return node.deadline_s is not None
        case "notice":
            return node.state == "ready" and node.deadline_s is None
    return node.state == "ready"


def _is_due(event: ScriptedEvent, elapsed_s: float, step: int) -> bool:
    if event.at_step is not None:
        return step >= event.at_step
    assert event.at_s is not None
    return elapsed_s >= event.at_s
