"""Live recovery on real Ray nodes that are really lost."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray.train import FailureConfig, TrainingFailedError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from spotray import ConfigError, ElasticTrainer
from spotray.clock import SystemClock, wait_until
from spotray.events import (
    Event,
    FellBack,
    JobEnded,
    MemberFencedOut,
    StepsDone,
    TrainingDone,
    WorkerGroupStarted,
)
from spotray.lab.lab import Lab
from spotray.lab.scenario import Scenario, ScriptedEvent
from spotray.ledger.recovery import Recovery, summarize_recoveries
from spotray.train.placing import ClusterWorkers
from tests.train import ray_lab
from tests.train.ray_jobs import plain_loop
from tests.train.ray_lab import (
    STEPS_PER_EPOCH,
    WORKERS,
    assert_trained,
    events_of,
    of,
    tracked,
    undisturbed,
)
from tests.train.workers import WorkerPool

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300)]

EPOCHS = 16


def trainer_of(tmp_path: Path, name: str, **more: Any) -> ElasticTrainer:
    return ray_lab.trainer_of(tmp_path, name, epochs=EPOCHS, **more)


def reached(trainer: ElasticTrainer, step: int) -> bool:
    """Whether the job is at or beyond a step."""
    return bool((trainer.status() or {"step": 0})["step"] >= step)


@pytest.fixture(scope="module")
def reference(workers: WorkerPool) -> str:
    return str(workers.run(1, undisturbed, EPOCHS)[0])


def assert_unharmed(events: list[Event], reference: str) -> list[Recovery]:
    """The job ended as an undisturbed one, all of its steps are told; its recoveries."""
    assert assert_trained(events, epochs=EPOCHS).weights_sha256 == reference
    told = {s for e in of(events, StepsDone) for s in range(e.first_step, e.last_step + 1)}
    assert told == set(range(1, STEPS_PER_EPOCH * EPOCHS + 1))
    return list(summarize_recoveries(events).recoveries)


def test_losses_with_and_without_notice_restart_no_survivor(
    cluster: Lab, tmp_path: Path, reference: str
) -> None:
    script = (
        ScriptedEvent(at_step=10, action="kill", rank=2),
        ScriptedEvent(at_step=50, action="notice", rank=0, notice_s=7),
    )
    play = cluster.play(Scenario(workers=WORKERS, events=script))
    trainer = trainer_of(tmp_path, "loss", config={"slow_from": 70, "slow_below": WORKERS})
    result = trainer.fit()
    play.stop()
    events = events_of(trainer)
    recoveries = assert_unharmed(events, reference)
    assert {r.mode for r in recoveries} == {"live"}
    assert [r.kind for r in recoveries if r.kind != "resize"] == ["silent", "noticed"]
    assert all(r.steps_lost == 0 for r in recoveries)
    # Everybody is there again in the end, without a restart of those that stayed.
    assert of(events, WorkerGroupStarted)[-1].world_size == WORKERS
    assert result.metrics["weights_sha256"] == reference
    assert result.metrics["seen"] == EPOCHS - 1
    from torch.distributed.checkpoint import FileSystemReader

    names = FileSystemReader(result.checkpoint.path).read_metadata().state_dict_metadata
    assert "/model/head.weight" in names
    # TensorBoard was told of all of it by default, as of one run without losses.
    steps = [step for step, _ in tracked(trainer, "train/loss")]
    assert steps == sorted(set(steps))
    assert steps[-1] == STEPS_PER_EPOCH * EPOCHS
    assert [value for _, value in tracked(trainer, "seen")] == list(range(EPOCHS))


def test_a_frozen_node_is_fenced_out_and_never_writes_again(
    cluster: Lab, tmp_path: Path, reference: str
) -> None:
    script = (ScriptedEvent(at_step=20, action="freeze", rank=0),)
    play = cluster.play(Scenario(workers=WORKERS, events=script))
    trainer = trainer_of(tmp_path, "frozen")

    def thaw_later() -> None:
        if wait_until(lambda: reached(trainer, 50), timeout_s=120, clock=SystemClock()):
            for node in cluster.nodes():
                if node.state == "frozen":
                    cluster.thaw(node.name)

    thawing = threading.Thread(target=thaw_later)
    thawing.start()
    trainer.fit()
    play.stop()
    thawing.join()
    events = events_of(trainer)
    recoveries = assert_unharmed(events, reference)
    assert recoveries[0].mode == "live"
    assert recoveries[0].steps_lost == 0
    assert len(of(events, MemberFencedOut)) >= 1


def test_a_process_and_the_coordinator_are_killed(
    cluster: Lab, tmp_path: Path, reference: str
) -> None:
    trainer = trainer_of(tmp_path, "processes")

    def kill_both() -> None:
        if wait_until(lambda: reached(trainer, 15), timeout_s=120, clock=SystemClock()):
            os.kill(_worker_processes()[0].pid, signal.SIGKILL)
        if wait_until(lambda: reached(trainer, 40), timeout_s=120, clock=SystemClock()):
            actor = ray.get_actor("spotray-coordinator-processes", namespace="spotray")
            ray.kill(actor, no_restart=False)

    killer = threading.Thread(target=kill_both)
    killer.start()
    trainer.fit()
    killer.join()
    recoveries = assert_unharmed(events_of(trainer), reference)
    assert recoveries, "the killed process was not missed"
    assert all(r.mode == "live" and r.steps_lost == 0 for r in recoveries)


def test_all_nodes_lost_at_once_go_on_from_the_checkpoint(
    cluster: Lab, tmp_path: Path, reference: str
) -> None:
    script = (ScriptedEvent(at_step=45, action="kill_all"),)
    play = cluster.play(Scenario(workers=WORKERS, events=script))
    trainer = trainer_of(tmp_path, "all")
    trainer.fit()
    play.stop()
    recoveries = assert_unharmed(events_of(trainer), reference)
    assert [r.source for r in recoveries if r.all_lost] == ["checkpoint"]


def test_a_plain_ray_train_loop_falls_back_to_restarts(cluster: Lab, tmp_path: Path) -> None:
    config = {"steps": 30, "marker": str(tmp_path / "under-way")}
    trainer = trainer_of(
        tmp_path,
        "plain",
        loop=plain_loop,
        config=config,
        failure_config=FailureConfig(max_failures=0),
    )
    result = trainer.fit()
    assert result.metrics["step"] == 20
    fell = of(events_of(trainer), FellBack)
    assert [e.to for e in fell] == ["restart"]
    assert "Ray Train" in fell[0].why


def test_a_bug_of_the_users_ends_the_job_at_once(cluster: Lab, tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, "bug", config={"bug_at": 12, "step_s": 0.0}, workers=(1, 2))
    with pytest.raises(TrainingFailedError, match="a bug of the user's"):
        trainer.fit()
    events = events_of(trainer)
    assert len(of(events, WorkerGroupStarted)) == 1
    assert of(events, JobEnded)[-1].status == "failed"


def test_a_second_job_of_a_name_is_refused_while_the_first_runs(
    cluster: Lab, tmp_path: Path
) -> None:
    first = trainer_of(tmp_path, "twice", config={"epochs": 8, "step_s": 0.4})
    thread = threading.Thread(target=first.fit)
    thread.start()
    assert wait_until(lambda: first.status() is not None, timeout_s=60, clock=SystemClock())
    with pytest.raises(ConfigError, match="a job named 'twice' is running"):
        trainer_of(tmp_path, "twice").fit()
    thread.join()
    assert of(events_of(first), TrainingDone), "the first job was disturbed"


def test_a_place_that_another_job_took_is_given_up(
    cluster: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = ClusterWorkers.start
    others: list[Any] = []

    def too_late(self: ClusterWorkers, node_id: str) -> Any:
        if not others:
            here = NodeAffinitySchedulingStrategy(node_id, soft=False)
            others.append(ray.remote(_Other).options(num_cpus=1, scheduling_strategy=here).remote())
            ray.get(others[0].is_here.remote())
        return start(self, node_id)

    monkeypatch.setattr(ClusterWorkers, "start", too_late)
    trainer = trainer_of(tmp_path, "taken", workers=(2, 2))
    try:
        trainer.fit()
    finally:
        ray.kill(others[0])
    group = of(events_of(trainer), WorkerGroupStarted)[0]
    assert group.world_size == 2
    assert_trained(events_of(trainer), epochs=EPOCHS)


class _Other:
    """A worker of another job."""

    def is_here(self) -> bool:
        return True


def test_nothing_of_the_jobs_is_left(cluster: Lab) -> None:
    alive = [
        actor["Name"] or actor["ClassName"]
        for actor in ray._private.state.actors().values()
        if actor["State"] == "ALIVE"
        and (actor["Name"].startswith("spotray-coordinator") or "LiveWorker" in str(actor))
    ]
    assert alive == []
    # Ray ends them after the call that asked for it is back.
    assert wait_until(lambda: not _worker_processes(), timeout_s=20, clock=SystemClock())


def _worker_processes() -> list[psutil.Process]:
    """The processes of live workers in the labs of this test run: others may have some, too."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            words = process.cmdline()
        except psutil.NoSuchProcess:
            continue
        if " ".join(words).startswith("ray::LiveWorker"):
            found.append(process)
    return found
