"""Buckets of gradients: what is in them, when they leave, whose memory they are."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from spotray.clock import SystemClock, wait_until
from spotray.errors import ConfigError, SpotrayError
from spotray.train.buckets import _holders, cut
from spotray.train.gradients import GradientExchange, wire_dtype_of
from spotray.train.world import Pending, World
from tests.train.test_gradients import SHARDS, Peculiar, everything, samples, step
from tests.train.workers import WorkerPool

WIDTH = 1024  # a layer's weight has 4 MiB


def layers(count: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(count)))


def mean_loss(model: nn.Module, width: int = 6) -> Callable[[int], torch.Tensor]:
    return lambda shard: model(samples(shard, 5, width)).square().mean()


def test_each_parameter_is_in_one_bucket_of_its_dtype_the_last_ones_first() -> None:
    sizes = [(3,), (700, 1000), (5,), (900, 1000), (2,), (1500, 1000)]
    params = [nn.Parameter(torch.zeros(size)) for size in sizes]
    params[2] = nn.Parameter(torch.zeros(5, dtype=torch.bfloat16))
    buckets = cut(params, torch.float32)
    assert [i for bucket in buckets for i in bucket] == [5, 4, 3, 2, 1, 0]
    for bucket in buckets:
        assert len({params[i].dtype for i in bucket}) == 1
    assert len(buckets) > 3, "a dtype takes a bucket, and so does each filled one"
    assert cut([], torch.float32) == []


class Watched(World):
    """Notes when collectives start."""

    started: int = 0

    def start_all_to_all(self, *args: Any) -> Pending:
        self.started += 1
        return super().start_all_to_all(*args)


def early_start(world: World) -> list[int]:
    watched = Watched(
        rank=world.rank, size=world.size, group=world.group, host_group=world.host_group
    )
    model = layers(6)
    seen: list[int] = []
    model[0].weight.register_hook(lambda grad: seen.append(watched.started))
    exchange = GradientExchange([model], riders=1, ordered=True)
    step(exchange, watched, mean_loss(model, WIDTH))
    return seen


def test_buckets_leave_within_the_last_backward_pass_and_not_before_it(
    workers: WorkerPool,
) -> None:
    for seen in workers.run(2, early_start):
        # Of two shards each, at the end of either backward pass.
        assert seen[0] == 0
        assert seen[1] >= 1, "the first layer's gradient comes when others are on their way"


@pytest.mark.parametrize("wire", [torch.float32, torch.bfloat16])
def test_a_gradient_that_the_loop_still_holds_does_not_change_with_the_next_step(
    wire: torch.dtype,
) -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 6)
    exchange = GradientExchange([model], riders=1, ordered=True, wire_dtype=wire)
    world = World()

    def one_step(seed: int) -> torch.Tensor:
        step(exchange, world, lambda i: model(samples(seed + i, 5, 6)).square().mean())
        assert model.weight.grad is not None
        return model.weight.grad

    first = one_step(0)
    place, before = first.data_ptr(), first.clone()
    del first
    held = one_step(10).detach()  # also a tensor of its own that shares the memory
    assert held.data_ptr() == place, "memory that nobody holds is used again"
    assert not torch.equal(held, before)
    kept = held.clone()
    assert one_step(20).data_ptr() != place
    assert torch.equal(held, kept), "the loop's gradient was overwritten"


_SOON: dict[str, Any] = {"timeout_s": 10, "clock": SystemClock(), "poll_s": 0.001}


class Patient(World):
    """Lets torch's own threads let go of a collective too, which they do a moment later."""

    exchange: GradientExchange

    def forget_ended(self) -> None:
        super().forget_ended()
        assert self.exchange._sums is not None
        for bucket in self.exchange._sums.gradients._buckets:
            flat, own = bucket._grads.flat, 1 + len(bucket._shapes)  # itself, and the views
            assert flat is not None
            assert wait_until(lambda t=flat, n=own: _holders(t) == n, **_SOON)


def places_of_gradients(given: World) -> list[int]:
    torch.manual_seed(0)
    model = nn.Linear(6, 6)
    world = Patient(
        rank=given.rank, size=given.size, group=given.group, host_group=given.host_group
    )
    world.exchange = exchange = GradientExchange([model], riders=1, ordered=True)
    places = []
    for seed in range(3):
        step(exchange, world, lambda i, s=seed: model(samples(s + i, 5, 6)).mean())
        assert model.weight.grad is not None
        places.append(model.weight.grad.data_ptr())
    return places


def test_memory_is_used_again_also_when_it_came_from_other_workers(workers: WorkerPool) -> None:
    for places in workers.run(2, places_of_gradients):
        assert len(set(places)) == 1


def test_gradients_are_ordinary_tensors_for_every_kind_of_optimizer() -> None:
    weights = []
    for options in ({"foreach": False}, {"foreach": True}, {"fused": True}):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 7), nn.Linear(7, 3))
        exchange = GradientExchange([model], riders=1, ordered=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, **options)
        for seed in range(3):
            step(exchange, World(), lambda i, m=model, s=seed: m(samples(s * 9 + i, 5, 6)).mean())
            for param in model.parameters():
                assert param.grad is not None
                assert param.grad.is_contiguous()
                assert param.grad.layout is torch.strided
                assert param.grad.grad_fn is None
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad(set_to_none=seed != 1)
        weights.append([p.detach().numpy().copy() for p in model.parameters()])
    for others in weights[1:]:
        for ours, theirs in zip(weights[0], others, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)


def test_a_gradient_that_comes_in_parts_is_told_with_the_cure() -> None:
    layer = nn.Linear(6, 6)

    def reentrant(x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = checkpoint(layer, x, use_reentrant=True)
        return y

    exchange = GradientExchange([layer], riders=1, ordered=True)
    with pytest.raises(ConfigError, match=r"in several parts.*use_reentrant=False"):
        step(
            exchange,
            World(),
            lambda i: reentrant(reentrant(samples(i, 5, 6).requires_grad_())).mean(),
        )


def test_gradients_that_the_loop_made_before_count_as_well() -> None:
    found = []
    for split in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(6, 6)
        exchange = GradientExchange([model], riders=1, ordered=True)

        def loss(shard: int, model: nn.Module = model, split: bool = split) -> torch.Tensor:
            extra = model(samples(90 + shard, 5, 6)).sum()
            main = model(samples(shard, 5, 6)).sum()
            if not split:
                return extra + main
            (extra / SHARDS).backward()
            return main

        step(exchange, World(), loss)
        assert model.weight.grad is not None
        found.append(model.weight.grad.clone())
    torch.testing.assert_close(*found)


def wire_step(world: World, wire: torch.dtype) -> dict[str, bytes]:
    torch.manual_seed(0)
    model = Peculiar()
    exchange = GradientExchange([model], riders=2, ordered=True, wire_dtype=wire)
    found: dict[str, bytes] = {}
    for seed in range(2):
        riders = step(
            exchange,
            world,
            lambda i, s=seed: model(samples(10 * s + i, 5, 6)).square().mean(),
            riders=(1.001, 2.0**-20),
        )
        found |= {f"{seed}/{k}": v for k, v in everything(model).items()}
        found[f"{seed}/riders"] = np.asarray(riders, np.float32).tobytes()
    return found


def test_a_bfloat16_wire_has_the_same_bits_at_any_world_size_and_spares_what_rides_along(
    workers: WorkerPool,
) -> None:
    full = workers.run(1, wire_step, torch.float32)[0]
    alone = workers.run(1, wire_step, torch.bfloat16)[0]
    for size in (2, 3, 4):
        for result in workers.run(size, wire_step, torch.bfloat16):
            assert result == alone
    grads = {name for name in full if name.endswith(".grad")}
    assert any(full[name] != alone[name] for name in grads), "nothing was rounded"
    for name in full.keys() - grads:
        assert full[name] == alone[name], f"{name} was rounded"


@pytest.mark.parametrize("shards", [1, 2, 5, 8, 16])
def test_the_error_of_a_bfloat16_wire_is_within_what_is_promised(shards: int) -> None:
    torch.manual_seed(shards)
    weight = nn.Parameter(torch.zeros(20_000))
    model = nn.Module()
    model.weight = weight
    grads = [torch.randn(20_000) for _ in range(shards)]
    exchange = GradientExchange([model], riders=1, ordered=True, wire_dtype=torch.bfloat16)
    exchange.begin_step(range(shards), shards, World())
    for shard in range(shards):
        exchange.begin_shard(last=shard == shards - 1)
        exchange.backward((weight * grads[shard]).sum(), shard)
        exchange.collect(shard, weight=1 / shards, riders=[1.0])
    exchange.finish()
    assert weight.grad is not None
    assert weight.grad.dtype is torch.float32
    exact = torch.stack(grads).double()
    error = (weight.grad.double() - exact.sum(0)).abs() / exact.abs().sum(0)
    assert 0 < error.max() <= (math.ceil(math.log2(shards)) + 1) * 2.0**-8
    # "Some tenths of a percent" of the gradient's length, which is what an optimizer sees.
    relative = (weight.grad.double() - exact.sum(0)).norm() / exact.sum(0).norm()
    assert relative < 5e-3


def test_a_wire_dtype_is_one_of_two_and_goes_with_the_ordered_sum() -> None:
    assert wire_dtype_of("bfloat16", ordered=True) is torch.bfloat16
    assert wire_dtype_of(torch.bfloat16, ordered=True) is torch.bfloat16
    assert wire_dtype_of(torch.float32, ordered=False) is torch.float32
    for given, ordered, words in (
        ("float16", True, "must be 'float32' or 'bfloat16', got 'float16'"),
        (torch.float64, True, "got torch.float64"),
        ("bfloat16", False, "goes with reduction='ordered'"),
    ):
        with pytest.raises(SpotrayError, match=words):
            wire_dtype_of(given, ordered=ordered)
