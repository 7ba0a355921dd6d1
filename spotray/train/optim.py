"""Optimizer, scheduler and gradient scaler that act once per global batch.

As in Accelerate, the training loop calls them after every micro-batch, and they do
something only when the global batch is complete.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch.optim.lr_scheduler import LRScheduler

from spotray.train.state import Stateful

Inner = TypeVar("Inner", bound=Stateful)
Complete = Callable[[], bool]  # whether the step's gradient is complete


class ElasticOptimizer(torch.optim.Optimizer):
    """The user's optimizer; ``step`` and ``zero_grad`` wait for the complete gradient."""

    def __init__(self, inner: torch.optim.Optimizer, complete: Complete) -> None:
        # Optimizer.__init__ is left out on purpose: all state is the inner one's.
        self._inner = inner
        self._complete = complete

    @property
    def inner(self) -> torch.optim.Optimizer:
        """The user's own optimizer."""
        return self._inner

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self._inner.state

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self._inner.param_groups

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        return self._inner.defaults

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        if closure is not None:
            raise TypeError(
                "optimizers that need a closure cannot be prepared: the gradient of "
                "a global batch is summed once"
            )
        if self._complete():
            self._inner.step()
        return None

    def zero_grad(self, set_to_none: bool = True) -> None:
        if self._complete():
            self._inner.zero_grad(set_to_none=set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self._inner.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        return self._inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._inner.load_state_dict(state_dict)

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":  # not set yet, while unpickling
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __repr__(self) -> str:
        return f"ElasticOptimizer({self._inner!r})"


class _Around(Generic[Inner]):
    """The user's own object, in all that need not wait."""

    def __init__(self, inner: Inner, complete: Complete) -> None:
        self._inner = inner
        self._complete = complete

    def state_dict(self) -> dict[str, Any]:
        return self._inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._inner.load_state_dict(state_dict)

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":  # not set yet, while unpickling
            raise AttributeError(name)
        return getattr(self._inner, name)


class ElasticScheduler(_Around[LRScheduler]):
    """The user's learning-rate scheduler; ``step`` waits for the complete gradient."""

    def step(self, *args: Any, **kwargs: Any) -> None:
        if self._complete():
            self._inner.step(*args, **kwargs)


class ElasticGradScaler(_Around[torch.amp.GradScaler]):
    """The user's gradient scaler; everything but ``scale`` waits for the complete gradient.

    Whether a gradient is finite is judged on the sum over all shards, so all
    workers skip the same steps.
    """

    def scale(self, outputs: Any) -> Any:
        return self._inner.scale(outputs)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        if self._complete():
            self._inner.unscale_(_innermost(optimizer))

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        if self._complete():
            return self._inner.step(_innermost(optimizer), *args, **kwargs)
        return None

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        if self._complete():
            self._inner.update(new_scale)


def _innermost(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    return optimizer.inner if isinstance(optimizer, ElasticOptimizer) else optimizer
