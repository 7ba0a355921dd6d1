"""From the gradients of shards to one gradient, with all that rides along."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from spotray.errors import ConfigError
from spotray.train.gradients import GradientExchange
from spotray.train.order import shard_range
from spotray.train.world import World
from tests.train.workers import WorkerPool

SHARDS = 4
Loss = Callable[[int], torch.Tensor]


def step(
    exchange: GradientExchange,
    world: World,
    loss: Loss,
    *,
    riders: Sequence[float] = (1.0,),
    eager: bool = True,
) -> list[float]:
    """One step of ``SHARDS`` shards of equal weight; ``loss(shard)`` is its mean loss.

    Not ``eager``: gradients are taken after the backward pass and not within it.
    """
    held = shard_range(SHARDS, world_size=world.size, rank=world.rank)
    exchange.begin_step(held, SHARDS, world)
    for shard in held:
        exchange.begin_shard(last=shard == held[-1])
        part = loss(shard) / SHARDS
        if eager:
            exchange.backward(part, shard)
        else:
            part.backward()
        exchange.collect(shard, weight=1 / SHARDS, riders=riders)
        exchange.hide()
    return exchange.finish()


def samples(shard: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(shard).normal(size=shape)).to(dtype)


def everything(*modules: nn.Module) -> dict[str, bytes]:
    """Bits of all buffers and gradients, by name."""
    found = {}
    for i, module in enumerate(modules):
        for name, buffer in module.named_buffers():
            value = torch.view_as_real(buffer) if buffer.is_complex() else buffer
            found[f"{i}/{name}"] = value.numpy().tobytes()
        for name, param in module.named_parameters():
            grad = param.grad
            found[f"{i}/{name}.grad"] = b"none" if grad is None else grad.float().numpy().tobytes()
    return found


class Peculiar(nn.Module):
    """Buffers of many kinds, tied weights, and a parameter that gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.second = nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.idle = nn.Linear(2, 2)
        self.register_buffer("mask", torch.tensor([0.0, float("-inf"), float("nan"), -0.0]))
        self.register_buffer("table", torch.arange(2**24, 2**24 + 3, dtype=torch.int64))
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("flag", torch.tensor(True))
        self.register_buffer("turns", torch.polar(torch.ones(3), torch.arange(3.0)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)  # a new tensor, as many modules do it
        return self.second(torch.relu(self.norm(self.first(x))))


def peculiar_steps(world: World, eager: bool = True) -> dict[str, bytes]:
    torch.manual_seed(0)
    model = Peculiar()
    exchange = GradientExchange([model], riders=1, ordered=True)
    found = {}
    for number in range(3):
        step(
            exchange,
            world,
            lambda i, n=number: model(samples(10 * n + i, 5, 6)).square().mean(),
            eager=eager,
        )
        found |= {f"{number}/{k}": v for k, v in everything(model).items()}
    assert model.calls.item() == 3, "a counter counts steps, not shards"
    assert model.norm.num_batches_tracked.item() == 3
    assert model.idle.weight.grad is None
    return found


def test_peculiar_buffers_and_tied_weights_are_the_same_at_any_world_size(
    workers: WorkerPool,
) -> None:
    alone = workers.run(1, peculiar_steps)[0]
    before = everything(Peculiar())
    for name in ("0/mask", "0/table", "0/flag", "0/turns"):
        values = np.frombuffer(alone[f"2/{name}"], np.uint8), np.frombuffer(before[name], np.uint8)
        if name == "0/mask":  # its -0.0 may become 0.0
            values = values[0].view(np.float32), values[1].view(np.float32)
        np.testing.assert_array_equal(*values, err_msg=f"{name} changed and nobody changed it")
    assert np.frombuffer(alone["2/0/mean"], np.float32).any(), "an assigned buffer was forgotten"
    for size in (2, 3, 4):
        for result in workers.run(size, peculiar_steps):
            assert result == alone


def test_gradients_that_are_taken_within_backward_or_after_it_have_the_same_bits(
    workers: WorkerPool,
) -> None:
    alone = workers.run(1, peculiar_steps, False)[0]
    for size in (1, 3):
        for result in workers.run(size, peculiar_steps, True):
            assert result == alone


def test_the_gradient_is_that_of_the_whole_batch() -> None:
    torch.manual_seed(0)
    model = Peculiar().eval()  # BatchNorm on running statistics: shards do not mix
    whole = copy.deepcopy(model)
    exchange = GradientExchange([model], riders=1, ordered=True)
    step(exchange, World(), lambda i: model(samples(i, 5, 6)).square().mean())
    whole(torch.cat([samples(i, 5, 6) for i in range(SHARDS)])).square().mean().backward()
    for ours, theirs in zip(model.parameters(), whole.parameters(), strict=True):
        if theirs.grad is None:
            assert ours.grad is None
        else:
            torch.testing.assert_close(ours.grad, theirs.grad)


def test_an_optimizer_leaves_a_parameter_alone_that_got_no_gradient() -> None:
    model = Peculiar()
    idle = model.idle.weight.detach().clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    exchange = GradientExchange([model], riders=1, ordered=True)
    step(exchange, World(), lambda i: model(samples(i, 5, 6)).square().mean())
    optimizer.step()
    assert torch.equal(model.idle.weight, idle), "weight decay without a gradient"


class Branches(nn.Module):
    """The second branch is used by one shard alone."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.rarely = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, *, rarely: bool) -> torch.Tensor:
        return self.rarely(self.always(x)) if rarely else self.always(x)


def branch_step(world: World) -> dict[str, bytes]:
    torch.manual_seed(1)
    model = Branches()
    exchange = GradientExchange([model], riders=1, ordered=True)
    step(exchange, world, lambda i: model(samples(i, 5, 3), rarely=i == 3).square().mean())
    return everything(model)


def test_a_parameter_that_one_shard_uses_has_a_gradient_on_all_workers(
    workers: WorkerPool,
) -> None:
    alone = workers.run(1, branch_step)[0]
    assert alone["0/rarely.weight.grad"] != b"none"
    for size in (2, 4):
        for result in workers.run(size, branch_step):
            assert result == alone


def test_gradients_of_the_step_before_are_not_added_where_nobody_zeroed_them() -> None:
    found = []
    for zeroed in (True, False):
        torch.manual_seed(0)
        model = nn.Linear(6, 6)
        exchange = GradientExchange([model], riders=1, ordered=True)
        for number in range(2):
            step(exchange, World(), lambda i, m=model, n=number: m(samples(9 * n + i, 5, 6)).mean())
            if zeroed and number == 0:
                model.zero_grad()
        found.append(everything(model))
    assert found[0] == found[1]


@pytest.mark.parametrize("change", ["freeze", "add"])
def test_parameters_that_change_after_prepare_are_told(change: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    exchange = GradientExchange([model], riders=1, ordered=True)
    if change == "freeze":
        model[0].weight.requires_grad_(False)
    else:
        model.append(nn.Linear(2, 2))
    with pytest.raises(ConfigError, match=r"changed after run\.prepare\(\): freeze or add"):
        exchange.begin_step(range(1), 1, World())


def test_parameters_frozen_before_prepare_keep_their_values_and_get_no_gradient() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    model[0].requires_grad_(False)
    exchange = GradientExchange([model], riders=1, ordered=True)
    step(exchange, World(), lambda i: model(samples(i, 5, 6)).square().mean())
    assert model[0].weight.grad is None
    assert model[1].weight.grad is not None


def float64_step(world: World) -> dict[str, Any]:
    torch.manual_seed(2)
    model = nn.Linear(4, 4).double()
    exchange = GradientExchange([model], riders=1, ordered=True)
    data = [samples(i, 5, 4, dtype=torch.float64) for i in range(SHARDS)]
    step(exchange, world, lambda i: model(data[i]).square().mean())
    whole = copy.deepcopy(model)
    whole.zero_grad()
    whole(torch.cat(data)).square().mean().backward()
    assert model.weight.grad is not None
    torch.testing.assert_close(model.weight.grad, whole.weight.grad, rtol=1e-14, atol=0)
    return {"grad": model.weight.grad.numpy().tobytes()}


def test_a_float64_model_keeps_its_precision_and_its_bits(workers: WorkerPool) -> None:
    alone = workers.run(1, float64_step)[0]
    for result in workers.run(3, float64_step):
        assert result == alone


def half_step(world: World) -> dict[str, bytes]:
    torch.manual_seed(3)
    model = nn.Linear(4, 4).to(torch.bfloat16)
    exchange = GradientExchange([model], riders=1, ordered=True)
    step(
        exchange,
        world,
        lambda i: model(samples(i, 5, 4, dtype=torch.bfloat16)).float().square().mean(),
    )
    assert model.weight.grad is not None
    assert model.weight.grad.dtype is torch.bfloat16
    return everything(model)


def test_bfloat16_parameters_are_summed_in_float32_with_the_same_bits(
    workers: WorkerPool,
) -> None:
    alone = workers.run(1, half_step)[0]
    for result in workers.run(3, half_step):
        assert result == alone


def two_model_step(world: World) -> dict[str, bytes]:
    torch.manual_seed(4)
    trunk = nn.Linear(4, 4)
    one, two = nn.Sequential(trunk, nn.BatchNorm1d(4)), nn.Sequential(trunk, nn.Linear(4, 2))
    exchange = GradientExchange([one, two], riders=1, ordered=True)
    step(
        exchange,
        world,
        lambda i: one(samples(i, 5, 4)).mean() + two(samples(i, 5, 4)).square().mean(),
    )
    return everything(one, two)


def test_two_models_that_share_a_part_are_summed_as_one(workers: WorkerPool) -> None:
    alone = workers.run(1, two_model_step)[0]
    assert alone["0/0.weight.grad"] == alone["1/0.weight.grad"] != b"none"
    for result in workers.run(4, two_model_step):
        assert result == alone


def test_riders_are_summed_over_the_shards(workers: WorkerPool) -> None:
    for totals in workers.run(3, rider_step):
        assert totals == [SHARDS * 0.5, 0.0, SHARDS * 3.0]


def rider_step(world: World) -> list[float]:
    model = nn.Linear(2, 1)
    exchange = GradientExchange([model], riders=3, ordered=True)
    riders = (0.5, 0.0, 3.0)
    return step(exchange, world, lambda i: model(samples(i, 2, 2)).mean(), riders=riders)


def test_a_shard_for_show_leaves_no_trace() -> None:
    torch.manual_seed(0)
    model = Peculiar()
    exchange = GradientExchange([model], riders=1, ordered=True)
    exchange.begin_step(range(0), 1, World())
    before = everything(model)
    exchange.begin_shard(last=True)
    (model(samples(0, 5, 6)).square().mean() * 0).backward()
    exchange.collect(None, weight=0.0, riders=[0.0])
    assert everything(model) == before


@pytest.mark.parametrize("ordered", [True, False])
def test_an_abandoned_step_leaves_no_trace_in_the_next_one(ordered: bool) -> None:
    results = []
    for abandoned in (False, True):
        torch.manual_seed(0)
        model = Peculiar()
        exchange = GradientExchange([model], riders=1, ordered=ordered)
        if abandoned:
            exchange.begin_step(range(SHARDS), SHARDS, World())
            exchange.begin_shard(last=False)
            (model(samples(7, 5, 6)).square().mean() / SHARDS).backward()
            exchange.collect(0, weight=1 / SHARDS, riders=[1.0])
            exchange.hide()
            exchange.begin_shard(last=False)
            model(samples(8, 5, 6))  # its loss never came
            exchange.abandon()
        riders = step(exchange, World(), lambda i, m=model: m(samples(i, 5, 6)).square().mean())
        assert riders == [float(SHARDS)]
        results.append(everything(model))
    assert results[0] == results[1]


def test_sparse_gradients_are_refused_with_the_cure() -> None:
    model = nn.Embedding(5, 3, sparse=True)
    exchange = GradientExchange([model], riders=1, ordered=True)
    with pytest.raises(ConfigError, match=r"shape \(5, 3\) has a sparse .*sparse=False"):
        step(exchange, World(), lambda i: model(torch.tensor([i])).mean())


def test_complex_parameters_are_refused() -> None:
    model = nn.Module()
    model.weight = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(ConfigError, match="complex parameters cannot be trained: use real pairs"):
        GradientExchange([model], riders=1, ordered=True)
