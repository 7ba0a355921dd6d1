"""The pool of a sweep's workers. Nodes are plain numbers here, and time is given."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from spotray.train.messages import View
from spotray.tune.pool import IDLE_S, Pool, Room, TrialWorkers


class Actor:
    def __init__(self, node_id: str) -> None:
        self.node_id = node_id


class FakeNodes:
    """Nodes with slots; what was started there takes one until it is ended."""

    def __init__(self, **slots: int) -> None:
        self.slots = slots
        self.leaving: set[str] = set()
        self.alive: list[Actor] = []
        self.started = 0
        self.requested: list[int] = []

    def room(self) -> Room:
        used = Counter(actor.node_id for actor in self.alive)
        free = {n: slots - used[n] for n, slots in self.slots.items()}
        return Room(free, frozenset(self.leaving))

    def start(self, node_id: str) -> Actor:
        self.started += 1
        self.alive.append(Actor(node_id))
        assert self.room().free[node_id] >= 0, "more workers than slots"
        return self.alive[-1]

    def end(self, actor: Any) -> None:
        if actor in self.alive:
            self.alive.remove(actor)

    def request(self, workers: int) -> None:
        self.requested.append(workers)


class Trial:
    """A trial's driver, as far as its workers are concerned."""

    def __init__(
        self, pool: Pool, name: str, *, useful: int = 99, prefers: tuple[str, ...] = ()
    ) -> None:
        self.seat: TrialWorkers = pool.join(name, prefers=prefers)
        self.useful = useful
        self.workers: dict[str, Actor] = {}
        self.limits: list[int] = []
        self.seat.on_limit(self.limits.append)

    def look(self, leaving: tuple[str, ...] = ()) -> int:
        """Start what it may start; how many that were."""
        view = View(
            generation=1,
            members=(),
            known=(),
            entered=(),
            let_go=(),
            leaving_nodes=leaving,
            useful_workers=self.useful,
            done=False,
            gave_up="",
            waiting_for=0,
            least=1,
        )
        mine = {name: actor.node_id for name, actor in self.workers.items()}
        places = self.seat.places(view, mine)
        for node_id in places:
            self.workers[f"w{len(self.workers)}-{node_id}"] = self.seat.start(node_id)
        return len(places)

    def let_go(self, count: int, *, healthy: bool = True) -> None:
        for name in list(self.workers)[:count]:
            self.seat.give_back(self.workers.pop(name), healthy=healthy)

    def nodes(self) -> list[str]:
        return sorted(actor.node_id for actor in self.workers.values())


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def pool_on(nodes: FakeNodes, clock: Clock, *, least: int = 1, most: int = 4) -> Pool:
    pool = Pool(nodes, least=least, most=most, monotonic_s=clock)
    pool.look()
    return pool


def settle(pool: Pool, clock: Clock) -> None:
    """Long enough for Ray to know of all that was started."""
    clock.now += 5.0
    pool.look()


def test_a_trial_alone_gets_all_it_can_use(clock: Clock) -> None:
    nodes = FakeNodes(a=1, b=1, c=1)
    pool = pool_on(nodes, clock)
    trial = Trial(pool, "t0")
    assert trial.look() == 3
    assert trial.nodes() == ["a", "b", "c"]
    assert trial.look() == 0


def test_a_trial_gets_no_more_than_are_useful_to_it(clock: Clock) -> None:
    pool = pool_on(FakeNodes(a=4), clock)
    assert Trial(pool, "t0", useful=2).look() == 2


def test_two_trials_never_get_the_same_slot(clock: Clock) -> None:
    nodes = FakeNodes(a=2, b=2)
    pool = pool_on(nodes, clock)
    first, second = Trial(pool, "t0"), Trial(pool, "t1")
    assert [first.look(), second.look(), first.look(), second.look()] == [2, 2, 0, 0]


def test_a_trial_below_its_least_waits_for_its_turn(clock: Clock) -> None:
    pool = pool_on(FakeNodes(a=3), clock, least=2)
    first, second = Trial(pool, "t0"), Trial(pool, "t1")
    assert first.seat.wait(0.0)
    assert not second.seat.wait(0.0)
    assert [second.look(), first.look()] == [0, 3]
    first.seat.leave()
    settle(pool, clock)
    assert second.seat.wait(0.0)


def test_a_newcomers_share_comes_from_the_trial_with_most(clock: Clock) -> None:
    nodes = FakeNodes(a=2, b=2)
    pool = pool_on(nodes, clock)
    first = Trial(pool, "t0")
    first.look()
    settle(pool, clock)
    second = Trial(pool, "t1")
    assert second.look() == 0
    pool.look()
    assert first.limits[-1] == 2
    first.let_go(2)
    started = nodes.started
    assert second.look() == 2
    assert nodes.started == started, "the processes that were let go were not used again"


def test_nobody_is_held_to_its_share_while_nobody_waits(clock: Clock) -> None:
    pool = pool_on(FakeNodes(a=4), clock)
    first = Trial(pool, "t0")
    first.look()
    settle(pool, clock)
    Trial(pool, "t1").seat.leave()
    pool.look()
    assert all(limit == 4 for limit in first.limits)


def test_an_ended_trials_slots_go_to_the_others(clock: Clock) -> None:
    pool = pool_on(FakeNodes(a=4), clock)
    first, second = Trial(pool, "t0"), Trial(pool, "t1")
    assert [first.look(), second.look()] == [2, 2]
    first.let_go(2)
    first.seat.leave()
    assert second.look() == 2


def test_no_worker_is_placed_on_a_node_that_leaves(clock: Clock) -> None:
    nodes = FakeNodes(a=1, b=1)
    nodes.leaving = {"a"}
    pool = pool_on(nodes, clock)
    trial = Trial(pool, "t0")
    assert trial.look() == 1
    assert trial.nodes() == ["b"]


def test_a_worker_on_a_leaving_node_is_replaced_elsewhere(clock: Clock) -> None:
    nodes = FakeNodes(a=1)
    pool = pool_on(nodes, clock, most=1)
    trial = Trial(pool, "t0")
    trial.look()
    nodes.slots["b"] = 1
    nodes.leaving = {"a"}
    settle(pool, clock)
    assert trial.look() == 1
    assert trial.nodes() == ["a", "b"]


def test_a_lost_nodes_slots_are_not_counted(clock: Clock) -> None:
    nodes = FakeNodes(a=1, b=1)
    pool = pool_on(nodes, clock)
    first, second = Trial(pool, "t0"), Trial(pool, "t1")
    first.look()
    second.look()
    del nodes.slots["a"]
    nodes.alive = [actor for actor in nodes.alive if actor.node_id != "a"]
    settle(pool, clock)
    assert pool.slots() == 1
    # Who lost its node waits; the other keeps what it has, though it started later.
    assert second.limits[-1] == 1
    assert first.look() == 0


def test_an_idle_worker_ends_after_a_while(clock: Clock) -> None:
    nodes = FakeNodes(a=1)
    pool = pool_on(nodes, clock)
    trial = Trial(pool, "t0")
    trial.look()
    trial.let_go(1)
    trial.seat.leave()
    clock.now += IDLE_S - 1
    pool.look()
    assert len(nodes.alive) == 1
    clock.now += 2
    pool.look()
    assert nodes.alive == []


def test_an_idle_worker_ends_with_its_nodes_notice(clock: Clock) -> None:
    nodes = FakeNodes(a=1)
    pool = pool_on(nodes, clock)
    trial = Trial(pool, "t0")
    trial.look()
    trial.let_go(1)
    nodes.leaving = {"a"}
    pool.look()
    assert nodes.alive == []


def test_a_worker_that_is_not_healthy_is_not_used_again(clock: Clock) -> None:
    nodes = FakeNodes(a=1)
    pool = pool_on(nodes, clock)
    trial = Trial(pool, "t0")
    trial.look()
    trial.let_go(1, healthy=False)
    assert nodes.alive == []


def test_a_node_where_a_worker_fell_silent_is_avoided_for_a_while(clock: Clock) -> None:
    nodes = FakeNodes(a=1)
    pool = pool_on(nodes, clock)
    trial = Trial(pool, "t0")
    trial.look()
    trial.let_go(1, healthy=False)
    trial.seat.avoid("a")
    settle(pool, clock)
    assert trial.look() == 0
    clock.now += 20
    pool.look()
    assert trial.look() == 1


def test_trials_that_hold_too_few_each_are_not_stuck(clock: Clock) -> None:
    nodes = FakeNodes(a=1, b=1, c=1, d=1)
    pool = pool_on(nodes, clock, least=2, most=2)
    first, second = Trial(pool, "t0"), Trial(pool, "t1")
    first.look()
    second.look()
    lost = {first.nodes()[0], second.nodes()[0]}
    for node_id in lost:
        del nodes.slots[node_id]
    nodes.alive = [actor for actor in nodes.alive if actor.node_id not in lost]
    for trial in (first, second):
        gone = [name for name, actor in trial.workers.items() if actor.node_id in lost]
        for name in gone:
            trial.seat.give_back(trial.workers.pop(name), healthy=False)
    settle(pool, clock)
    assert second.limits[-1] == 0
    second.let_go(1)
    assert first.look() == 1
    assert not second.seat.wait(0.0)


def test_the_pool_is_short_only_while_nobody_can_be_given_what_it_needs(clock: Clock) -> None:
    pool = pool_on(FakeNodes(a=2), clock, least=1, most=2)
    first = Trial(pool, "t0")
    assert not pool.is_short(), "two slots are free"
    first.look()
    settle(pool, clock)
    Trial(pool, "t1")
    assert pool.is_short()
    assert not pool.is_short(besides={"t1"})


def test_the_autoscaler_hears_what_all_trials_could_use(clock: Clock) -> None:
    nodes = FakeNodes(a=1)
    pool = pool_on(nodes, clock, most=3)
    Trial(pool, "t0")
    Trial(pool, "t1")
    pool.look()
    assert nodes.requested[-1] == 6
    pool.ask_for_more(3)  # for a trial that did not begin yet
    pool.look()
    assert nodes.requested[-1] == 9


def test_a_closed_pool_leaves_no_process(clock: Clock) -> None:
    nodes = FakeNodes(a=2, b=1)
    pool = pool_on(nodes, clock)
    trial = Trial(pool, "t0")
    trial.look()
    trial.let_go(1)
    pool.close()
    assert nodes.alive == []
    assert trial.look() == 0


def test_a_trial_goes_where_its_state_is_while_there_is_room(clock: Clock) -> None:
    nodes = FakeNodes(a=1, b=1, c=1)
    pool = pool_on(nodes, clock, most=1)
    first = Trial(pool, "first", prefers=("gone", "c", "a"))
    second = Trial(pool, "second", prefers=("c",))
    for trial in (first, second):
        trial.look()
    assert first.nodes() == ["c"]
    assert second.nodes() in (["a"], ["b"])
