"""Draining a real Ray: fails loudly where a new Ray does otherwise than `drain.py` says."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spotray.clock import SystemClock, wait_until
from spotray.cluster.drain import drain_node, find_node_id
from spotray.errors import ClusterUnreachable, ConfigError, DrainRejected
from spotray.events import Drained, NodeDown
from spotray.lab.metadata import MetadataServer, NodeMetadata
from spotray.ledger.journal import read_journal
from spotray.storage import Store

NOBODY = "0f" * 28
WORKER_IP = "127.0.0.2"
METADATA = NodeMetadata(
    instance_id="i-1",
    instance_type="g5.xlarge",
    zone="us-east-1a",
    region="us-east-1",
    life_cycle="spot",
)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def until(ready: Callable[[], bool], timeout_s: float = 30) -> bool:
    return wait_until(ready, timeout_s=timeout_s, clock=SystemClock())


class Ray:
    """A head and one worker node, seen through Ray's own state, never by ``ray.init()``."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        common: dict[str, Any] = {
            "object_store_memory": 80 * 2**20,
            "include_dashboard": False,
        }
        self.cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 0, "gcs_server_port": free_port(), **common},
        )
        self.address: str = self.cluster.address
        assert self.cluster.head_node is not None
        self.head_id: str = self.cluster.head_node.node_id
        # An address of its own, as each machine has; all of 127/8 is this machine.
        worker = self.cluster.add_node(num_cpus=1, node_ip_address=WORKER_IP, **common)
        self.worker_id: str = worker.node_id

    def draining_s(self) -> dict[str, float]:
        """Deadlines of the nodes that are draining, Unix seconds."""
        return {n: ms / 1000 for n, ms in self._state().get_draining_nodes().items()}

    def is_alive(self, node_id: str) -> bool:
        return any(n["NodeID"] == node_id and n["Alive"] for n in self._state().node_table())

    def death_of(self, node_id: str) -> str:
        (node,) = (n for n in self._state().node_table() if n["NodeID"] == node_id)
        return str(node["DeathReasonMessage"])

    def _state(self) -> Any:
        from ray._private.state import GlobalState
        from ray._raylet import GcsClientOptions  # type: ignore[attr-defined]

        state = GlobalState()
        state._initialize_global_state(
            GcsClientOptions.create(
                self.address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False
            )
        )
        return state


@pytest.fixture
def ray_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ray]:
    folder = tempfile.mkdtemp(prefix="spotray-")  # not tmp_path: sockets' paths are short
    monkeypatch.setenv("RAY_TMPDIR", folder)
    cluster = Ray()
    yield cluster
    cluster.cluster.shutdown()
    shutil.rmtree(folder, ignore_errors=True)  # the last of Ray may still write


# A process of its own, so that this one never calls ray.init(); it prints when the
# worker node is busy, and ends when told.
BUSY = """
import sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
@ray.remote(num_cpus=1)
class Busy:
    def ready(self): return True
busy = Busy.remote()
ray.get(busy.ready.remote())
print("busy", flush=True)
sys.stdin.read()
"""


@pytest.mark.ray
@pytest.mark.slow
def test_a_node_is_drained_drained_again_and_leaves_when_idle(ray_cluster: Ray) -> None:
    address, node_id = ray_cluster.address, ray_cluster.worker_id
    now_s = float(int(time.time()))
    driver = subprocess.Popen(
        [sys.executable, "-c", BUSY, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"RAY_DEDUP_LOGS": "0"},
        text=True,
    )
    with driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "busy\n"
        for deadline_s in (now_s + 600, now_s + 60, now_s + 86400):  # the last one counts
            drain_node(address, node_id, deadline_s=deadline_s, why="preemption notice of a test")
            assert ray_cluster.draining_s() == {node_id: deadline_s}
        assert ray_cluster.is_alive(node_id)
        driver.communicate()  # closes its stdin: it ends, and with it the actor
    assert until(lambda: not ray_cluster.is_alive(node_id))
    assert "preemption notice of a test" in ray_cluster.death_of(node_id)
    with pytest.raises(DrainRejected, match="not alive"):
        drain_node(address, node_id, deadline_s=now_s + 60, why="too late")


@pytest.mark.ray
@pytest.mark.slow
def test_what_ray_would_drain_to_no_good_is_refused(ray_cluster: Ray) -> None:
    from ray._raylet import GcsClient  # type: ignore[attr-defined]

    address, soon_s = ray_cluster.address, time.time() + 60
    accepted, _ = GcsClient(address=address).drain_node(NOBODY, 2, "", 1)
    assert accepted, "Ray now refuses unknown nodes itself: drain.py may do with less"
    with pytest.raises(DrainRejected, match=f"{NOBODY} is not alive"):
        drain_node(address, NOBODY, deadline_s=soon_s, why="test")
    with pytest.raises(DrainRejected, match="head and idle"):
        drain_node(address, ray_cluster.head_id, deadline_s=soon_s, why="test")
    assert ray_cluster.is_alive(ray_cluster.head_id)
    assert ray_cluster.draining_s() == {}


@pytest.mark.ray
@pytest.mark.slow
def test_an_agent_finds_its_node_by_address_and_drains_it(ray_cluster: Ray, tmp_path: Path) -> None:
    address, node_id = ray_cluster.address, ray_cluster.worker_id
    assert find_node_id(address, WORKER_IP) == node_id
    assert find_node_id(address, "192.0.2.77") is None
    with MetadataServer() as server:
        server.add("n1", METADATA)
        command = [sys.executable, "-m", "spotray.agent", "--cloud", "aws", "--poll-s", "0.2"]
        command += ["--endpoint", server.url_for("n1"), "--journal", str(tmp_path)]
        command += ["--ray-address", address, "--node-ip", WORKER_IP]
        with subprocess.Popen(command) as agent:
            server.notice("n1", at_s=time.time() + 60)
            journal = Store.at(tmp_path)
            assert until(lambda: any(isinstance(e, Drained) for e in read_journal(journal)))
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(30) == 0
    assert until(lambda: not ray_cluster.is_alive(node_id))  # it was idle
    assert ray_cluster.death_of(node_id).endswith("preemption notice from aws/instance-action")
    down = read_journal(journal)[-1]
    assert isinstance(down, NodeDown)
    assert (down.node_id, down.cause, down.noticed) == (node_id, "preemption", True)


def test_a_head_that_does_not_answer_is_told_within_seconds() -> None:
    start_s = time.monotonic()
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(ClusterUnreachable, match=address):
        drain_node(address, NOBODY, deadline_s=time.time() + 60, why="test")
    with pytest.raises(ClusterUnreachable, match=address):
        find_node_id(address, "127.0.0.1")
    assert time.monotonic() - start_s < 10


@pytest.mark.parametrize("address", ["", "auto", "10.0.0.1", ":6379", "head:0", "head:x"])
def test_an_address_that_is_none_is_a_config_error(address: str) -> None:
    with pytest.raises(ConfigError, match="write HOST:PORT"):
        drain_node(address, NOBODY, deadline_s=1.0, why="test")


def test_a_duration_in_the_place_of_a_time_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="Unix seconds"):
        drain_node("head:6379", NOBODY, deadline_s=-1.0, why="test")
