"""The driver's side of a live job: starts workers where there is room, and hears of their end."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayError, RayTaskError
from ray.train.v2.api.config import ScalingConfig  # ray.train's own, as type checkers see it
from ray.train.v2.api.exceptions import WorkerGroupError  # as above
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from spotray.errors import SpotrayError
from spotray.train.live_worker import LiveJob, LiveWorker, Outcome
from spotray.train.messages import View
from spotray.train.ray_internals import ResourceRequest, free_resources

log = logging.getLogger(__name__)

_LOOK_S = 0.2
_CALL_S = 10.0
_SEEN_S = 3.0  # after which Ray's view of a node's free resources knows of a new actor
_AVOID_S = 15.0  # a node whose worker fell silent: it may be frozen, and Ray slow to see it
_PLACE_EVERY_S = 0.5  # between two looks at Ray's nodes for room
_END_S = 15.0  # for all workers to end after the job is done
_TELL_EVERY_S = 30.0


@dataclass(frozen=True)
class GaveWay:
    """Live recovery cannot go on with this job; restarts can."""

    why: str


@dataclass
class _Started:
    """A worker of this job."""

    actor: Any
    ref: Any
    node_id: str
    started_at: float  # monotonic


class LiveTraining:
    """Runs a job with live recovery, until it is done or gives way.

    Args:
        job: What every worker gets.
        scaling_config: Ray Train's; its least and most workers.
        max_failures: How often a bug of the user's may start all workers anew.
        name: Of the job.
    """

    def __init__(
        self, job: LiveJob, *, scaling_config: ScalingConfig, max_failures: int, name: str
    ) -> None:
        self._job = job
        self._scaling = scaling_config
        workers = scaling_config.num_workers
        self._min, self._max = (workers, workers) if isinstance(workers, int) else workers
        self._needs = {k: v for k, v in scaling_config._resources_per_worker_not_none.items() if v}
        self._failures_left = max_failures if max_failures >= 0 else float("inf")
        self._request = ResourceRequest(scaling_config, requester=f"spotray-{name}-{time.time()}")
        self._workers: dict[str, _Started] = {}
        self._numbers = itertools.count()
        self._avoid: dict[str, float] = {}  # node id -> until then, monotonic
        self._placed_at = float("-inf")
        self._told_at = float("-inf")

    def run(self) -> tuple[Mapping[str, Any], str | None] | GaveWay:
        """Metrics and path of the final checkpoint, or why it gave way.

        Raises:
            SpotrayError: an input of the training loop is wrong.
            WorkerGroupError: the training loop failed.
        """
        try:
            while True:
                gone = self._reap()
                if isinstance(gone, GaveWay):
                    return gone
                view = self._supervise(gone)
                if view is None:
                    continue
                if view.gave_up:
                    return GaveWay(view.gave_up)
                if view.done:
                    return self._end()
                self._drop_unwanted(view)
                self._request.renew(min(self._max, view.useful_workers))
                self._start_missing(view)
                self._tell_waiting(view)
        finally:
            for worker in self._workers.values():
                ray.kill(worker.actor)
            self._workers.clear()
            self._request.cancel()

    # -- inside ----------------------------------------------------------------------

    def _reap(self) -> dict[str, str] | GaveWay:
        """Workers that ended, and why; waits a moment for one."""
        refs = {w.ref: name for name, w in self._workers.items()}
        if not refs:
            # What ends this is room on a node, also of another job's: Ray tells nobody of that,
            # and the coordinator would only look in its turn.
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
                self._failed(name, exc)
                return dict.fromkeys([name, *self._clear()], "the training loop failed")
            except RayError as exc:
                gone[name] = _line(exc)
                ray.kill(worker.actor)
                continue
            ray.kill(worker.actor)
            if outcome.kind == "unsupported":
                return GaveWay(outcome.why)
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
            ray.kill(worker.actor)
        self._workers.clear()
        return names

    def _supervise(self, gone: Mapping[str, str]) -> View | None:
        started = {name: w.node_id for name, w in self._workers.items()}
        call = self._job.coordinator.supervise
        while True:
            try:
                view: View = ray.get(call.remote(started, gone), timeout=_CALL_S)
                return view
            except ActorDiedError as exc:  # Ray starts it anew, unless it cannot start at all
                raise SpotrayError(f"the job's coordinator could not start: {exc}") from exc
            except RayError as exc:
                log.warning("the job's coordinator did not answer: %s", _line(exc))
                if not gone:
                    return None

    def _drop_unwanted(self, view: View) -> None:
        """End workers that were thrown out, and those that no node could hold."""
        now = time.monotonic()
        for name, worker in list(self._workers.items()):
            if name in view.known:
                continue
            if now - worker.started_at > _LOOK_S:
                log.warning("worker %s was thrown out: ended", name)
                ray.kill(worker.actor)
                del self._workers[name]
                self._avoid[worker.node_id] = now + _AVOID_S

    def _start_missing(self, view: View) -> None:
        """Start workers on free nodes, up to what is useful."""
        leaving = set(view.leaving_nodes)
        staying = sum(w.node_id not in leaving for w in self._workers.values())
        missing = min(self._max, view.useful_workers) - staying
        now = time.monotonic()
        if missing <= 0 or now - self._placed_at < _PLACE_EVERY_S:
            return
        self._placed_at = now
        for node_id, free in free_resources().items():
            is_avoided = self._avoid.get(node_id, now) > now
            if node_id in leaving or is_avoided or not self._fits_labels(node_id):
                continue
            for worker in self._workers.values():
                if worker.node_id == node_id and now - worker.started_at < _SEEN_S:
                    for resource, amount in self._needs.items():
                        free[resource] = free.get(resource, 0.0) - amount
            while missing > 0 and all(free.get(r, 0.0) >= a for r, a in self._needs.items()):
                self._start(node_id)
                missing -= 1
                for resource, amount in self._needs.items():
                    free[resource] -= amount

    def _start(self, node_id: str) -> None:
        name = f"w{next(self._numbers)}-{time.time_ns() % 10**9:09d}"
        others = {k: v for k, v in self._needs.items() if k not in ("CPU", "GPU")}
        actor: Any = (
            ray.remote(LiveWorker)
            .options(
                num_cpus=self._needs.get("CPU", 0),
                num_gpus=self._needs.get("GPU", 0),
                resources=others,
                max_restarts=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
            )
            .remote()
        )
        ref = actor.run.remote(self._job, name)
        self._workers[name] = _Started(actor, ref, node_id, time.monotonic())
        log.info("worker %s starts on node %s", name, node_id[:8])

    def _fits_labels(self, node_id: str) -> bool:
        selector = self._scaling.label_selector
        if not selector:
            return True
        one = selector[0] if isinstance(selector, list) else selector
        labels = next((n.get("Labels") or {} for n in ray.nodes() if n["NodeID"] == node_id), {})
        return all(_matches(labels.get(key), wanted) for key, wanted in one.items())

    def _end(self) -> tuple[Mapping[str, Any], str | None]:
        """The result; workers that are not through yet have some seconds to end."""
        refs = [w.ref for w in self._workers.values()]
        ray.wait(refs, num_returns=len(refs), timeout=_END_S) if refs else None
        result = ray.get(self._job.coordinator.result.remote(), timeout=_CALL_S)
        assert result is not None, "a job that is done has a result"
        metrics, checkpoint = result
        return metrics, checkpoint

    def _tell_waiting(self, view: View) -> None:
        missing = view.waiting_for or (not self._workers and self._min)
        now = time.monotonic()
        if missing and now - self._told_at >= _TELL_EVERY_S:
            self._told_at = now
            log.warning(
                "waiting for nodes: %d of at least %d workers", len(view.members), self._min
            )


def _matches(value: str | None, wanted: str) -> bool:
    """Ray's label operators: ``x``, ``!x``, ``in(a,b)``, ``!in(a,b)``."""
    if wanted.startswith("!"):
        return not _matches(value, wanted[1:])
    if wanted.startswith("in(") and wanted.endswith(")"):
        return value in [one.strip() for one in wanted[3:-1].split(",")]
    return value == wanted


def _line(error: BaseException) -> str:
    text = str(error).strip() or repr(error)
    return text.splitlines()[0][:160]
