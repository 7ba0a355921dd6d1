"""Optimizer, scheduler and scaler act once per global batch, as if the batch came at once."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau, StepLR

from spotray.train.optim import ElasticGradScaler, ElasticOptimizer, ElasticScheduler
from spotray.train.run import Run
from spotray.train.world import World
from tests.train.workers import WorkerPool


class Gate:
    """Whether the global batch is complete."""

    def __init__(self) -> None:
        self.is_open = False

    def __call__(self) -> bool:
        return self.is_open


@pytest.fixture
def gate() -> Gate:
    return Gate()


def sgd(**options: Any) -> torch.optim.SGD:
    param = nn.Parameter(torch.ones(2))
    param.grad = torch.ones(2)
    return torch.optim.SGD([param], lr=0.5, **options)


def test_an_optimizer_waits_for_the_complete_gradient(gate: Gate) -> None:
    plain = sgd()
    (param,) = plain.param_groups[0]["params"]
    optimizer = ElasticOptimizer(plain, gate)
    optimizer.step()
    optimizer.zero_grad()
    assert param.tolist() == [1.0, 1.0]
    assert param.grad is not None
    gate.is_open = True
    optimizer.step()
    optimizer.zero_grad()
    assert param.tolist() == [0.5, 0.5]
    assert param.grad is None


def test_a_closure_is_refused(gate: Gate) -> None:
    with pytest.raises(TypeError, match="need a closure cannot be prepared"):
        ElasticOptimizer(sgd(), gate).step(lambda: 1.0)


def test_it_is_an_optimizer_to_whoever_asks(gate: Gate) -> None:
    optimizer = ElasticOptimizer(sgd(momentum=0.5), gate)
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert optimizer.defaults["momentum"] == 0.5
    assert "SGD" in repr(optimizer)
    optimizer.param_groups[0]["lr"] = 0.25
    assert optimizer.inner.param_groups[0]["lr"] == 0.25
    calls = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    gate.is_open = True
    optimizer.step()
    assert calls == [1]


def test_groups_added_later_are_the_inner_optimizers(gate: Gate) -> None:
    optimizer = ElasticOptimizer(sgd(), gate)
    late = nn.Parameter(torch.ones(1))
    late.grad = torch.ones(1)
    optimizer.add_param_group({"params": [late], "lr": 0.1})
    assert len(optimizer.inner.param_groups) == 2
    gate.is_open = True
    optimizer.step()
    assert late.item() == pytest.approx(0.9)


def test_its_state_goes_into_the_plain_optimizer_and_back(gate: Gate) -> None:
    gate.is_open = True
    optimizer = ElasticOptimizer(sgd(momentum=0.9), gate)
    optimizer.step()
    plain = sgd(momentum=0.9)
    plain.load_state_dict(optimizer.state_dict())
    (slot,) = plain.state.values()
    assert slot["momentum_buffer"].tolist() == [1.0, 1.0]
    again = ElasticOptimizer(sgd(momentum=0.9), gate)
    again.load_state_dict(plain.state_dict())
    assert len(again.state) == 1


@pytest.mark.parametrize("made", ["before", "after"])
def test_a_scheduler_counts_steps_and_not_micro_batches(gate: Gate, made: str) -> None:
    plain = sgd()
    optimizer = ElasticOptimizer(plain, gate)
    # Before prepare() a scheduler is made on the plain optimizer, after it on ours.
    target: torch.optim.Optimizer = plain if made == "before" else optimizer
    scheduler = ElasticScheduler(StepLR(target, step_size=1, gamma=0.1), gate)
    for _ in range(3):
        gate.is_open = False
        optimizer.step()
        scheduler.step()
        gate.is_open = True
        optimizer.step()
        scheduler.step()
    assert plain.param_groups[0]["lr"] == pytest.approx(0.5e-3)
    assert scheduler.get_last_lr() == [pytest.approx(0.5e-3)]
    assert scheduler.last_epoch == 3


def test_a_scheduler_that_looks_at_a_metric_gets_it(gate: Gate) -> None:
    gate.is_open = True
    plain = sgd()
    scheduler = ElasticScheduler(ReduceLROnPlateau(plain, factor=0.1, patience=0), gate)
    for metric in (1.0, 2.0, 3.0):
        scheduler.step(metric)
    assert plain.param_groups[0]["lr"] == pytest.approx(0.005)
    other = ElasticScheduler(ReduceLROnPlateau(sgd(), factor=0.1, patience=0), gate)
    other.load_state_dict(scheduler.state_dict())
    assert other.best == 1.0


def test_a_scaler_waits_and_then_skips_an_infinite_gradient(gate: Gate) -> None:
    plain = sgd()
    (param,) = plain.param_groups[0]["params"]
    optimizer = ElasticOptimizer(plain, gate)
    scaler = ElasticGradScaler(torch.amp.GradScaler("cpu", init_scale=8.0), gate)
    assert scaler.scale(torch.ones(1)).item() == 8.0

    def act(grad: float) -> None:
        param.grad = torch.full((2,), grad)
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()

    act(8.0)
    assert param.tolist() == [1.0, 1.0]
    assert param.grad is not None
    assert param.grad.tolist() == [8.0, 8.0], "unscaled before the gradient was complete"
    gate.is_open = True
    act(math.inf)
    assert param.tolist() == [1.0, 1.0]
    assert scaler.get_scale() == 4.0
    act(4.0)
    assert param.tolist() == [0.5, 0.5]
    fresh = ElasticGradScaler(torch.amp.GradScaler("cpu"), gate)
    fresh.load_state_dict(scaler.state_dict())
    assert fresh.get_scale() == 4.0


class Numbers(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index), 1.0])


def scaled_training(world: World, explode_in_shard_of: int) -> dict[str, Any]:
    """Six steps; the loss of the micro-batch with that sample overflows when it is scaled."""
    run = Run(global_batch_size=8, micro_batch_size=2)
    run._stepping.world = world
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scheduler = LambdaLR(optimizer, lambda step: 0.9**step)
    model, optimizer, scheduler, scaler, loader = run.prepare(
        model, optimizer, scheduler, torch.amp.GradScaler("cpu", init_scale=2.0**10), Numbers()
    )
    first = model.weight.detach().numpy().tobytes()
    weights, scales = [], []
    for _ in run.epochs(2):
        for x in loader:
            loss = model(x).square().mean()
            if (x[:, 0] == explode_in_shard_of).any():
                loss = loss * 3e38
            run.backward(scaler.scale(loss))
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scheduler.step()
            if run._stepping.is_complete:
                weights.append(model.weight.detach().numpy().tobytes())
                scales.append(scaler.get_scale())
    return {"first": first, "weights": weights, "scales": scales, "lr": scheduler.get_last_lr()}


def test_an_infinite_gradient_in_one_shard_skips_the_step_on_all_workers(
    workers: WorkerPool,
) -> None:
    (alone,) = workers.run(1, scaled_training, 5)
    assert alone["scales"][-1] == 2.0**8, "one step in each of two epochs was to be skipped"
    skipped = [a == b for a, b in itertools.pairwise([alone["first"], *alone["weights"]])]
    assert sum(skipped) == 2
    for size in (2, 3, 4):
        for result in workers.run(size, scaled_training, 5):
            assert result == alone
