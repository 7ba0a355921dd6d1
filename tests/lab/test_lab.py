"""One lab for all tests of this file: each leaves it with its workers ready."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
import ray

from spotray.clock import SystemClock, wait_until
from spotray.errors import ConfigError, LabError
from spotray.events import (
    CapacityChanged,
    Drained,
    Event,
    FaultInjected,
    NodeDown,
    NodeReady,
    NodeUp,
    NoticeReceived,
    PriceChanged,
)
from spotray.lab.fleet import LabNode
from spotray.lab.lab import Lab
from spotray.lab.raystart import check_shm
from spotray.lab.scenario import Scenario, ScriptedEvent
from spotray.ledger.journal import read_journal
from spotray.storage import Store

pytestmark = pytest.mark.ray
WORKERS = 2
E = TypeVar("E", bound=Event)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    scenario = Scenario(workers=WORKERS, provisioning_s=0.1, notice_s=60)
    journal = tmp_path_factory.mktemp("journal")
    with Lab(scenario=scenario, journal=journal, agent_poll_s=0.2) as lab:
        lab.connect(logging_level="ERROR")
        yield lab
    assert not ray.is_initialized()


@pytest.fixture(autouse=True)
def _complete(lab: Lab) -> Iterator[None]:
    yield
    lab.wait_for_workers(WORKERS, timeout_s=60)


def spot_nodes(lab: Lab) -> list[LabNode]:
    return [node for node in lab.nodes() if node.spot and node.state == "ready"]


def named(lab: Lab, name: str) -> LabNode:
    return next(node for node in lab.nodes() if node.name == name)


def eventually(true: Callable[[], Any], timeout_s: float = 20.0) -> None:
    assert wait_until(lambda: bool(true()), timeout_s=timeout_s, clock=SystemClock())


def ray_node(node_id: str) -> dict[str, Any]:
    return next(node for node in ray.nodes() if node["NodeID"] == node_id)


def journal(lab: Lab) -> list[Event]:
    assert lab._journal is not None
    lab._journal.flush()
    return read_journal(Store.at(lab.environment()["SPOTRAY_JOURNAL"]))


def facts(lab: Lab, kind: type[E], node_id: str) -> list[E]:
    events = [event for event in journal(lab) if isinstance(event, kind)]
    return [event for event in events if event.node_id == node_id]  # type: ignore[attr-defined]


def on(node: LabNode) -> Any:
    """Ray options that put a task on that node."""
    return {"num_cpus": 1, "label_selector": {"ray.io/node-id": node.node_id}}


def test_ray_sees_each_node_with_its_market_and_an_address_of_its_own(lab: Lab) -> None:
    alive = [node for node in ray.nodes() if node["Alive"]]
    assert len({node["NodeManagerAddress"] for node in alive}) == len(alive)
    head = ray_node(lab.nodes()[0].node_id)
    assert head["Labels"]["ray.io/market-type"] == "on-demand"
    assert "CPU" not in head["Resources"]
    for node in spot_nodes(lab):
        seen = ray_node(node.node_id)
        assert seen["NodeManagerAddress"] == node.ip
        assert seen["Resources"]["CPU"] == 1
        assert seen["Labels"]["ray.io/market-type"] == "spot"
        assert seen["Labels"]["ray.io/availability-zone"] == "us-east-1a"
        assert seen["Labels"]["ray.io/availability-region"] == "us-east-1"


def test_a_worker_finds_the_memory_and_the_disk_of_its_node(lab: Lab) -> None:
    @ray.remote
    def environment() -> dict[str, str]:
        import os

        return dict(os.environ)

    node = spot_nodes(lab)[0]
    seen = ray.get(environment.options(**on(node)).remote())
    assert seen["SPOTRAY_SHM_DIR"] == str(node.shm_dir)
    assert seen["SPOTRAY_NODE_DIR"] == str(node.node_dir)
    assert Path(seen["TMPDIR"]).parent == node.node_dir
    assert seen["GLOO_SOCKET_IFNAME"] == "lo"


def test_the_journal_tells_what_each_node_costs(lab: Lab) -> None:
    node = spot_nodes(lab)[0]
    (up,) = facts(lab, NodeUp, node.node_id)
    (ready,) = facts(lab, NodeReady, node.node_id)
    assert (up.market, up.role, up.spot) == ("aws/us-east-1a/g5.xlarge/spot", "worker", True)
    assert (up.usd_per_hour, up.on_demand_usd_per_hour) == (0.4062, 1.006)
    assert up.name == node.name
    assert up.at_s < ready.at_s < up.at_s + 30


def test_a_killed_node_takes_its_memory_and_disk_along_and_is_replaced(lab: Lab) -> None:
    before = spot_nodes(lab)
    node = before[0]
    (node.shm_dir / "snapshot").write_bytes(b"x")
    (node.node_dir / "file").write_bytes(b"x")
    lab.kill(node.name)
    assert not node.shm_dir.exists()
    assert not node.node_dir.exists()
    eventually(lambda: not ray_node(node.node_id)["Alive"], 5)
    lab.wait_for_workers(WORKERS)
    assert {n.name for n in spot_nodes(lab)} - {n.name for n in before}
    (down,) = facts(lab, NodeDown, node.node_id)
    (fault,) = facts(lab, FaultInjected, node.node_id)
    assert (down.cause, down.noticed, fault.fault) == ("preemption", False, "kill")
    with pytest.raises(LabError, match=f"{node.name}.*it is gone"):
        lab.kill(node.name)


def test_a_notice_is_heard_and_the_node_is_taken_at_the_deadline(lab: Lab) -> None:
    node = spot_nodes(lab)[0]
    deadline_s = lab.preempt(node.name, notice_s=5)
    assert named(lab, node.name).deadline_s == deadline_s
    eventually(lambda: facts(lab, Drained, node.node_id), 5)
    (heard,) = facts(lab, NoticeReceived, node.node_id)
    assert heard.deadline_s == pytest.approx(deadline_s, abs=1)
    lab.wait_for_workers(WORKERS)  # the replacement does not wait for the loss
    eventually(lambda: node.name not in [n.name for n in lab.nodes()], 10)
    (down,) = facts(lab, NodeDown, node.node_id)
    assert (down.cause, down.noticed) == ("preemption", True)
    assert down.at_s == pytest.approx(deadline_s, abs=0.5)


def test_a_second_notice_moves_the_deadline_only_forward(lab: Lab) -> None:
    name = spot_nodes(lab)[0].name
    first_s = lab.preempt(name, notice_s=30)
    assert lab.preempt(name, notice_s=60) == first_s
    earlier_s = lab.preempt(name, notice_s=0.5)
    assert earlier_s < first_s
    eventually(lambda: name not in [n.name for n in lab.nodes()], 5)


def test_a_cancelled_notice_leaves_the_machine_there_with_a_fresh_ray(lab: Lab) -> None:
    node = spot_nodes(lab)[0]
    (node.shm_dir / "snapshot").write_bytes(b"x")
    lab.preempt(node.name, notice_s=60)
    eventually(lambda: named(lab, node.name).state == "drained")  # idle: its raylet leaves
    lab.cancel_notice(node.name)
    eventually(lambda: named(lab, node.name).state == "ready")
    fresh = named(lab, node.name)
    assert fresh.node_id != node.node_id
    assert fresh.started_at_s == node.started_at_s
    assert (fresh.shm_dir / "snapshot").exists()
    assert ray_node(fresh.node_id)["Alive"]
    assert facts(lab, NodeUp, fresh.node_id)[0].name == node.name
    assert not facts(lab, NodeDown, node.node_id)
    with pytest.raises(LabError, match="no notice"):
        lab.cancel_notice(node.name)
    lab.kill(node.name)  # the agent of the fresh one was there, too: one more than wanted now


def test_a_frozen_node_is_dead_to_ray_and_comes_back_when_thawed(lab: Lab) -> None:
    node = spot_nodes(lab)[0]
    begin_s = time.monotonic()
    lab.freeze(node.name)
    eventually(lambda: not ray_node(node.node_id)["Alive"], 15)
    assert time.monotonic() - begin_s < 10
    assert node.shm_dir.exists()
    assert named(lab, node.name).state == "frozen"
    lab.thaw(node.name)
    eventually(lambda: named(lab, node.name).node_id != node.node_id, 30)
    lab.wait_for_workers(WORKERS)
    assert [f.fault for f in facts(lab, FaultInjected, node.node_id)] == ["freeze", "thaw"]


def test_a_frozen_node_can_be_killed(lab: Lab) -> None:
    node = spot_nodes(lab)[0]
    lab.freeze(node.name)
    lab.kill(node.name)
    assert not node.shm_dir.exists()


def test_a_supervisor_that_is_killed_takes_its_node_along(lab: Lab) -> None:
    node = spot_nodes(lab)[0]
    supervised = next(m for m in lab._fleet.workers() if m.name == node.name).supervised
    assert supervised is not None
    supervisor = psutil.Process(supervised.pid)
    family = supervisor.children(recursive=True)
    assert "raylet" in [process.name() for process in family]
    supervisor.kill()
    eventually(lambda: node.name not in [n.name for n in lab.nodes()], 10)
    _, left = psutil.wait_procs(family, timeout=5)
    assert [p for p in left if p.status() != psutil.STATUS_ZOMBIE] == []
    assert not node.shm_dir.exists()
    assert facts(lab, NodeDown, node.node_id)[0].cause == "failure"


def test_capacity_takes_the_youngest_and_gives_back(lab: Lab) -> None:
    eventually(lambda: len(spot_nodes(lab)) == WORKERS)
    oldest = spot_nodes(lab)[0].name
    lab.set_capacity(1, notice_s=0)
    eventually(lambda: [n.name for n in lab.nodes() if n.spot] == [oldest])
    with pytest.raises(LabError, match="holds 1 spot nodes"):
        lab.add_node()
    lab.set_capacity(10)
    lab.wait_for_workers(WORKERS)
    changes = [event for event in journal(lab) if isinstance(event, CapacityChanged)]
    assert [event.capacity for event in changes] == [1, 10]


def test_a_price_change_is_a_fact_and_the_price_of_the_next_node(lab: Lab) -> None:
    lab.set_spot_price(0.5)
    lab.kill(spot_nodes(lab)[0].name)
    lab.wait_for_workers(WORKERS)
    assert facts(lab, NodeUp, spot_nodes(lab)[-1].node_id)[0].usd_per_hour == 0.5
    prices = [event for event in journal(lab) if isinstance(event, PriceChanged)]
    assert prices[-1].usd_per_hour == 0.5
    with pytest.raises(ConfigError, match="usd_per_hour is -1"):
        lab.set_spot_price(-1)


def test_an_on_demand_node_is_never_taken_by_the_market(lab: Lab) -> None:
    name = lab.add_node(spot=False)
    lab.wait_for_workers(WORKERS + 1)
    assert ray_node(named(lab, name).node_id)["Labels"]["ray.io/market-type"] == "on-demand"
    with pytest.raises(LabError, match="on demand"):
        lab.preempt(name)
    lab.kill(name)


def test_a_script_acts_at_the_steps_that_training_writes(lab: Lab) -> None:
    assert lab.step() == 0
    first, second = spot_nodes(lab)[:2]
    events = (
        ScriptedEvent(at_step=10, action="kill", node=first.name),
        ScriptedEvent(at_step=10, action="kill", node="spot-999"),
        ScriptedEvent(at_s=0, action="rebalance", rank=0),
    )
    play = lab.play(Scenario(events=events))
    for step, there in ((9, True), (10, False)):
        (second.shm_dir / "progress-run-0").write_bytes(step.to_bytes(8, "little"))
        assert lab.step() == step
        assert play.wait(1.0 if there else 10.0) is not there
        assert (first.name in [n.name for n in lab.nodes()]) is there
    assert len(play.errors) == 1
    assert "'spot-999': no such node" in play.errors[0]
    (second.shm_dir / "progress-run-0").unlink()


def test_all_nodes_can_go_in_one_instant(lab: Lab) -> None:
    gone = spot_nodes(lab)
    lab.kill_all()
    downs = [facts(lab, NodeDown, node.node_id)[0].at_s for node in gone]
    assert max(downs) - min(downs) < 1
    lab.wait_for_workers(WORKERS)


@pytest.mark.parametrize("name", ["spot-999", "head"])
def test_what_cannot_be_taken_is_named(lab: Lab, name: str) -> None:
    with pytest.raises(LabError, match=name):
        lab.kill(name)


def test_a_second_lab_does_not_disturb_the_first(lab: Lab) -> None:
    before = spot_nodes(lab)
    with Lab(1) as other:
        assert other.address != lab.address
        other.kill(spot_nodes(other)[0].name)
        root = other.nodes()[0].node_dir.parent
    assert not root.exists()
    assert spot_nodes(lab) == before
    assert all(ray_node(node.node_id)["Alive"] for node in before)


def test_a_name_in_use_is_refused(lab: Lab) -> None:
    with pytest.raises(LabError, match=f"another lab is called '{lab.name}'"):
        Lab(1, name=lab.name).start()
    assert lab.nodes()[0].node_dir.exists()


def test_a_port_in_use_is_refused_before_anything_starts() -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        lab = Lab(1, port=port)
        with pytest.raises(LabError, match=f"port {port} cannot be used.*give another"):
            lab.start()
    assert not Path(f"/tmp/spotray-lab-{lab.name}").exists()
    lab.close()


def test_too_little_shared_memory_names_need_have_and_cure() -> None:
    with pytest.raises(LabError, match=r"has 64 MiB free, 5 nodes need 560 MiB.*shm-size"):
        check_shm(nodes=5, object_store_mib=80, free_bytes=64 * 1024 * 1024)
    with pytest.raises(ConfigError, match="object_store_mib is 20"):
        check_shm(nodes=5, object_store_mib=20, free_bytes=1 << 40)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"workers": -1}, "-1 workers"),
        ({"cpus_per_worker": 0}, "0 CPUs"),
        ({"agent_poll_s": 0}, "agent_poll_s=0"),
        ({"name": "Lab/1"}, "'Lab/1'"),
    ],
)
def test_a_lab_of_nonsense_cannot_be_made(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Lab(**wrong)


def test_a_lab_that_does_not_run_says_so() -> None:
    lab = Lab(1)
    with pytest.raises(LabError, match="the lab does not run"):
        lab.connect()
    lab.close()
    with pytest.raises(LabError, match="the lab does not run"):
        lab.kill("spot-1")
    lab.close()
