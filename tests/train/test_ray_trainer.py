"""`ElasticTrainer` on real Ray nodes that are really lost."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.train import FailureConfig, TrainingFailedError

from spotray import ConfigError, StateMismatch
from spotray.clock import SystemClock, wait_until
from spotray.events import (
    CheckpointCommitted,
    Event,
    FellBack,
    JobEnded,
    Restored,
    SnapshotTaken,
    TrainingDone,
    Warned,
    WorkerGroupStarted,
)
from spotray.lab.lab import Lab
from spotray.lab.scenario import Scenario, ScriptedEvent
from spotray.ledger.recovery import summarize_recoveries
from spotray.ledger.rundir import load_run
from spotray.storage import Store
from spotray.train.checkpoint_files import read_checkpoint
from tests.train.ray_jobs import plain_loop
from tests.train.ray_lab import (
    STEPS_PER_EPOCH,
    WORKERS,
    assert_trained,
    events_of,
    of,
    trainer_of,
    undisturbed,
)
from tests.train.workers import WorkerPool

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300)]

EPOCHS = 12


def fit(
    tmp_path: Path, name: str, *, recovery: str = "restart", **more: Any
) -> tuple[Any, list[Event]]:
    """Train; the result and the run's facts."""
    trainer = trainer_of(tmp_path, name, epochs=EPOCHS, recovery=recovery, **more)
    result = trainer.fit()
    return result, events_of(trainer)


@pytest.fixture(scope="module")
def reference(workers: WorkerPool) -> str:
    return str(workers.run(1, undisturbed, EPOCHS)[0])


def assert_unharmed(events: list[Event], reference: str) -> None:
    assert assert_trained(events, epochs=EPOCHS).weights_sha256 == reference


def test_one_node_lost_without_notice_then_another_with(
    cluster: Lab, tmp_path: Path, reference: str
) -> None:
    script = (
        ScriptedEvent(at_step=10, action="kill", rank=2),
        ScriptedEvent(at_step=25, action="notice", rank=0, notice_s=7),
    )
    play = cluster.play(Scenario(workers=WORKERS, events=script))
    result, events = fit(tmp_path, "loss")
    play.stop()
    assert_unharmed(events, reference)
    summary = summarize_recoveries(events)
    assert (summary.preemptions_noticed, summary.preemptions_silent) == (1, 1)
    assert summary.steps_lost_noticed == 0
    for group in of(events, WorkerGroupStarted):
        placed_at_s, process_at_s = group.placed_at_s or 0.0, group.process_at_s or 0.0
        assert abs(process_at_s - placed_at_s) < 10  # the kernel's clock, and may be prestarted
        assert process_at_s < (group.imported_at_s or 0.0) <= group.at_s
    assert result.metrics["weights_sha256"] == reference
    assert result.metrics["seen"] == EPOCHS - 1
    # Readable without spotray.
    from torch.distributed.checkpoint import FileSystemReader

    names = FileSystemReader(result.checkpoint.path).read_metadata().state_dict_metadata
    assert "/model/head.weight" in names


@pytest.mark.timeout(600)  # four worker groups, one after the other
def test_a_sharded_model_falls_back_to_restarts_and_survives_from_storage(
    cluster: Lab, tmp_path: Path
) -> None:
    script = (
        ScriptedEvent(at_step=10, action="capacity", count=2, notice_s=0),
        ScriptedEvent(at_step=25, action="capacity", count=1, notice_s=20),
    )
    play = cluster.play(Scenario(workers=WORKERS, events=script))
    result, events = fit(tmp_path, "sharded", config={"sharded": True}, recovery="live")
    play.stop()
    (fell,) = of(events, FellBack)
    assert fell.to == "restart"
    assert fell.why.startswith("fully_shard")
    assert_trained(events, epochs=EPOCHS)
    sources = [(e.source, e.step > 0) for e in of(events, Restored)]
    assert sources[0] == ("fresh", False)
    assert set(sources[1:]) == {("checkpoint", True)}
    sizes = [g.world_size for g in of(events, WorkerGroupStarted) if not g.live]
    assert sizes in ([3, 2], [3, 2, 1])  # a quick machine is through before the deadline
    assert not of(events, SnapshotTaken)
    summary = summarize_recoveries(events)
    assert summary.preemptions_silent == 1
    assert summary.steps_lost_noticed == 0
    # Put together from the pieces of three workers, by a reader that has no group.
    weights = {
        n.removeprefix("/model/") for n in read_checkpoint(Store.at(result.checkpoint.path)).tensors
    }
    assert "encoder.layers.1.linear2.weight" in weights


def test_all_nodes_under_notice_reach_storage_in_time(
    cluster: Lab, tmp_path: Path, reference: str
) -> None:
    script = (ScriptedEvent(at_step=15, action="notice", count=WORKERS, notice_s=12),)
    cluster.set_capacity(WORKERS)  # no room for others before these are gone
    play = cluster.play(Scenario(workers=WORKERS, events=script))
    _, events = fit(tmp_path, "all")
    play.stop()
    assert_unharmed(events, reference)
    summary = summarize_recoveries(events)
    assert summary.preemptions_noticed == WORKERS
    assert summary.steps_lost_noticed == 0
    assert [e.source for e in of(events, Restored)][1] == "checkpoint"


def test_a_frozen_node_is_left_behind(cluster: Lab, tmp_path: Path, reference: str) -> None:
    script = (ScriptedEvent(at_step=20, action="freeze", rank=1),)
    play = cluster.play(Scenario(workers=WORKERS, events=script))
    _, events = fit(tmp_path, "frozen")
    play.stop()
    for node in cluster.nodes():
        if node.state == "frozen":
            cluster.kill(node.name)
    assert_unharmed(events, reference)
    assert len(of(events, WorkerGroupStarted)) >= 2


def test_a_notice_that_is_taken_back_loses_nothing(
    cluster: Lab, tmp_path: Path, reference: str
) -> None:
    script = (
        ScriptedEvent(at_step=20, action="notice", rank=2, notice_s=60),
        ScriptedEvent(at_step=25, action="cancel", rank=2),
    )
    cluster.set_capacity(WORKERS)  # a node more would be moved to at once
    play = cluster.play(Scenario(workers=WORKERS, events=script))
    _, events = fit(tmp_path, "cancelled")
    play.stop()
    assert_unharmed(events, reference)
    summary = summarize_recoveries(events)
    assert summary.preemptions_noticed + summary.preemptions_silent == 0
    assert summary.steps_lost_noticed == 0


def test_checkpoints_and_journal_live_in_a_bucket(
    cluster: Lab, tmp_path: Path, reference: str, s3_server: Any
) -> None:
    # Workers get the environment of the raylets, which knows no bucket: the URL says it.
    endpoint = s3_server.endpoint_url.removeprefix("http://")
    keys = "testing:testing@"
    storage = f"s3://{keys}{s3_server.bucket}/runs?endpoint_override={endpoint}&scheme=http"
    script = (ScriptedEvent(at_step=35, action="kill_all"),)
    play = cluster.play(Scenario(workers=WORKERS, events=script))
    _, events = fit(tmp_path, "bucket", storage=storage)
    play.stop()
    assert_unharmed(events, reference)
    assert "checkpoint" in [e.source for e in of(events, Restored)]
    assert of(events, CheckpointCommitted)[-1].step == STEPS_PER_EPOCH * EPOCHS


def test_a_bug_of_the_users_ends_the_job_at_once(cluster: Lab, tmp_path: Path) -> None:
    with pytest.raises(TrainingFailedError, match="a bug of the user's"):
        fit(tmp_path, "bug", config={"bug_at": 12, "step_s": 0.0}, workers=(1, 2))
    events = list(load_run(tmp_path / "bug").events)
    assert len(of(events, WorkerGroupStarted)) == 1
    assert of(events, JobEnded)[-1].status == "failed"


def test_a_name_goes_on_where_it_stopped_again_and_again(cluster: Lab, tmp_path: Path) -> None:
    quick = {"step_s": 0.0}
    # Ray Train refuses a job whose recorded checkpoint is gone: the third start tells.
    for epochs, start in ((1, (0, "fresh")), (2, (5, "checkpoint")), (3, (10, "checkpoint"))):
        config = {**quick, "epochs": epochs}
        _, events = fit(tmp_path, "again", config=config, workers=(1, 1))
        assert [(e.step, e.source) for e in of(events, Restored)][-1] == start
        assert of(events, TrainingDone)[-1].step == STEPS_PER_EPOCH * epochs
    config = {**quick, "epochs": 4, "samples": 80}
    with pytest.raises(StateMismatch, match="samples was 70 and is 80 now") as caught:
        fit(tmp_path, "again", config=config, workers=(1, 1))
    assert "\n" not in str(caught.value)


def test_storage_that_cannot_be_written_is_found_before_anything_starts(
    cluster: Lab, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ConfigError, match="cannot write to .*file/x/spotray") as caught:
        fit(tmp_path, "x", storage=str(tmp_path / "file"))
    assert "\n" not in str(caught.value)


def test_a_plain_ray_train_loop_survives_with_its_own_checkpoints(
    cluster: Lab, tmp_path: Path
) -> None:
    marker = tmp_path / "under-way"

    def kill_one() -> None:
        if wait_until(marker.exists, timeout_s=120, clock=SystemClock()):
            cluster.kill(sorted(n.name for n in cluster.nodes() if n.spot)[0])

    killer = threading.Thread(target=kill_one)
    killer.start()
    result, events = fit(
        tmp_path,
        "plain",
        loop=plain_loop,
        config={"steps": 200, "marker": str(marker)},
        failure_config=FailureConfig(max_failures=0),
    )
    killer.join()
    assert result.metrics["step"] == 190  # the last one with a checkpoint, as Ray has it
    assert of(events, JobEnded)[-1].status == "finished"
    assert len(of(events, WorkerGroupStarted)) >= 2
    assert not of(events, Warned)


def test_nothing_of_the_jobs_is_left_in_ray(cluster: Lab) -> None:
    alive = [
        actor["Name"]
        for actor in ray._private.state.actors().values()
        if actor["State"] == "ALIVE" and actor["Name"].startswith("spotray-coordinator")
    ]
    assert alive == []
