"""Everything that touches Ray's private parts, in one file. Written for Ray 2.60.

Why each is needed:

- `SpotTorchTrainer` passes its own scaling and failure policies to Ray Train's
  controller, which has no public way in. Ray's elastic policy decides from
  reservations that are up to 20 s old, tries a world that has just lost a node, and
  grows in the middle of a step; Ray's failure policy counts the loss of a node that
  gave no notice as a failure of the user's code.
- `FutureSave`, `DICT_CHECKPOINT_FILE` and `analysis_of`: Tune names neither what a scheduler
  holds of a save under way, nor the file of a checkpoint that is a dict, nor the trials
  behind its results.
- `notice` reads the preemption that Ray Train already pushed into the worker;
  the public ``get_preemption_info`` is a barrier over all workers.

``tests/train/test_ray_internals.py`` fails when a new Ray changes any of this.
"""

from __future__ import annotations

import functools
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.train._internal.session import _FutureTrainingResult as FutureSave
from ray.train.v2._internal.exceptions import (
    WorkerHealthCheckFailedError,
    WorkerHealthCheckTimeoutError,
)
from ray.train.v2._internal.execution.callback import WorkerGroupCallback
from ray.train.v2._internal.execution.context import get_train_context
from ray.train.v2._internal.execution.failure_handling import (
    DefaultFailurePolicy,
    FailureDecision,
)
from ray.train.v2._internal.execution.scaling_policy import (
    ElasticScalingPolicy,
    NoopDecision,
    ScalingDecision,
)
from ray.train.v2._internal.execution.scaling_policy.autoscaling_coordinator_client import (
    TrainAutoscalingCoordinatorClient,
)
from ray.train.v2._internal.execution.worker_group import (
    WorkerGroupPollStatus,
    WorkerGroupState,
)
from ray.train.v2.api.exceptions import (
    ControllerError,
    PreemptionError,
    TrainingFailedError,
    WorkerGroupError,
)
from ray.train.v2.torch.torch_trainer import TorchTrainer
from ray.tune.trainable.trainable import _DICT_CHECKPOINT_FILE_NAME as DICT_CHECKPOINT_FILE
from ray.util import placement_group_table

from spotray.errors import SpotrayError, WorldBroken, first_line

__all__ = ["DICT_CHECKPOINT_FILE", "FutureSave"]  # Ray's own, under names of ours

log = logging.getLogger(__name__)

Ask = Callable[..., Any]  # calls a method of the job's coordinator by name; None: no answer

# Ray's own knobs for what a lost node costs; a value that the user set is kept.
# Ray Train hands these from the driver to its controller and workers.
FAST_RECOVERY_ENV = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "0.5",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "10",
}

_PROBE_S = 1.0  # a raylet that does not take a connection within this is taken for lost
_CALL_S = 5.0  # for a call to the coordinator or to Ray's own
_GATHER_S = 4.0  # with half of the workers or fewer, wait this long for the next node
_LOOK_AGAIN_S = 0.5  # while there are too few nodes
_TELL_EVERY_S = 30.0
_GROW_SETTLE_S = 2.0  # nodes often come several at a time: wait this long for the next
_GROW_AFTER_S = 10.0  # first earn what the restart costs, and catch up with the lost steps
_GROW_PATIENCE_S = 30.0  # a loop without `Run` never stands still; then Ray's way is taken


@dataclass(frozen=True)
class RayNotice:
    """What Ray Train knows of a coming preemption of this worker group."""

    deadline_s: float | None  # Unix seconds
    node_ids: tuple[str, ...]


class WorkerContext:
    """Ray Train's context of this worker, captured in the training thread."""

    def __init__(self) -> None:
        self._context = get_train_context()

    def notice(self) -> RayNotice | None:
        """The latest notice for a node of this worker group. Reads memory only."""
        info = self._context.preemption_context.preemption_info
        if info is None:
            return None
        deadline_s = None if info.deadline_ms is None else info.deadline_ms / 1000
        return RayNotice(deadline_s, tuple(sorted(info.preempted_node_to_ranks)))


class SpotTorchTrainer(TorchTrainer):
    """`TorchTrainer` whose controller decides by spotray's policies."""

    def __init__(self, *args: Any, coordinator: Any, max_idle_restarts: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._coordinator = coordinator
        self._max_idle_restarts = max_idle_restarts

    def _initialize_and_run_controller(self, **kwargs: Any) -> Any:
        ask = functools.partial(_ask, self._coordinator)
        kwargs["callbacks"] = [Leftovers(), Placement(ask), *kwargs["callbacks"]]
        kwargs["failure_policy"] = LossPolicy(
            self.run_config.failure_config,
            ask=ask,
            max_idle_restarts=self._max_idle_restarts,
        )
        if not isinstance(self.scaling_config.num_workers, int):
            kwargs["scaling_policy"] = FreshScalingPolicy(self.scaling_config, ask=ask)
        return super()._initialize_and_run_controller(**kwargs)


class Leftovers(WorkerGroupCallback):
    """Ends what a worker group left that broke while it was starting.

    Ray 2.60 ends such a group only if its state was never built; else its placement
    group stays, holds the nodes, and every later start waits for them in vain.
    """

    def __init__(self) -> None:
        self._group: Any = None

    def before_worker_group_start(self, worker_group_context: Any) -> None:
        del worker_group_context
        group, self._group = self._group, None
        if group is not None and group.has_started():
            log.warning("ending a worker group that broke while it was starting")
            group._worker_group_state.shutdown()
            group._clear_state()

    def after_worker_group_start(self, worker_group: Any) -> None:
        self._group = worker_group

    def after_worker_group_shutdown(self, worker_group_context: Any) -> None:
        del worker_group_context
        self._group = None


class Placement(WorkerGroupCallback):
    """Tells the coordinator when a worker group had its nodes.

    Ray says it afterwards: the group is asked for right after the first call here, and
    its placement group knows how long it took.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._asked_at_s = 0.0

    def before_worker_group_start(self, worker_group_context: Any) -> None:
        del worker_group_context
        self._asked_at_s = time.time()

    def after_worker_group_start(self, worker_group: Any) -> None:
        handle = worker_group.get_worker_group_state().placement_group_handle
        stats = placement_group_table(handle.placement_group).get("stats") or {}
        took_ms = stats.get("end_to_end_creation_latency_ms")
        if took_ms is not None:
            self._ask("placed", self._asked_at_s + took_ms / 1000)


class FreshScalingPolicy(ElasticScalingPolicy):
    """Ray's elastic policy on a fresh view of the cluster, growing only at an agreed step."""

    def __init__(self, scaling_config: Any, *, ask: Ask) -> None:
        super().__init__(scaling_config=scaling_config)
        self._ask = ask
        self._seen_room: tuple[int, float] | None = None  # workers that fit, since when
        self._gathering: tuple[int, float] | None = None  # the same, while no worker runs
        self._told_at = float("-inf")

    def make_decision_for_non_running_worker_group(self) -> ScalingDecision:
        self._seen_room = None
        self._maybe_send_resource_request()  # type: ignore[no-untyped-call]
        fit = self._workers_that_fit(probe=True)
        if fit < self.scaling_config.min_workers:
            return self._wait(fit)
        if 2 * fit <= self.scaling_config.max_workers:
            # Nodes come back one after the other; starting with the first would
            # mean a restart for each of them.
            if self._gathering is None or self._gathering[0] < fit:
                self._gathering = (fit, time.monotonic())
            if time.monotonic() - self._gathering[1] < _GATHER_S:
                return self._wait(fit)
        self._gathering = None
        return self._get_resize_decision(fit)

    def make_decision_for_running_worker_group(
        self, worker_group_state: WorkerGroupState, worker_group_status: WorkerGroupPollStatus
    ) -> ScalingDecision:
        del worker_group_status
        self._maybe_send_resource_request()  # type: ignore[no-untyped-call]
        now = time.monotonic()
        fit = self._workers_that_fit(probe=False)
        if fit <= worker_group_state.num_workers:
            if self._seen_room is not None:
                self._ask("propose", 0)
            self._seen_room = None
            return NoopDecision()
        if self._seen_room is None or self._seen_room[0] != fit:
            self._seen_room = (fit, now)
        waited_s = now - self._seen_room[1]
        if waited_s < _GROW_SETTLE_S or now - worker_group_state.start_time < _GROW_AFTER_S:
            return NoopDecision()
        is_held = self._ask("propose", fit)
        patience_s = max(_GROW_PATIENCE_S, self.scaling_config.elastic_resize_monitor_interval_s)
        if is_held or waited_s > patience_s:
            self._seen_room = None
            return self._get_resize_decision(fit)
        return NoopDecision()

    def _wait(self, fit: int) -> ScalingDecision:
        """Look again in a moment: Ray's controller would ask at once, and all the time."""
        now = time.monotonic()
        if now - self._told_at >= _TELL_EVERY_S:
            self._told_at = now
            least = self.scaling_config.min_workers
            log.warning("waiting for nodes: room for %d workers, the job needs %d", fit, least)
        threading.Event().wait(_LOOK_AGAIN_S)
        return NoopDecision()

    def _workers_that_fit(self, *, probe: bool) -> int:
        """Workers that could run now, on nodes that are alive and stay."""
        try:
            reserved = ray.get(
                self._autoscaling_coordinator.get_reserved_resources.remote(
                    self._requester_id, recompute=True
                ),
                timeout=_CALL_S,
            )
        except RayError as exc:
            log.warning("Ray's autoscaling coordinator did not answer: %s", exc)
            return 0
        usable = usable_nodes(probe=probe)
        return int(self._count_possible_workers({n: r for n, r in reserved.items() if n in usable}))


class LossPolicy(DefaultFailurePolicy):
    """A lost node or process is not the user's failure; a bug of the user's is one at once.

    Restarts without any new step in between are limited: then the job itself is
    what breaks the workers.
    """

    def __init__(self, failure_config: Any, *, ask: Ask, max_idle_restarts: int) -> None:
        super().__init__(failure_config)
        self._ask = ask
        self._max_idle_restarts = max_idle_restarts
        self._idle_restarts = 0

    def make_decision(self, training_failed_error: TrainingFailedError) -> FailureDecision:
        if isinstance(training_failed_error, PreemptionError):
            self._ask("group_lost", "preemption", "the notice's deadline")
            return FailureDecision.RETRY
        if own := own_error(training_failed_error):
            log.error("%s: %s", type(own).__name__, own)
            return FailureDecision.RAISE
        why = loss_of(training_failed_error)
        if not why and isinstance(training_failed_error, WorkerGroupError):
            why = self._lost_nodes()
        if not why:
            self._ask("group_lost", "failure", str(training_failed_error)[-300:])
            return super().make_decision(training_failed_error)
        made_steps = self._ask("group_lost", "loss", why)
        self._idle_restarts = 0 if made_steps else self._idle_restarts + 1
        if self._idle_restarts >= self._max_idle_restarts:
            log.error(
                "%d worker groups in a row were lost before a single step was done: %s",
                self._idle_restarts,
                why,
            )
            return FailureDecision.RAISE
        return FailureDecision.RETRY

    def _lost_nodes(self) -> str:
        """Nodes of the worker group that are gone: whatever its workers say, that was it."""
        members = set(self._ask("members") or ())
        gone = members - usable_nodes(probe=True) if members else set()
        return f"lost {len(gone)} of {len(members)} nodes" if gone else ""


def own_error(failed: TrainingFailedError) -> SpotrayError | None:
    """The first of spotray's own errors that a retry cannot mend, if there is one."""
    if not isinstance(failed, WorkerGroupError):
        return None
    for error in failed.worker_failures.values():
        base = getattr(error, "_base_exc", error)
        if isinstance(base, SpotrayError) and not isinstance(base, WorldBroken):
            return base
    return None


def loss_of(failed: TrainingFailedError) -> str:
    """What was lost, if the worker group failed because workers were lost; else empty."""
    if isinstance(failed, ControllerError):
        # A worker that dies while its group starts reaches Ray Train as an error of Ray's.
        cause = failed.controller_failure
        return f"at the start: {first_line(cause)}" if isinstance(cause, RayError) else ""
    if not isinstance(failed, WorkerGroupError):
        return ""
    lost = []
    bases = []
    for rank, error in sorted(failed.worker_failures.items()):
        base = getattr(error, "_base_exc", error)
        if isinstance(base, WorkerHealthCheckFailedError):
            base = base.health_check_failure
        bases.append(base)
        if isinstance(base, RayActorError | GetTimeoutError | WorkerHealthCheckTimeoutError):
            lost.append(f"rank {rank}: {first_line(base)}")
    if lost:
        return "; ".join(lost)
    # The peers of a lost worker fail first; Ray hears of the worker itself later.
    if bases and all(isinstance(b, WorldBroken) or _is_broken_pipe(b) for b in bases):
        return f"peers failed: {first_line(bases[0])}"
    return ""


def _is_broken_pipe(error: BaseException) -> bool:
    """Whether a collective of the user's own, or of DDP's, met a peer that is gone."""
    return isinstance(error, RuntimeError) and any(
        words in str(error) for words in ("Connection closed by peer", "Connection reset by peer")
    )


def usable_nodes(*, probe: bool) -> set[str]:
    """Ids of the nodes that are alive and not draining.

    Args:
        probe: Also try to connect to every raylet: Ray's own health check takes
            seconds to declare a node dead that vanished a moment ago.
    """
    draining = set(ray._private.state.state.get_draining_nodes())
    nodes = [n for n in ray.nodes() if n["Alive"] and n["NodeID"] not in draining]
    if probe and nodes:
        with ThreadPoolExecutor(max_workers=len(nodes)) as pool:
            answers = list(pool.map(_takes_connections, nodes))
        nodes = [n for n, answer in zip(nodes, answers, strict=True) if answer]
    return {n["NodeID"] for n in nodes}


def draining_nodes() -> dict[str, float | None]:
    """Nodes that Ray drains, with the deadline, Unix seconds; None if there is none."""
    draining = ray._private.state.state.get_draining_nodes()
    return {node: deadline_ms / 1000 or None for node, deadline_ms in draining.items()}


def free_resources() -> dict[str, dict[str, float]]:
    """What the usable nodes have to give, by node id; may be some hundred ms old."""
    free: dict[str, dict[str, float]] = ray._private.state.available_resources_per_node()
    usable = usable_nodes(probe=False)
    return {node: dict(amounts) for node, amounts in free.items() if node in usable}


def cluster_config() -> Any:
    """What the autoscaler may launch, as it told Ray; None: there is none, or it has not.

    Ray's public words tell of the nodes that are there alone.
    """
    return ray._private.state.state.get_cluster_config()


def analysis_of(grid: Any) -> Any:
    """What a Tune `ResultGrid` is made of; its ``trials`` are Tune's own."""
    return grid._experiment_analysis


def started_here() -> bool:
    """Whether this process started the cluster by ``ray.init()``: no other node will join it."""
    node = ray._private.worker._global_node
    return node is not None and bool(node.is_head())


def has_process(actor: Any) -> bool:
    """Whether Ray found room for an actor, on whose node its process may still be starting.

    Ray's public states tell no difference: both are PENDING_CREATION.
    """
    told = ray._private.state.actors(actor._actor_id.hex())
    return bool(told["Address"]["Port"])


class ResourceRequest:
    """Asks Ray's autoscaler for the nodes of a job, beside other jobs' requests.

    Through the actor that Ray Train and Ray Data ask as well: a bare
    ``request_resources`` of ours would replace theirs, and they ours.
    """

    def __init__(self, scaling_config: Any, *, requester: str) -> None:
        self._client = TrainAutoscalingCoordinatorClient(requester)
        self._scaling_config = scaling_config

    def renew(self, workers: int) -> None:
        """Ask for room for so many workers; cheap, to be called often."""
        self._client.maybe_send_resource_request(self._scaling_config, workers)

    def cancel(self) -> None:
        self._client.cancel_resource_request()


def set_fast_recovery_env() -> None:
    """Set Ray Train's knobs in this process, for its controller and workers."""
    for name, value in FAST_RECOVERY_ENV.items():
        os.environ.setdefault(name, value)


def _takes_connections(node: dict[str, Any]) -> bool:
    try:
        address = (node["NodeManagerAddress"], node["NodeManagerPort"])
        with socket.create_connection(address, timeout=_PROBE_S):
            return True
    except OSError:
        return False


def _ask(coordinator: Any, method: str, *args: Any) -> Any:
    """Call the job's coordinator; None if it does not answer, since a policy must go on."""
    try:
        return ray.get(getattr(coordinator, method).remote(*args), timeout=_CALL_S)
    except RayError as exc:
        log.warning("the job's coordinator did not answer %s: %s", method, exc)
        return None
