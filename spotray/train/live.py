"""The driver's side of a live job: has workers started, and hears of their end."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import ray
from ray.exceptions import ActorDiedError, RayError, RayTaskError
from ray.train.v2.api.exceptions import WorkerGroupError  # ray.train's own, for type checkers

from spotray.errors import SpotrayError, first_line
from spotray.train.live_worker import LiveJob, Outcome
from spotray.train.messages import View
from spotray.train.placing import Workers
from spotray.train.ray_internals import has_process

log = logging.getLogger(__name__)

_LOOK_S = 0.2
_CALL_S = 10.0
_END_S = 15.0  # for all workers to end after the job is done
_LEAVE_S = 60.0  # for a worker that was told to leave; its process may only be starting
_STOP_S = 3.0  # the same of a job that is stopped
_TELL_EVERY_S = 30.0


@dataclass(frozen=True)
class GaveWay:
    """Live recovery cannot go on with this job; restarts can."""

    why: str
    is_unsupported: bool  # the loop is not for live workers; else it was tried too often


@dataclass(frozen=True)
class Stopped:
    """Somebody else ended this job before its time."""

    why: str


class Supervisor(Protocol):
    """What the driver needs of the job's coordinator."""

    def supervise(self, started: Mapping[str, str], gone: Mapping[str, str]) -> View | None:
        """Tell of workers (names and nodes) and of ended ones; None: nobody answered."""
        ...

    def result(self) -> tuple[Mapping[str, Any], str | None] | None:
        """Metrics and final checkpoint of a job that is done."""
        ...

    def stop(self, why: str) -> None:
        """Tell all workers to leave."""
        ...


@dataclass
class _Started:
    """A worker of this job."""

    actor: Any
    ref: Any
    node_id: str
    started_at: float  # monotonic
    let_go_at: float | None = None  # it was told to leave


class LiveTraining:
    """Runs a job with live recovery, until it is done, gives way or is stopped.

    Args:
        job: What every worker gets.
        supervisor: The job's coordinator.
        workers: Where its workers come from.
        max_failures: How often a bug of the user's may start all workers anew; -1: always.
    """

    def __init__(
        self, job: LiveJob, *, supervisor: Supervisor, workers: Workers, max_failures: int
    ) -> None:
        self._job = job
        self._supervisor = supervisor
        self._from = workers
        self._failures_left = max_failures if max_failures >= 0 else float("inf")
        self._workers: dict[str, _Started] = {}
        self._numbers = itertools.count()
        self._told_at = float("-inf")
        self._stop_why = ""

    def run(self) -> tuple[Mapping[str, Any], str | None] | GaveWay | Stopped:
        """Metrics and path of the final checkpoint, or why there are none.

        Raises:
            SpotrayError: an input of the training loop is wrong.
            WorkerGroupError: the training loop failed.
        """
        dropped: dict[str, str] = {}
        try:
            while True:
                gone = self._reap()
                if isinstance(gone, GaveWay):
                    return gone
                gone |= dropped
                if self._stop_why:
                    return self._stopped()
                view = self._supervisor.supervise(self._nodes(), gone)
                while view is None and gone:  # nobody else will tell of these
                    view = self._supervisor.supervise(self._nodes(), gone)
                if view is None:
                    continue
                dropped = {}
                if view.gave_up:
                    return GaveWay(view.gave_up, is_unsupported=False)
                if view.done:
                    return self._end(view)
                dropped = self._drop_unwanted(view)
                for node_id in self._from.places(view, self._nodes()):
                    self._start(node_id)
                self._tell_waiting(view)
        finally:
            for worker in self._workers.values():
                self._from.give_back(worker.actor, healthy=False)
            self._workers.clear()

    def stop(self, why: str) -> None:
        """End the job soon, from any thread: `run` returns `Stopped`."""
        self._stop_why = why

    # -- inside ----------------------------------------------------------------------

    def _nodes(self) -> dict[str, str]:
        return {name: worker.node_id for name, worker in self._workers.items()}

    def _reap(self) -> dict[str, str] | GaveWay:
        """Workers that ended, and why; waits a moment for one."""
        refs = {w.ref: name for name, w in self._workers.items()}
        if not refs:
            # Nothing can end, and what would be waited for is room on Ray's nodes: they are
            # polled, so this is a pause between two looks.
            time.sleep(_LOOK_S)
            return {}
        ended, _ = ray.wait(list(refs), num_returns=1, timeout=_LOOK_S)
        gone: dict[str, str] = {}
        for ref in ended:
            name = refs[ref]
            worker = self._workers.pop(name)
            try:
                outcome: Outcome = ray.get(ref)
            except RayTaskError as exc:
                self._from.give_back(worker.actor, healthy=False)
                self._failed(name, exc)
                return dict.fromkeys([name, *self._clear()], "the training loop failed")
            except RayError as exc:
                gone[name] = first_line(exc)
                self._from.give_back(worker.actor, healthy=False)
                continue
            self._from.give_back(worker.actor, healthy=outcome.kind != "unsupported")
            if outcome.kind == "unsupported":
                return GaveWay(outcome.why, is_unsupported=True)
            gone[name] = outcome.why or outcome.kind
        return gone

    def _failed(self, name: str, error: RayTaskError) -> None:
        """A training loop raised: once more from the newest saved state, or the job's end."""
        cause = error.cause
        if isinstance(cause, SpotrayError):
            raise cause from error
        if self._failures_left <= 0:
            raise WorkerGroupError(str(error), {0: error}) from error
        self._failures_left -= 1
        log.error("worker %s: the training loop failed, all workers start anew: %s", name, error)

    def _clear(self) -> list[str]:
        names = list(self._workers)
        for worker in self._workers.values():
            self._from.give_back(worker.actor, healthy=False)
        self._workers.clear()
        return names

    def _drop_unwanted(self, view: View) -> dict[str, str]:
        """End workers that were thrown out, and those whose place another job took."""
        now = time.monotonic()
        dropped: dict[str, str] = {}
        for name, worker in list(self._workers.items()):
            waited_s = now - worker.started_at
            if name in view.let_go:
                # Its process has loaded what the next job needs: it may end by itself.
                if worker.let_go_at is None:
                    worker.let_go_at = now
                if now - worker.let_go_at <= _LEAVE_S and (
                    waited_s <= self._from.place_s or has_process(worker.actor)
                ):
                    continue
                what = "was told to leave, and did not"
            elif name in view.known:
                is_early = waited_s <= self._from.place_s
                if name in view.entered or is_early or has_process(worker.actor):
                    continue
                what = "found no room on its node"
            elif waited_s > _LOOK_S:
                what = "was thrown out"
            else:
                continue
            log.warning("worker %s %s: ended", name, what)
            self._from.give_back(worker.actor, healthy=False)
            self._from.avoid(worker.node_id)
            del self._workers[name]
            dropped[name] = what
        return dropped

    def _start(self, node_id: str) -> None:
        name = f"w{next(self._numbers)}-{time.time_ns() % 10**9:09d}"
        actor = self._from.start(node_id)
        ref = actor.run.remote(self._job, name)
        self._workers[name] = _Started(actor, ref, node_id, time.monotonic())
        log.info("worker %s starts on node %s", name, node_id[:8])

    def _end(self, view: View) -> tuple[Mapping[str, Any], str | None]:
        """The result; workers that are not through yet have some seconds to end."""
        for name in self._workers.keys() - set(view.entered):  # would only begin
            self._from.give_back(self._workers.pop(name).actor, healthy=False)
        self._wait_for_all(_END_S)
        result = self._supervisor.result()
        assert result is not None, "a job that is done has a result"
        metrics, checkpoint = result
        return metrics, checkpoint

    def _stopped(self) -> Stopped:
        self._supervisor.stop(self._stop_why)
        self._wait_for_all(_STOP_S)
        return Stopped(self._stop_why)

    def _wait_for_all(self, timeout_s: float) -> None:
        """Workers that end in time are fit for another job."""
        refs = {w.ref: name for name, w in self._workers.items()}
        if not refs:
            return
        ended, _ = ray.wait(list(refs), num_returns=len(refs), timeout=timeout_s)
        for ref in ended:
            worker = self._workers.pop(refs[ref])
            try:
                ray.get(ref)
            except RayError as exc:
                log.warning("worker %s ended badly: %s", refs[ref], first_line(exc))
                self._from.give_back(worker.actor, healthy=False)
            else:
                self._from.give_back(worker.actor, healthy=True)

    def _tell_waiting(self, view: View) -> None:
        missing = view.waiting_for or (not self._workers and view.least)
        now = time.monotonic()
        if missing and now - self._told_at >= _TELL_EVERY_S:
            self._told_at = now
            log.warning(
                "waiting for nodes: %d of at least %d workers", len(view.members), view.least
            )


class RemoteCoordinator:
    """`Supervisor` over a handle to a `LiveCoordinator` actor."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def supervise(self, started: Mapping[str, str], gone: Mapping[str, str]) -> View | None:
        """As the protocol says.

        Raises:
            SpotrayError: the actor cannot be started.
        """
        try:
            view: View = ray.get(self._actor.supervise.remote(started, gone), timeout=_CALL_S)
            return view
        except ActorDiedError as exc:  # Ray starts it anew, unless it cannot start at all
            raise SpotrayError(f"the job's coordinator could not start: {exc}") from exc
        except RayError as exc:
            log.warning("the job's coordinator did not answer: %s", first_line(exc))
            return None

    def result(self) -> tuple[Mapping[str, Any], str | None] | None:
        result: tuple[Mapping[str, Any], str | None] | None = ray.get(
            self._actor.result.remote(), timeout=_CALL_S
        )
        return result

    def stop(self, why: str) -> None:
        ray.get(self._actor.stop.remote(why), timeout=_CALL_S)
