"""A sum that a lost or frozen peer breaks: who hears of it, and what is left behind."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from spotray.errors import WorldBroken
from spotray.train.ddp import ElasticDDP
from spotray.train.gradients import GradientExchange
from spotray.train.world import Pending, World, peers
from tests.train.test_gradients import SHARDS, everything, samples, step
from tests.train.workers import WorkerPool

WIDTH = 512  # wide enough for several buckets
HANG_S = 20.0  # what nobody waits for; gloo's own time limit is far above


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(6, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.rest = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(24)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.rest(self.norm(self.first(x)))
        return y


def loss_of(net: nn.Module) -> Callable[[int], torch.Tensor]:
    return lambda shard: net(samples(shard, 5, 6)).square().mean()


def survive(
    world: World, net: nn.Module, exchange: GradientExchange, *, leave: Callable[[], None]
) -> dict[str, Any]:
    """Rank 0's step with a peer that does not take part; then a step alone."""
    net.zero_grad()
    before = everything(net)
    where, why = "", ""
    exchange.begin_step(range(2), SHARDS, world)
    began = time.monotonic()
    try:
        for shard in range(2):
            exchange.begin_shard(last=shard == 1)
            loss = loss_of(net)(shard) / SHARDS
            if shard == 1:
                leave()
            where = "backward"
            with peers("backward"):
                exchange.backward(loss, shard)
            where = "after"
            exchange.collect(shard, weight=1 / SHARDS, riders=[1.0])
            exchange.hide()
        exchange.finish()
    except WorldBroken as exc:
        why = str(exc)
    seconds = time.monotonic() - began
    exchange.abandon()
    untouched = everything(net) == before
    riders = step(exchange, World(), loss_of(net))
    return {
        "where": where,
        "why": why,
        "seconds": seconds,
        "untouched": untouched,
        "riders": riders,
        "after": everything(net),
    }


def let_go(world: World) -> None:
    """Let the end of the job close the sockets; a group lives as long as it is held."""
    world.group = world.host_group = world.io_group = None


def with_a_peer_that_leaves(world: World) -> dict[str, Any]:
    net = Net()
    exchange = GradientExchange([net], riders=1, ordered=True)
    step(exchange, world, loss_of(net))  # a healthy one, which leaves memory to be used again
    if world.rank == 1:
        let_go(world)
        return {}  # its process group ends with its job
    return survive(world, net, exchange, leave=lambda: None)


def alone(world: World) -> dict[str, bytes]:
    net = Net()
    exchange = GradientExchange([net], riders=1, ordered=True)
    for _ in range(2):
        step(exchange, world, loss_of(net))
    return everything(net)


def test_a_peer_that_leaves_breaks_backward_and_leaves_no_trace(workers: WorkerPool) -> None:
    undisturbed = workers.run(1, alone)[0]
    found = workers.run(2, with_a_peer_that_leaves)[0]
    assert found["why"], "nobody said that the peer is gone"
    assert found["where"] == "backward", "the error came only after the backward pass"
    assert found["untouched"]
    assert found["riders"] == [float(SHARDS)]
    assert found["after"] == undisturbed


def with_a_frozen_peer(world: World, reduction: str) -> dict[str, Any]:
    """Rank 1 keeps its sockets open and does nothing until rank 0 is through."""
    store = dist.distributed_c10d._get_default_store()
    net = Net()
    ordered = reduction == "ordered"
    model: nn.Module = net
    if not ordered:
        model = ElasticDDP(net, world, find_unused_parameters=False)
    exchange = GradientExchange([model], riders=1, ordered=ordered)
    for _ in range(2):  # DDP agrees on its buckets in the second one
        step(exchange, world, loss_of(model))
    if world.rank == 1:
        store.wait(["through"], timedelta(seconds=60))
        return {}
    timer = threading.Timer(0.5, world.fail, ["rank 1 is frozen"])
    try:
        found = survive(world, model, exchange, leave=timer.start)
    finally:
        timer.join()
        store.set("through", "")
    return found


@pytest.mark.parametrize("reduction", ["ordered", "ddp"])
def test_a_frozen_peer_holds_backward_no_longer_than_until_the_world_is_failed(
    workers: WorkerPool, reduction: str
) -> None:
    found = workers.run(2, with_a_frozen_peer, reduction)[0]
    assert "rank 1 is frozen" in found["why"]
    assert found["where"] == "backward"
    assert found["seconds"] < HANG_S
    assert found["untouched"]
    assert found["riders"] == [float(SHARDS)]


class Watched(World):
    """Keeps the collectives that were started."""

    def __init__(self, world: World) -> None:
        super().__init__(
            rank=world.rank, size=world.size, group=world.group, host_group=world.host_group
        )
        self.started: list[Pending] = []

    def start_all_to_all(self, *args: Any) -> Pending:
        self.started.append(super().start_all_to_all(*args))
        return self.started[-1]


def with_a_peer_that_wakes_up(world: World) -> dict[str, Any]:
    """Rank 1 sends its part of a step that rank 0 has given up, and does alone."""
    store = dist.distributed_c10d._get_default_store()
    net = Net()
    exchange = GradientExchange([net], riders=1, ordered=True)
    if world.rank == 1:
        store.wait(["given up"], timedelta(seconds=60))
        with contextlib.suppress(WorldBroken):  # rank 0 does not answer, and ends
            step(exchange, world, lambda shard: 1e3 * loss_of(net)(shard))
        return {}
    watched = Watched(world)
    timer = threading.Timer(0.5, watched.fail, ["rank 1 is frozen"])
    found = survive(watched, net, exchange, leave=timer.start)
    timer.join()
    store.set("given up", "")
    watched.started[0]._work.wait(timedelta(seconds=60))  # now rank 1's numbers are there
    watched.started.clear()
    let_go(watched)
    let_go(world)
    return {**found, "later": everything(net)}


def test_what_a_frozen_peer_sends_when_it_wakes_up_changes_nothing(workers: WorkerPool) -> None:
    found = workers.run(2, with_a_peer_that_wakes_up)[0]
    assert "rank 1 is frozen" in found["why"]
    assert found["later"] == found["after"]
