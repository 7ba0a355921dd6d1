"""The controller between fakes of Ray's head, its request and the cloud."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spotray.clock import FakeClock
from spotray.cluster.memory import LaunchMemory
from spotray.cluster.ray_autoscaler.head import Asked, RayNode
from spotray.controller.controller import Controller, Edges
from spotray.controller.idle import IdleWatch
from spotray.controller.pools import ClusterPools
from spotray.controller.remember import StateFile
from spotray.errors import ClusterUnreachable, DrainRejected
from spotray.events import (
    BudgetReached,
    ClusterWentDown,
    DeadlineNear,
    Drained,
    DrainRefused,
    Event,
    InstanceEnded,
    NodeReplaced,
    NodeUp,
    ReplacementAsked,
    ReplacementGivenUp,
    Warned,
    WorkersHeld,
)
from spotray.market.prices import PriceTable
from spotray.policy.view import (
    Fact,
    Launched,
    OnDemandFirst,
    Preempted,
    Progressed,
    Refusal,
    Refused,
    SpotOnly,
)
from tests.controller.small_cloud import CONFIG, GPU, SPOT_A, SPOT_B

ONE_GPU = {"GPU": 1.0}
LOST = 2  # Ray's UNEXPECTED_TERMINATION


class Cluster:
    """Ray's head, its autoscaler's request, the cloud and the jobs, as a test sets them."""

    def __init__(self, path: Path) -> None:
        self.clock = FakeClock()
        self.path = path
        self.listed: dict[str, RayNode] = {}
        self.standing: list[Mapping[str, float]] = [ONE_GPU]  # of a job
        self.bundles: list[Mapping[str, float]] = []
        self.connected = 1
        self.told: list[Event] = []
        self.jobs: list[Mapping[str, Any]] = []
        self.order: list[str] = []  # of what is done
        self.ended: list[str] = []
        self.refuses_drain = self.refuses_end = False
        self.stopped: list[str] = []
        self.refuses_stop = ""
        self.memory = LaunchMemory(path / "launches.jsonl", clock=self.clock)

    def controller(self, pools: Mapping[str, Any] | None = None, **more: Any) -> Controller:
        cluster = ClusterPools(
            cloud="aws", pools=pools or {"gpu": GPU}, max_workers=5, control=CONFIG
        )
        edges = Edges(
            head=self,
            request=self,
            cloud=self,
            drain=self.drain,
            jobs=lambda: list(self.jobs),
            stop=self.stop,
            tell=self.told.append,
        )
        state_file = StateFile(self.path / "controller.json")
        return Controller(
            cluster, edges, self.memory, state_file=state_file, clock=self.clock, **more
        )

    def add(self, name: str, *, spot: bool, age_s: float = 1000.0) -> RayNode:
        node = RayNode(
            node_id=f"ray-{name}",
            instance_id=name,
            node_type="gpu",
            is_head=False,
            labels={
                "ray.io/market-type": "spot" if spot else "on-demand",
                "ray.io/availability-zone": "us-west-2a",
                "spotray/instance-type": "g5.xlarge",
            },
            resources={"GPU": 1.0, "CPU": 4.0},
            started_s=self.clock.now_s() - age_s,
            busy=True,
            leaves_by_s=None,
            death=None,
        )
        self.listed[name] = node
        return node

    def change(self, name: str, **more: Any) -> None:
        self.listed[name] = replace(self.listed[name], **more)

    def events(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.told if isinstance(event, kind)]

    def facts(self, kind: type[Fact]) -> list[Any]:
        return [fact for fact in self.memory.facts() if isinstance(fact, kind)]

    # Head

    def nodes(self) -> list[RayNode]:
        return list(self.listed.values())

    def asked(self) -> Asked:
        return Asked(standing=(*self.standing, *self.bundles))

    def drivers(self) -> int:
        return self.connected

    # Request

    def keep(self, bundles: Sequence[Mapping[str, float]]) -> None:
        if list(bundles) != self.bundles:
            self.order.append(f"ask for {len(bundles)}")
        self.bundles = list(bundles)

    # Cloud

    def end(self, name: str) -> None:
        if self.refuses_end:
            raise RuntimeError("no right to end it")
        self.ended.append(name)

    def end_workers(self) -> tuple[str, ...]:
        self.ended += self.listed
        return tuple(self.listed)

    def end_head(self) -> None:
        self.ended.append("head")

    def stop(self, driver: str) -> str:
        self.stopped.append(driver)
        return self.refuses_stop

    def drain(self, node_id: str, deadline_s: float, why: str) -> None:
        if self.refuses_drain:
            raise DrainRejected("Ray said no")
        name = node_id.removeprefix("ray-")
        self.order.append(f"drain {name}")
        self.change(name, leaves_by_s=deadline_s)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def step(cluster: Cluster, controller: Controller, seconds: float = 1.0) -> None:
    cluster.clock.advance(seconds)
    controller.step()


def begin(cluster: Cluster) -> Controller:
    """An on-demand worker whose replacement is asked for."""
    cluster.add("i-old", spot=False)
    controller = cluster.controller()
    step(cluster, controller)
    assert len(cluster.bundles) == 1
    return controller


def test_one_worker_goes_back_to_spot(cluster: Cluster) -> None:
    controller = begin(cluster)
    (asked,) = cluster.events(ReplacementAsked)
    assert (asked.name, asked.spot_only) == ("i-old", True)
    (window,) = cluster.facts(SpotOnly)
    assert window.until_s == asked.until_s
    now_s = cluster.clock.now_s()
    cluster.memory.add(Launched(at_s=now_s, market=SPOT_A, names=("i-new",)))
    step(cluster, controller)
    assert cluster.facts(SpotOnly)[-1].until_s <= cluster.clock.now_s(), "others may fall back"
    cluster.add("i-new", spot=True, age_s=0)
    step(cluster, controller)
    # Asking ends before the drain, or the node that leaves would be replaced, too.
    assert cluster.order == ["ask for 1", "ask for 0", "drain i-old"]
    (drained,) = cluster.events(Drained)
    assert drained.deadline_s == cluster.clock.now_s() + CONFIG.drain_s
    del cluster.listed["i-old"]
    step(cluster, controller)
    (replaced,) = cluster.events(NodeReplaced)
    assert (replaced.name, replaced.seconds) == ("i-old", 3.0)
    assert not cluster.facts(Preempted), "our own drain is none"


def test_spot_that_is_refused_ends_the_wish_at_once(cluster: Cluster) -> None:
    controller = begin(cluster)
    for market in (SPOT_A, SPOT_B):
        fact = Refused(at_s=cluster.clock.now_s(), market=market, kind=Refusal.CAPACITY)
        cluster.memory.add(fact)
    step(cluster, controller)
    assert cluster.order == ["ask for 1", "ask for 0"]
    (given_up,) = cluster.events(ReplacementGivenUp)
    assert (given_up.name, given_up.why) == ("i-old", "spot was refused")


def test_what_a_job_asks_for_more_than_there_is_is_not_asked_for_twice(cluster: Cluster) -> None:
    cluster.standing = [ONE_GPU] * 4
    cluster.add("i-old", spot=False)
    step(cluster, cluster.controller())
    assert cluster.events(ReplacementAsked)
    assert not cluster.bundles


def test_a_node_that_stays_is_ended_and_what_the_cloud_says_is_told(cluster: Cluster) -> None:
    controller = begin(cluster)
    cluster.add("i-new", spot=True, age_s=0)
    step(cluster, controller)
    cluster.refuses_end = True
    step(cluster, controller, CONFIG.drain_s + 10)
    (ended,) = cluster.events(InstanceEnded)
    assert (ended.name, ended.failed) == ("i-old", "RuntimeError: no right to end it")


def test_a_drain_that_ray_refuses_is_told_once_and_tried_again(cluster: Cluster) -> None:
    controller = begin(cluster)
    cluster.add("i-new", spot=True, age_s=0)
    cluster.refuses_drain = True
    for _ in range(3):
        step(cluster, controller)
    assert len(cluster.events(DrainRefused)) == 1
    cluster.refuses_drain = False
    step(cluster, controller)
    assert len(cluster.events(Drained)) == 1


def test_a_new_start_goes_on_with_the_node_that_was_told_to_leave(cluster: Cluster) -> None:
    controller = begin(cluster)
    cluster.add("i-new", spot=True, age_s=0)
    step(cluster, controller)
    again = cluster.controller()
    step(cluster, again, CONFIG.drain_s + 10)
    assert cluster.ended == ["i-old"]


def test_a_notice_is_remembered_and_the_worker_asked_for_again(cluster: Cluster) -> None:
    cluster.standing = []  # plain actors: nobody holds the count
    cluster.add("i-1", spot=True)
    cluster.add("i-2", spot=True)
    controller = cluster.controller()
    step(cluster, controller)
    assert [up.market for up in cluster.events(NodeUp)] == [str(SPOT_A)] * 2
    cluster.change("i-2", leaves_by_s=cluster.clock.now_s() + 30, busy=False)
    step(cluster, controller)
    (fact,) = cluster.facts(Preempted)
    assert (fact.market, fact.name) == (SPOT_A, "i-2")
    (held,) = cluster.events(WorkersHeld)
    assert held.workers == 2
    assert len(cluster.bundles) == 2, "whole nodes: one is there, one more comes"
    cluster.change("i-2", death=3)
    step(cluster, controller, CONFIG.hold_s + 1)
    assert not cluster.bundles
    assert len(cluster.facts(Preempted)) == 1


def test_a_loss_that_the_provider_saw_first_is_not_held_again(cluster: Cluster) -> None:
    cluster.standing = []
    cluster.add("i-1", spot=True)
    cluster.add("i-2", spot=True)
    controller = cluster.controller()
    step(cluster, controller)
    cluster.memory.preempted(SPOT_A, "i-2")
    cluster.clock.advance(10)
    cluster.add("i-3", spot=True, age_s=3)
    cluster.change("i-2", death=LOST)
    step(cluster, controller)
    assert not cluster.events(WorkersHeld)
    assert not cluster.bundles
    for at_step in (10, 11):
        cluster.jobs = [
            {"name": "vit", "step": at_step, "node_ids": ["ray-i-3"], "deadline_s": None}
        ]
        step(cluster, controller, 3)
    assert len(cluster.facts(Progressed)) == 1


def test_a_silent_loss_is_a_preemption_and_progress_on_its_successor_is_told(
    cluster: Cluster,
) -> None:
    cluster.add("i-1", spot=True)
    controller = cluster.controller()
    step(cluster, controller)
    cluster.change("i-1", death=LOST)
    step(cluster, controller)
    assert len(cluster.facts(Preempted)) == 1
    cluster.clock.advance(60)
    cluster.add("i-2", spot=True, age_s=0)
    for at_step in (10, 11):
        cluster.jobs = [
            {"name": "vit", "step": at_step, "node_ids": ["ray-i-2"], "deadline_s": None}
        ]
        step(cluster, controller, 3)
    assert len(cluster.facts(Progressed)) == 1


def test_a_job_near_its_deadline_is_not_disturbed(cluster: Cluster) -> None:
    soon_s = cluster.clock.now_s() + CONFIG.deadline_s / 2
    cluster.jobs = [{"name": "vit", "step": 1, "node_ids": [], "deadline_s": soon_s}]
    cluster.add("i-old", spot=False)
    step(cluster, cluster.controller())
    assert not cluster.bundles


def test_a_deadline_that_is_near_reaches_the_launches_and_the_journal_once(
    cluster: Cluster,
) -> None:
    soon_s = cluster.clock.now_s() + 600
    cluster.jobs = [{"name": "vit", "step": 1, "node_ids": [], "deadline_s": soon_s}]
    controller = cluster.controller()
    for _ in range(5):
        step(cluster, controller)
    (fact,) = cluster.facts(OnDemandFirst)
    assert fact.until_s == soon_s
    (near,) = cluster.events(DeadlineNear)
    assert near.why == "on-demand first: vit shall be done in 599 s"


def test_a_job_that_does_not_answer_for_a_moment_still_has_its_deadline(cluster: Cluster) -> None:
    soon_s = cluster.clock.now_s() + 600
    told = [{"name": "vit", "step": 1, "node_ids": [], "deadline_s": soon_s}]
    controller = cluster.controller()
    for answers in (told, [], told, []):
        cluster.jobs = list(answers)
        for _ in range(5):
            step(cluster, controller)
    assert len(cluster.events(DeadlineNear)) == 1
    step(cluster, controller, 31)
    assert [one.until_s <= cluster.clock.now_s() for one in cluster.events(DeadlineNear)] == [
        False,
        True,
    ]


def job_with_budget(cluster: Cluster, usd: float, **more: Any) -> dict[str, Any]:
    told = {"name": "vit", "step": 1, "node_ids": [], "deadline_s": None, "driver": "01000000"}
    return {**told, "max_cost_usd": usd, "began_s": cluster.clock.now_s(), **more}


def test_a_job_whose_budget_is_used_up_is_stopped_once_and_nothing_more_is_asked_for(
    cluster: Cluster,
) -> None:
    cluster.add("i-1", spot=True)
    cluster.add("i-2", spot=True)
    cluster.jobs = [job_with_budget(cluster, 1.0)]
    controller = cluster.controller()
    step(cluster, controller)
    assert not cluster.stopped
    dearest_usd_per_hour = max(up.usd_per_hour for up in cluster.events(NodeUp))
    cluster.clock.advance(3600 / (2 * dearest_usd_per_hour))
    cluster.change("i-2", death=LOST, ended_s=cluster.clock.now_s())
    for _ in range(6):
        step(cluster, controller)
    assert cluster.stopped == ["01000000"]
    (reached,) = cluster.events(BudgetReached)
    assert reached.spent_usd >= reached.max_cost_usd == 1.0
    assert reached.failed == ""
    assert not cluster.bundles


def test_a_job_that_cannot_be_stopped_is_told_of_once_and_tried_again(cluster: Cluster) -> None:
    cluster.add("i-1", spot=True)
    cluster.jobs = [job_with_budget(cluster, 0.01, began_s=cluster.clock.now_s() - 900)]
    cluster.refuses_stop = "it was not submitted"
    controller = cluster.controller()
    for _ in range(6):
        step(cluster, controller)
    assert len(cluster.stopped) > 1
    (reached,) = cluster.events(BudgetReached)
    assert reached.failed == "it was not submitted"


def test_a_budget_that_a_launch_watches_is_left_to_it(cluster: Cluster) -> None:
    cluster.add("i-1", spot=True)
    cluster.jobs = [job_with_budget(cluster, 0.01, began_s=0.0, is_watched=True)]
    step(cluster, cluster.controller())
    assert not cluster.stopped


def test_nodes_without_a_price_are_named_and_not_taken_for_dear(cluster: Cluster) -> None:
    cluster.add("i-1", spot=True)
    cluster.jobs = [job_with_budget(cluster, 0.01, began_s=0.0)]
    controller = cluster.controller(prices=PriceTable())
    for _ in range(4):
        step(cluster, controller)
    assert not cluster.stopped
    (warned,) = cluster.events(Warned)
    assert "none is known of i-1" in warned.what


def test_a_full_pool_is_told_once(cluster: Cluster) -> None:
    cluster.add("i-old", spot=False)
    controller = cluster.controller({"gpu": replace(GPU, max_workers=1)})
    for _ in range(3):
        step(cluster, controller)
    (warned,) = cluster.events(Warned)
    assert "max_workers" in warned.what


@pytest.mark.parametrize("head", [False, True])
def test_an_idle_cluster_goes_down_and_with_its_head_if_asked(cluster: Cluster, head: bool) -> None:
    cluster.standing = []
    cluster.add("i-1", spot=True)
    cluster.change("i-1", busy=False)
    controller = cluster.controller(idle=IdleWatch(600), down_with_head=head)
    step(cluster, controller)  # a driver is connected
    cluster.connected = 0
    for _ in range(11):
        step(cluster, controller, 60)
    assert cluster.ended == (["i-1", "head"] if head else ["i-1"])
    (down,) = cluster.events(ClusterWentDown)
    assert (down.names, down.head) == (("i-1",), head)


def test_a_head_that_does_not_answer_is_asked_again(cluster: Cluster) -> None:
    controller = cluster.controller(poll_s=0.01)
    stop, answers = threading.Event(), iter([ClusterUnreachable("no head"), ValueError("a bug")])

    def nodes() -> list[RayNode]:
        error = next(answers, None)
        if error is not None:
            raise error
        stop.set()
        return []

    cluster.nodes = nodes  # type: ignore[method-assign]
    controller.run(stop)
    assert stop.is_set()


def test_what_was_asked_for_is_withdrawn_at_the_end(cluster: Cluster) -> None:
    stop = threading.Event()
    stop.set()
    cluster.bundles = [ONE_GPU]
    cluster.controller().run(stop)
    assert cluster.bundles == []


def test_an_end_without_ray_is_an_end(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    def keep(bundles: Sequence[Mapping[str, float]]) -> None:
        raise RuntimeError("Ray has ended")

    stop = threading.Event()
    stop.set()
    cluster.bundles = [ONE_GPU]
    cluster.keep = keep  # type: ignore[method-assign]
    cluster.controller().run(stop)
    assert "what was asked for stands on" in caplog.text


def test_workers_and_head_are_told_with_the_prices_of_the_list(cluster: Cluster) -> None:
    head = cluster.add("i-head", spot=False)
    more = {"spotray/instance-type": "m6i.large"}
    cluster.change("i-head", is_head=True, node_type="head", labels={**head.labels, **more})
    cluster.add("i-1", spot=True)
    controller = cluster.controller()
    for _ in range(2):
        step(cluster, controller)
    told = {up.name: up for up in cluster.events(NodeUp)}
    assert len(cluster.events(NodeUp)) == 2
    assert (told["i-head"].role, told["i-1"].role) == ("head", "worker")
    assert told["i-head"].at_s == head.started_s
    assert 0 < told["i-1"].usd_per_hour < told["i-1"].on_demand_usd_per_hour
    assert all(up.usd_per_hour and "list" in up.price_from for up in told.values())
