"""What a training loop sets in its optimizers outlives the load of another job's state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


def own_hyperparameters(parts: Iterable[object]) -> Callable[[], None]:
    """Note what the loop set in its optimizers and schedulers (learning rate, weight decay, ...).

    Another job's state brings that job's values; the function that is returned sets the noted
    ones again. What a scheduler did so far stays: where it had brought the learning rate to a
    tenth of the first one, the rate becomes a tenth of this loop's.

    Args:
        parts: What the loop prepared; others than optimizers and schedulers are passed over.
    """
    parts = list(parts)
    optimizers = [
        (one, [_options(group) for group in one.param_groups])
        for one in parts
        if isinstance(one, Optimizer)
    ]
    schedulers = [
        (one, list(one.base_lrs)) for one in _schedulers(parts) if hasattr(one, "base_lrs")
    ]

    def put_back() -> None:
        for optimizer, noted in optimizers:
            for group, own in zip(optimizer.param_groups, noted, strict=True):
                loaded, first = float(group["lr"]), float(group.get("initial_lr", group["lr"]))
                rate = float(own.get("initial_lr", own["lr"]))
                if first:
                    rate *= loaded / first
                group.update(own)
                if isinstance(own["lr"], torch.Tensor):
                    group["lr"] = torch.full_like(own["lr"], rate)
                else:
                    group["lr"] = rate
        for scheduler, base_lrs in schedulers:
            scheduler.base_lrs = base_lrs
            scheduler._last_lr = [group["lr"] for group in scheduler.optimizer.param_groups]

    return put_back


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.clone() if isinstance(value, torch.Tensor) else value
        for name, value in group.items()
        if name != "params"
    }


def _schedulers(parts: Iterable[object]) -> Iterator[Any]:
    """All schedulers, also those inside of others (`SequentialLR`, `ChainedScheduler`)."""
    for part in parts:
        if isinstance(part, LRScheduler):
            yield part
            yield from _schedulers(getattr(part, "_schedulers", ()))
