"""The wrapper of DistributedDataParallel looks like one, and its workers may change."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from spotray.train.ddp import ElasticDDP
from spotray.train.world import World
from tests.train.test_gradients import samples
from tests.train.workers import WorkerPool


class Branches(nn.Module):
    """The second branch is used on request."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.always, self.rarely = nn.Linear(3, 3), nn.Linear(3, 3)
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x: torch.Tensor, *, rarely: bool = True) -> torch.Tensor:
        y: torch.Tensor = self.always(x)
        return self.rarely(y) if rarely else y


def grads(model: nn.Module) -> dict[str, torch.Tensor | None]:
    found = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    return found


def test_with_one_worker_the_model_itself_is_called() -> None:
    net = Branches()
    model = ElasticDDP(net, World(), find_unused_parameters=False)
    assert model.module is net
    assert torch.equal(model(samples(0, 2, 3)), net(samples(0, 2, 3)))
    model.eval()
    assert not net.training
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = model.no_such_name


def outside(world: World) -> dict[str, Any]:
    net = Branches()
    ours = ElasticDDP(net, world, find_unused_parameters=False)
    theirs = DistributedDataParallel(Branches())
    model_names = [name for name, _ in ours.named_parameters()]
    assert model_names == [name for name, _ in theirs.named_parameters()]
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    assert [n for n, _ in ours.named_buffers()] == [n for n, _ in theirs.named_buffers()]
    ours.load_state_dict(theirs.state_dict())
    assert ours.find_unused_parameters is False, "what it does not know, torch's one knows"
    assert ours.require_backward_grad_sync
    with ours.no_sync():
        assert not ours.require_backward_grad_sync
        ours(samples(world.rank, 2, 3)).mean().backward()
    alone = grads(net)
    ours(samples(world.rank, 2, 3)).mean().backward()
    return {"alone": alone, "mean": grads(net)}


def test_it_looks_and_sums_like_the_one_of_torch(workers: WorkerPool) -> None:
    first, second = workers.run(2, outside)
    for name in first["mean"]:
        assert torch.equal(first["mean"][name], second["mean"][name])
        expected = (first["alone"][name] + second["alone"][name]) / 2
        torch.testing.assert_close(first["mean"][name], expected)


def exchanged(world: World) -> list[dict[str, Any]]:
    """Steps among two, alone, and among two others again."""
    net = Branches()
    model = ElasticDDP(net, world, find_unused_parameters=False)
    gone = weakref.ref(model._inner[0])
    again = World(
        rank=world.rank, size=world.size, group=dist.new_group(), host_group=world.host_group
    )
    found = []
    for now in (world, World(), again):
        model.enter(now)
        for _ in range(3):  # the bucket order is agreed on in the second one
            model(samples(world.rank, 2, 3)).mean().backward()
            found.append(grads(model))
    gc.collect()
    assert gone() is None, "the first reducer listens to the parameters still"
    return found


def test_its_workers_can_be_exchanged(workers: WorkerPool) -> None:
    first, second = workers.run(2, exchanged)
    for ours, theirs, among_two in zip(first, second, [1, 1, 1, 0, 0, 0, 1, 1, 1], strict=True):
        name = "module.always.weight"
        assert torch.equal(ours[name], theirs[name]) == bool(among_two)
        # Hooks that were there twice would sum twice.
        assert torch.equal(ours[name], first[0 if among_two else 3][name])


def unused(world: World) -> list[dict[str, Any]]:
    net = Branches()
    model = ElasticDDP(net, world, find_unused_parameters=True)
    found = []
    for step in range(3):
        model(samples(world.rank, 2, 3), rarely=step == world.rank).mean().backward()
        found.append(grads(net))
    return found


def test_parameters_that_one_worker_or_nobody_uses(workers: WorkerPool) -> None:
    first, second = workers.run(2, unused)
    for step, (ours, theirs) in enumerate(zip(first, second, strict=True)):
        for name, grad in ours.items():
            if name.startswith("rarely") and step == 2:
                assert grad is None, "nobody used it"
            else:
                assert grad is not None
                assert torch.equal(grad, theirs[name])


def left_early(world: World) -> dict[str, Any]:
    net = Branches()
    model = ElasticDDP(net, world, find_unused_parameters=False)
    for _ in range(2):
        model(samples(0, 2, 3))  # its backward pass never comes
        model.forget()
        model.enter(world)
    model(samples(world.rank, 2, 3)).mean().backward()
    return grads(net)


def test_a_forward_pass_without_its_backward_pass_can_be_forgotten(workers: WorkerPool) -> None:
    first, second = workers.run(2, left_early)
    for name in first:
        assert torch.equal(first[name], second[name])
