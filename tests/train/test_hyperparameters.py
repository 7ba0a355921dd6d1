"""Another job's optimizer state, with this loop's own settings."""

from __future__ import annotations

import torch
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, SequentialLR

from spotray.train.hyperparameters import own_hyperparameters


def adamw(lr: float, weight_decay: float = 0.0) -> AdamW:
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    return AdamW([weight], lr=lr, weight_decay=weight_decay)


def load(mine: Optimizer, theirs: Optimizer, *more: object) -> None:
    put_back = own_hyperparameters([mine, *more])
    mine.load_state_dict(theirs.state_dict())
    put_back()


def test_moments_come_from_the_other_job_and_settings_from_this_loop() -> None:
    theirs, mine = adamw(0.1, weight_decay=0.5), adamw(0.02)
    theirs.step()
    load(mine, theirs)
    (group,) = mine.param_groups
    assert group["lr"] == 0.02
    assert group["weight_decay"] == 0.0
    (state,) = mine.state.values()
    assert float(state["step"]) == 1.0
    assert state["exp_avg"].any()


def test_a_decay_that_was_under_way_goes_on_from_the_own_rate() -> None:
    theirs, mine = SGD(adamw(1).param_groups[0]["params"], lr=0.4), adamw(0.1)
    other, own = (LambdaLR(one, lambda step: 0.5**step) for one in (theirs, mine))
    theirs.step()
    other.step()
    other.step()
    put_back = own_hyperparameters([own])
    noted = own_hyperparameters([mine])
    own.load_state_dict(other.state_dict())
    mine.param_groups[0].update(lr=theirs.param_groups[0]["lr"], initial_lr=0.4)
    noted()
    put_back()
    assert abs(mine.param_groups[0]["lr"] - 0.1 / 4) < 1e-12
    mine.step()
    own.step()
    assert abs(mine.param_groups[0]["lr"] - 0.1 / 8) < 1e-12


def test_schedulers_inside_of_others_keep_their_own_rates() -> None:
    def scheduled(lr: float) -> tuple[AdamW, SequentialLR]:
        optimizer = adamw(lr)
        parts = [LinearLR(optimizer, 0.5, total_iters=2), CosineAnnealingLR(optimizer, 10)]
        return optimizer, SequentialLR(optimizer, parts, milestones=[2])

    theirs, other = scheduled(1.0)
    mine, own = scheduled(0.1)
    alone, reference = scheduled(0.1)
    for _ in range(3):
        theirs.step()
        other.step()
        alone.step()
        reference.step()
    put_back = own_hyperparameters([mine, own])
    mine.load_state_dict(theirs.state_dict())
    own.load_state_dict(other.state_dict())
    put_back()
    for _ in range(5):
        torch.testing.assert_close(mine.param_groups[0]["lr"], alone.param_groups[0]["lr"])
        for one in (mine, own, alone, reference):
            one.step()


def test_a_rate_that_lives_in_a_tensor_stays_in_one() -> None:
    mine = AdamW(adamw(1).param_groups[0]["params"], lr=torch.tensor(0.02))
    load(mine, adamw(0.1))
    assert isinstance(mine.param_groups[0]["lr"], torch.Tensor)
    assert abs(float(mine.param_groups[0]["lr"]) - 0.02) < 1e-8
