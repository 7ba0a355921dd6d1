"""On real Ray nodes: a job's on-demand workers go back to spot, and it loses no step."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml
from ray.train import RunConfig, ScalingConfig

from spotray import ElasticTrainer, SpotConfig
from spotray.clock import SystemClock, wait_until
from spotray.cluster.control import ControlConfig
from spotray.cluster.drain import drain_node
from spotray.cluster.memory import LaunchMemory
from spotray.controller.pools import ClusterPools
from spotray.controller.remember import StateFile
from spotray.controller.view import Pool
from spotray.events import (
    Drained,
    Event,
    NodeReplaced,
    NodeUp,
    ReplacementAsked,
    StepsDone,
    WorkerGroupStarted,
)
from spotray.lab.lab import Lab
from spotray.ledger.journal import read_journal
from spotray.ledger.recovery import summarize_recoveries
from spotray.market.offer import Market
from spotray.policy.spot_first import SpotFirst, SpotFirstConfig
from spotray.policy.view import Preempted
from spotray.storage import Store
from tests.train.ray_lab import STEPS_PER_EPOCH, assert_trained, events_of, of
from tests.train.workers import WorkerPool

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(840)]

EPOCHS = 16
WORKERS = 2
SPOT = Market.parse("aws/us-east-1a/g5.xlarge/spot")
CONTROL = ControlConfig(settle_s=2.0, ask_s=20.0, join_s=240.0, drain_s=60.0, rest_s=3.0)


@pytest.fixture(scope="module")
def workers() -> object:
    pool = WorkerPool(1)
    yield pool
    pool.close()


def undisturbed(world: object, folder: str) -> str:
    """The weights after the same loop in one process, without Ray."""
    from spotray.train.state import weights_sha256
    from tests.controller.lab_cloud import patient_loop

    until = Path(folder) / "until"
    until.touch()
    runs: list[object] = []
    patient_loop({"epochs": EPOCHS, "until": str(until)}, runs)
    return str(weights_sha256(runs[0]._models))  # type: ignore[attr-defined]


def test_on_demand_workers_of_a_job_return_to_spot_without_losing_a_step(
    tmp_path: Path, workers: WorkerPool
) -> None:
    from spotray.cluster.ray_autoscaler.requests import NodeRequest
    from spotray.controller.applications import running_jobs
    from spotray.controller.controller import Controller, Edges
    from tests.controller.lab_cloud import (
        POOL,
        LabCloud,
        LabHead,
        patient_loop,
        use_autoscaler_v2,
    )

    (tmp_path / "alone").mkdir()
    reference = str(workers.run(1, undisturbed, str(tmp_path / "alone"), timeout_s=400)[0])
    memory = LaunchMemory(tmp_path / "launches.jsonl")
    policy = SpotFirst(SpotFirstConfig(cooldown_s=4.0, cooldown_max_s=4.0))
    candidates = (SPOT, SPOT.on_demand())
    told: list[Event] = []
    until = tmp_path / "until"
    with Lab(workers=0, journal=tmp_path / "cluster") as lab:
        lab.connect(runtime_env={"env_vars": {"PYTHONPATH": str(Path(__file__).parents[2])}})
        use_autoscaler_v2(lab)
        cloud = LabCloud(lab, memory, policy, candidates, tell=told.append, most=WORKERS + 1)
        controller = Controller(
            ClusterPools(
                cloud="aws",
                pools={POOL: Pool(name=POOL, candidates=candidates, max_workers=WORKERS + 1)},
                max_workers=WORKERS + 1,
                control=CONTROL,
                policy=policy,
            ),
            Edges(
                head=LabHead(lab),
                request=NodeRequest("spotray-controller"),
                cloud=cloud,
                drain=lambda node_id, deadline_s, why: drain_node(
                    lab.address, node_id, deadline_s=deadline_s, why=why
                ),
                jobs=running_jobs,
                stop=lambda driver: "",
                tell=told.append,
            ),
            memory,
            state_file=StateFile(tmp_path / "controller.json"),
            writes_nodes=False,
        )
        stop = threading.Event()

        def replaced() -> int:
            return len(of(told, NodeReplaced))

        def open_the_market() -> None:
            """Spot is back once the job runs on on-demand nodes; the job may end after that."""
            wait_until(
                lambda: len([n for n in lab.nodes() if n.state == "ready"]) == WORKERS + 1,
                timeout_s=90,
                clock=SystemClock(),
            )
            wait_until(lambda: lab.step() >= 5, timeout_s=90, clock=SystemClock())
            cloud.has_spot = True
            wait_until(lambda: replaced() >= WORKERS, timeout_s=400, clock=SystemClock())
            until.touch()

        threads = [
            threading.Thread(target=controller.run, args=(stop,)),
            threading.Thread(target=open_the_market),
        ]
        with cloud:
            for thread in threads:
                thread.start()
            trainer = ElasticTrainer(
                patient_loop,
                train_loop_config={"epochs": EPOCHS, "until": str(until)},
                scaling_config=ScalingConfig(num_workers=(1, WORKERS)),
                run_config=RunConfig(name="returns", storage_path=str(tmp_path)),
                # A busy machine must not make a slow worker a lost one.
                spot=SpotConfig(
                    snapshot_interval_s=0.5, heartbeat_timeout_s=30.0, audit_samples=True
                ),
            )
            trainer.fit()
            kinds = {n.spot for n in lab.nodes() if n.name != "head" and n.deadline_s is None}
            stop.set()
            for thread in threads:
                thread.join()
    assert replaced() == WORKERS
    assert kinds == {True}
    events = events_of(trainer)
    assert assert_trained(events, epochs=EPOCHS).weights_sha256 == reference
    done = {s for e in of(events, StepsDone) for s in range(e.first_step, e.last_step + 1)}
    assert done == set(range(1, STEPS_PER_EPOCH * EPOCHS + 1))
    recoveries = summarize_recoveries(events).recoveries
    assert all(one.steps_lost == 0 for one in recoveries)
    assert {one.mode for one in recoveries} == {"live"}
    sizes = [e.world_size for e in of(events, WorkerGroupStarted)]
    assert sizes[-1] == WORKERS
    assert not cloud.ended, "the job moved by itself"
    assert not [fact for fact in memory.facts() if isinstance(fact, Preempted)]
    # Of each, the one that was not in vain: spot was out for a while.
    asked = {ask.node_id: ask for ask in of(told, ReplacementAsked)}
    drained, gone_ones = of(told, Drained), of(told, NodeReplaced)
    assert len(asked) == len(drained) == WORKERS
    for drain, gone in zip(drained, gone_ones, strict=True):
        ask = asked[drain.node_id]
        assert drain.node_id == gone.node_id
        assert ask.at_s < drain.at_s
        print(f"{gone.name}: new node there after {drain.at_s - ask.at_s:.1f} s,", end=" ")
        print(f"old one gone after {gone.seconds:.1f} s")


def test_the_process_watches_a_cluster_and_ends_in_order(tmp_path: Path) -> None:
    config = {
        "cluster_name": "lab",
        "max_workers": 2,
        "provider": {
            "type": "external",
            "module": "spotray.cluster.aws.SpotNodeProvider",
            "region": "us-east-1",
            "availability_zone": "us-east-1a",
            "launch_memory": str(tmp_path / "launches.jsonl"),
            "_config_cache_path": "as `ray up` adds it",
        },
        "head_node_type": "head",
        "available_node_types": {
            "head": {"node_config": {"InstanceType": "m5.large"}},
            "spot-worker": {"max_workers": 2, "node_config": {"InstanceType": "g5.xlarge"}},
        },
    }
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(config))
    journal, memory = tmp_path / "journal", LaunchMemory(tmp_path / "launches.jsonl")
    with Lab(workers=1) as lab:
        command = [sys.executable, "-m", "spotray.controller", "--ray-address", lab.address]
        command += ["--config", str(tmp_path / "cluster.yaml"), "--journal", str(journal)]
        with subprocess.Popen(command, env=os.environ | lab.environment()) as process:

            def told(kind: type[Event]) -> list[Event]:
                return of(read_journal(Store.at(journal)), kind) if journal.exists() else []

            clock = SystemClock()
            try:
                assert wait_until(lambda: len(told(NodeUp)) == 2, timeout_s=60, clock=clock)
                roles = {up.role: up for up in told(NodeUp) if isinstance(up, NodeUp)}
                assert set(roles) == {"head", "worker"}
                up = roles["worker"]
                (node,) = (one for one in lab.nodes() if one.name != "head")
                assert (up.node_id, up.node_type, up.spot) == (node.node_id, "spot-worker", True)
                lab.preempt(node.name, notice_s=20)
                assert wait_until(lambda: bool(memory.facts()), timeout_s=15, clock=clock)
                (fact,) = memory.facts()
                assert isinstance(fact, Preempted)
                assert fact.market.spot
            finally:
                process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
