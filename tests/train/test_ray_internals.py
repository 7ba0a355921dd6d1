"""What `spotray.train.ray_internals` takes from Ray's private parts is still there.

A new Ray that changes any of it fails here first, and by name.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import tune
from ray._private.state import GlobalState
from ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator import (
    _AutoscalingCoordinatorActor,
)
from ray.exceptions import RayActorError
from ray.train import FailureConfig
from ray.train.v2._internal.exceptions import (
    UserExceptionWithTraceback,
    WorkerHealthCheckFailedError,
)
from ray.train.v2._internal.execution.context import TrainContext
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.failure_handling import FailureDecision
from ray.train.v2._internal.execution.preemption import PreemptionContext
from ray.train.v2._internal.execution.scaling_policy import (
    ElasticScalingPolicy,
    NoopDecision,
    ResizeDecision,
)
from ray.train.v2._internal.execution.worker_group import WorkerGroup, WorkerGroupState
from ray.train.v2.api.config import ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.train.v2.api.exceptions import ControllerError, PreemptionError, WorkerGroupError
from ray.train.v2.api.preemption import PreemptionInfo
from ray.tune.execution.tune_controller import TuneController

from spotray.errors import ConfigError, WorldBroken
from spotray.train import ray_internals
from spotray.train.ray_internals import FreshScalingPolicy, LossPolicy, loss_of, own_error

RETRY, RAISE = FailureDecision.RETRY, FailureDecision.RAISE


def test_this_ray_is_the_one_it_was_written_for() -> None:
    assert ray.__version__.startswith("2.60."), "check every line of ray_internals.py"


def test_the_controller_still_takes_policies() -> None:
    taken = inspect.signature(TrainController.__init__).parameters
    assert {"scaling_policy", "failure_policy"} <= taken.keys()
    source = inspect.getsource(DataParallelTrainer.fit)
    assert "self._initialize_and_run_controller(" in source
    assert "scaling_policy=create_scaling_policy(" in source
    assert "failure_policy=create_failure_policy(" in source


def test_the_elastic_policy_still_has_the_parts_that_are_built_on() -> None:
    for name in (
        "_count_possible_workers",
        "_get_resize_decision",
        "_maybe_send_resource_request",
        "_autoscaling_coordinator",
        "make_decision_for_running_worker_group",
        "make_decision_for_non_running_worker_group",
    ):
        assert hasattr(ElasticScalingPolicy, name), name
    assert (
        "recompute"
        in inspect.signature(_AutoscalingCoordinatorActor.get_reserved_resources).parameters
    )
    state = WorkerGroupState.__dataclass_fields__
    assert "start_time" in state
    assert hasattr(WorkerGroupState, "num_workers")


def test_a_worker_still_knows_of_its_preemption() -> None:
    assert "preemption_context" in TrainContext.__dataclass_fields__
    assert "preemption_info" in PreemptionContext.__dataclass_fields__
    assert {"deadline_ms", "preempted_node_to_ranks"} <= PreemptionInfo.__dataclass_fields__.keys()


def test_the_knobs_for_fast_recovery_still_exist() -> None:
    from ray.train.v2._internal import constants

    assert ray_internals.FAST_RECOVERY_ENV.keys() <= constants.ENV_VARS_TO_PROPAGATE


def test_a_worker_group_still_tells_when_it_had_its_nodes() -> None:
    assert "placement_group_handle" in WorkerGroupState.__dataclass_fields__
    start = inspect.getsource(WorkerGroup._start_impl)
    marks = [
        start.index(call)
        for call in (
            "callback.before_worker_group_start(",
            "self._create_placement_group(",
            "callback.after_worker_group_start(",
            ".run_train_fn.remote(",
        )
    ]
    assert marks == sorted(marks), "the coordinator hears of it before the workers meet"
    table = inspect.getsource(GlobalState._gen_placement_group_info)
    assert '"end_to_end_creation_latency_ms"' in table


def group_error(failures: dict[int, Exception]) -> WorkerGroupError:
    return WorkerGroupError("x", failures)


def user_error(error: Exception) -> Exception:
    return UserExceptionWithTraceback(error, "Traceback ...")


def dead_actor() -> Exception:
    return WorkerHealthCheckFailedError("dead", failure=RayActorError())


class Coordinator:
    """Says of each worker group that is lost whether it made steps; remembers what it is told."""

    def __init__(self, *made_steps: bool) -> None:
        self.made_steps = list(made_steps)
        self.told: list[tuple[Any, ...]] = []
        self.is_held = False

    def ask(self, method: str, *args: Any) -> Any:
        self.told.append((method, *args))
        if method == "propose":
            return self.is_held
        if method == "members":
            return None
        return self.made_steps.pop(0) if self.made_steps else None


def policy(coordinator: Coordinator, *, max_failures: int = 0, idle: int = 3) -> LossPolicy:
    return LossPolicy(
        FailureConfig(max_failures=max_failures), ask=coordinator.ask, max_idle_restarts=idle
    )


def test_a_lost_node_never_uses_up_the_users_failures() -> None:
    losses = policy(Coordinator(*[True] * 9))
    for _ in range(9):
        error = group_error({0: user_error(WorldBroken("gone")), 2: dead_actor()})
        assert losses.make_decision(error) is RETRY


def test_peers_that_fail_before_ray_knows_of_the_loss_are_a_loss() -> None:
    coordinator = Coordinator(True)
    error = group_error({0: user_error(WorldBroken("closed")), 1: user_error(WorldBroken("x"))})
    assert policy(coordinator).make_decision(error) is RETRY
    assert coordinator.told[0][:2] == ("group_lost", "loss")


def test_a_preemption_at_its_deadline_is_a_retry() -> None:
    info = PreemptionInfo(deadline_ms=1, preempted_node_to_ranks={"n": [0]})
    error = PreemptionError(preemption_info=info, drain_timed_out=True)
    assert policy(Coordinator(True)).make_decision(error) is RETRY


def test_a_bug_of_the_users_is_raised_at_once_and_counted_when_allowed() -> None:
    bug = group_error({0: user_error(ValueError("x")), 1: user_error(WorldBroken("closed"))})
    assert policy(Coordinator()).make_decision(bug) is RAISE
    twice = policy(Coordinator(), max_failures=1)
    assert [twice.make_decision(bug) for _ in range(2)] == [RETRY, RAISE]


def test_an_error_of_ours_is_raised_whatever_is_allowed() -> None:
    wrong = group_error({0: user_error(ConfigError("the dataset is empty")), 1: dead_actor()})
    assert policy(Coordinator(), max_failures=9).make_decision(wrong) is RAISE
    assert str(own_error(wrong)) == "the dataset is empty"
    assert own_error(ControllerError(ValueError("x"))) is None


def test_losses_without_a_new_step_end_as_a_bug() -> None:
    coordinator = Coordinator(False, False, True, False, False, False)
    losses = policy(coordinator, idle=3)
    error = group_error({0: dead_actor()})
    assert [losses.make_decision(error) for _ in range(6)] == [RETRY] * 5 + [RAISE]


def test_a_coordinator_that_does_not_answer_does_not_make_losses_endless() -> None:
    losses = policy(Coordinator(), idle=2)
    error = group_error({0: dead_actor()})
    assert [losses.make_decision(error) for _ in range(2)] == [RETRY, RAISE]


def test_what_was_lost_is_named_in_one_line() -> None:
    text = loss_of(group_error({3: dead_actor()}))
    assert text.startswith("rank 3: ")
    assert "\n" not in text
    assert loss_of(group_error({0: user_error(ValueError("x"))})) == ""


def test_a_peer_that_ddp_or_the_users_own_collective_misses_is_a_loss() -> None:
    closed = user_error(RuntimeError("[gloo/pair.cc:1] Connection closed by peer [127.0.0.1]:2"))
    assert loss_of(group_error({0: closed, 1: user_error(WorldBroken("x"))}))
    assert not loss_of(group_error({0: closed, 1: user_error(RuntimeError("shapes differ"))}))


def test_a_worker_that_dies_while_its_group_starts_is_a_loss() -> None:
    assert loss_of(ControllerError(RayActorError())).startswith("at the start: ")
    assert loss_of(ControllerError(ValueError("x"))) == ""
    assert policy(Coordinator(True)).make_decision(ControllerError(RayActorError())) is RETRY


def test_what_a_group_left_that_broke_at_its_start_is_ended() -> None:
    # Ray's own: `has_started` is true once the state is built, and only then is
    # there something to end.
    for name in ("has_started", "_clear_state"):
        assert callable(getattr(WorkerGroup, name)), name
    assert "_worker_group_state" in inspect.getsource(WorkerGroup.has_started)
    ended: list[str] = []

    class Broken:
        def __init__(self) -> None:
            self._worker_group_state = self

        def has_started(self) -> bool:
            return True

        def shutdown(self) -> None:
            ended.append("state")

        def _clear_state(self) -> None:
            ended.append("cleared")

    leftovers = ray_internals.Leftovers()
    leftovers.before_worker_group_start(None)
    leftovers.after_worker_group_start(Broken())
    leftovers.before_worker_group_start(None)
    assert ended == ["state", "cleared"]
    leftovers.after_worker_group_start(Broken())
    leftovers.after_worker_group_shutdown(None)
    leftovers.before_worker_group_start(None)
    assert ended == ["state", "cleared"]


class Room(FreshScalingPolicy):
    """The policy on a cluster whose room is a number."""

    def __init__(self, coordinator: Coordinator, workers: tuple[int, int]) -> None:
        super().__init__(ScalingConfig(num_workers=workers), ask=coordinator.ask)
        self.room = 0

    def _workers_that_fit(self, *, probe: bool) -> int:
        del probe
        return self.room

    def _maybe_send_resource_request(self) -> None:
        return


def running(workers: int, since_s: float) -> Any:
    class State:
        num_workers = workers
        start_time = since_s

    return State


def test_growth_waits_until_the_workers_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(ray_internals.time, "monotonic", lambda: now[0])
    coordinator = Coordinator()
    policy = Room(coordinator, (1, 4))

    def decide() -> Any:
        return policy.make_decision_for_running_worker_group(running(3, 900.0), None)

    policy.room = 4
    assert isinstance(decide(), NoopDecision)  # another node may follow
    now[0] += 3
    assert isinstance(decide(), NoopDecision)  # proposed, not yet held
    assert coordinator.told == [("propose", 4)]
    coordinator.is_held = True
    decision = decide()
    assert isinstance(decision, ResizeDecision)
    assert decision.num_workers == 4


def test_room_that_vanishes_takes_the_proposal_back(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(ray_internals.time, "monotonic", lambda: now[0])
    coordinator = Coordinator()
    policy = Room(coordinator, (1, 4))
    for policy.room, later_s in ((4, 3), (4, 1), (3, 1)):
        policy.make_decision_for_running_worker_group(running(3, 900.0), None)
        now[0] += later_s
    assert coordinator.told == [("propose", 4), ("propose", 0)]


def test_a_small_remainder_waits_for_the_next_node_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1000.0]
    monkeypatch.setattr(ray_internals.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(ray_internals, "_LOOK_AGAIN_S", 0.0)
    policy = Room(Coordinator(), (1, 4))
    decide = policy.make_decision_for_non_running_worker_group
    policy.room = 0
    assert isinstance(decide(), NoopDecision)
    policy.room = 1
    assert isinstance(decide(), NoopDecision)
    now[0] += 3
    policy.room = 2
    assert isinstance(decide(), NoopDecision)
    now[0] += 3.9
    assert isinstance(decide(), NoopDecision)
    now[0] += 0.2
    decision = decide()
    assert isinstance(decision, ResizeDecision)
    assert decision.num_workers == 2
    policy.room = 3
    assert isinstance(decide(), ResizeDecision)  # most of them are there: no waiting


def test_tune_still_has_the_parts_that_sweeps_build_on(tmp_path: Path) -> None:
    class Saves(tune.Trainable):
        def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
            return {"run": "a"}

    saved = Saves().save(str(tmp_path)).checkpoint
    assert Path(saved.path, ray_internals.DICT_CHECKPOINT_FILE).exists()
    assert callable(GlobalState.get_cluster_config)
    assert "_experiment_analysis" in inspect.getsource(tune.ResultGrid.__init__)
    returned = inspect.signature(TuneController._schedule_trial_save).return_annotation
    assert ray_internals.FutureSave.__name__ in str(returned)


def test_the_private_file_is_the_only_one_that_knows_rays_private_parts() -> None:
    import spotray

    root = Path(spotray.__file__).parent
    knowing = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if "ray._private" in (text := path.read_text())
        or "ray._raylet" in text
        or "ray.train.v2._internal" in text
        or "ray.train._internal" in text
        or "._experiment_analysis" in text
        or "import _DICT" in text
    }
    assert knowing == {
        "cluster/drain.py",
        "cluster/ray_autoscaler/seams.py",
        "lab/raystart.py",
        "train/ray_internals.py",
    }
