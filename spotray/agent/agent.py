"""The agent: hears the cloud's notice for this node, and drains the node in Ray.

It knows neither a cloud nor Ray: both are given to it. It must outlive everything
that fails around it, because it is needed in the last two minutes of a node.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from spotray.clock import Clock, SystemClock
from spotray.cloud.provider import NodeOutlook, Notice, NoticeSource
from spotray.errors import MetadataError, SpotrayError
from spotray.events import (
    Drained,
    DrainRefused,
    Event,
    NodeDown,
    NoticeCancelled,
    NoticeReceived,
    RebalanceHint,
)

log = logging.getLogger(__name__)

UNNAMED_DEADLINE_S = 30.0  # if the cloud names no time: the shortest notice that any gives
_MAX_BACKOFF_S = 15.0  # a failing service is asked again well within a notice
_ON_DEMAND_POLL_S = 60.0


def drain_deadline_s(notice: Notice, *, now_s: float, margin_s: float) -> float:
    """When Ray shall count a node as gone, Unix seconds: never in the past.

    Args:
        notice: what the cloud said.
        now_s: Unix seconds.
        margin_s: how long before the cloud's deadline, seconds.
    """
    if notice.deadline_s is None:
        return now_s + UNNAMED_DEADLINE_S
    return max(now_s, notice.deadline_s - margin_s)


class NodeAgent:
    """Drains this node once for each notice, and writes down what it saw.

    Before maintenance too, though it may be an hour away: training moves over while there
    is time, and a machine that the cloud starts again is a new node to Ray.
    """

    def __init__(
        self,
        notices: NoticeSource,
        drain: Callable[[Notice], None],
        record: Callable[[Event], None],
        *,
        node_id: str,
        drain_margin_s: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        """Nothing happens yet.

        Args:
            notices: the cloud's word on this node.
            drain: asks Ray; gets the notice with the deadline meant for Ray. A
                `SpotrayError` means "not drained": it is called again at the next poll.
            record: takes a fact; its failures are logged and change nothing.
            node_id: Ray's id of this node, hex.
            drain_margin_s: how long before the cloud's deadline Ray's is, seconds.
            clock: dates the facts.
        """
        self._notices, self._drain, self._record_to = notices, drain, record
        self._node_id, self._drain_margin_s = node_id, drain_margin_s
        self._clock = clock or SystemClock()
        self._is_spot: bool | None = None  # None: the cloud did not say yet
        self._hinted = False
        self._notice: Notice | None = None  # the one in force
        self._drained = False  # whether Ray agreed to drain for it
        self._refusal = ""  # why Ray did not, when last asked
        self._failures = 0  # of the cloud's service, in a row
        self._record_failures = 0
        self._end = threading.Lock()  # taken by the one who writes the end down

    @property
    def wait_s(self) -> float:
        """Seconds until the next `step` makes sense."""
        poll_s = self._notices.poll_s
        if self._failures:
            return min(poll_s * 2.0 ** min(self._failures - 1, 10), max(poll_s, _MAX_BACKOFF_S))
        if self._is_spot is False and self._notice is None:
            return max(poll_s, _ON_DEMAND_POLL_S)
        return poll_s

    def run(self, stop: threading.Event) -> None:
        """Poll until ``stop`` is set, then `shut_down`."""
        while not stop.is_set():
            try:
                self.step()
            except Exception:  # an agent that died hears nothing
                self._failures += 1
                log.exception("poll failed, %d in a row", self._failures)
            stop.wait(self.wait_s)
        self.shut_down()

    def step(self) -> None:
        """Ask the cloud once, and act on the answer. Failures of the cloud are survived."""
        try:
            self._act(self._notices.outlook())
            if self._is_spot is None:
                self._is_spot = self._notices.is_spot()
                log.info("node %s is %s", self._node_id, "spot" if self._is_spot else "on-demand")
        except MetadataError as exc:
            self._failures += 1
            level = logging.WARNING if self._failures == 1 else logging.DEBUG
            log.log(level, "no answer about this node, asking on: %s", exc)
            return
        if self._failures:
            log.info("answers about this node again, after %d failures", self._failures)
        self._failures = 0

    def shut_down(self) -> None:
        """Write down that the node ends, and why as far as it was announced; once."""
        if not self._end.acquire(blocking=False):
            return
        noticed = self._notice is not None
        cause = self._notice.cause if self._notice is not None else "shutdown"
        log.info("node %s ends: %s", self._node_id, cause)
        self._record(
            NodeDown(at_s=self._now_s(), node_id=self._node_id, cause=cause, noticed=noticed)
        )

    def _act(self, outlook: NodeOutlook) -> None:
        if outlook.rebalance_hint and not self._hinted:
            self._hinted = True
            log.info("node %s: the cloud hints at a higher risk", self._node_id)
            self._record(RebalanceHint(at_s=self._now_s(), node_id=self._node_id))
        if outlook.notice is None:
            if self._notice is not None:
                self._cancel()
            return
        if self._is_news(outlook.notice):
            self._hear(outlook.notice)
        if not self._drained:
            self._try_drain()

    def _is_news(self, notice: Notice) -> bool:
        """A first notice, or an earlier deadline. A later one brings nothing back."""
        if self._notice is None:
            return True
        old_s, new_s = self._notice.deadline_s, notice.deadline_s
        return new_s is not None and (old_s is None or new_s < old_s)

    def _hear(self, notice: Notice) -> None:
        self._notice, self._drained, self._refusal = notice, False, ""
        now_s = self._now_s()
        left_s = drain_deadline_s(notice, now_s=now_s, margin_s=0.0) - now_s
        log.info(
            "node %s: %s notice from %s, %.0f s left",
            self._node_id,
            notice.cause,
            notice.source or "the cloud",
            left_s,
        )
        self._record(
            NoticeReceived(
                at_s=now_s,
                node_id=self._node_id,
                deadline_s=notice.deadline_s,
                cause=notice.cause,
                source=notice.source,
            )
        )

    def _try_drain(self) -> None:
        assert self._notice is not None
        deadline_s = drain_deadline_s(
            self._notice, now_s=self._now_s(), margin_s=self._drain_margin_s
        )
        try:
            self._drain(replace(self._notice, deadline_s=deadline_s))
        except SpotrayError as exc:
            if str(exc) == self._refusal:  # said once, asked at every poll
                return
            self._refusal = str(exc)
            log.warning("node %s not drained, asking on: %s", self._node_id, exc)
            self._record(DrainRefused(at_s=self._now_s(), node_id=self._node_id, why=str(exc)))
            return
        self._drained = True
        log.info("node %s drained, %.0f s left", self._node_id, deadline_s - self._now_s())
        why = f"{self._notice.cause} notice from {self._notice.source or 'the cloud'}"
        self._record(
            Drained(at_s=self._now_s(), node_id=self._node_id, deadline_s=deadline_s, why=why)
        )

    def _cancel(self) -> None:
        # Ray cannot take a drain back; whoever acts on this event may restart the node.
        self._notice, self._drained = None, False
        log.info("node %s: the cloud took its notice back", self._node_id)
        self._record(NoticeCancelled(at_s=self._now_s(), node_id=self._node_id))

    def _record(self, event: Event) -> None:
        try:
            self._record_to(event)
        except Exception:  # a lost fact must not cost a drain
            self._record_failures += 1
            if self._record_failures == 1:
                log.exception("cannot write down %s", event)
            return
        self._record_failures = 0

    def _now_s(self) -> float:
        return self._clock.now_s()
