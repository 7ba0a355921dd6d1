"""From per-shard gradients to the step's gradient, the same at any number of workers.

Each shard's backward pass leaves one vector: its gradients, the change of its
buffers (BatchNorm's running statistics), whether each parameter had a gradient at
all, and a few numbers that ride along (loss, samples, what the workers want to do
next). The vectors of all shards are summed, by `ordered_sum` or by torch's DDP.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from spotray.errors import ConfigError
from spotray.train.reduction import ShardSum, ordered_sum
from spotray.train.world import World


class GradientExchange:
    """Collects the vectors of a step's shards and writes their sum into the models.

    Args:
        modules: The user's models. Parameters must not be added, frozen or
            unfrozen afterwards.
        riders: How many extra numbers each vector carries.
        ordered: Sum in the fixed order; else DDP sums the gradients as it likes.
    """

    def __init__(self, modules: Iterable[nn.Module], *, riders: int, ordered: bool) -> None:
        self._modules = list(modules)
        self._params = self._trained()
        if any(p.is_complex() for p in self._params):
            raise ConfigError("complex parameters cannot be trained: use real pairs instead")
        self._owned = _owned_buffers(self._modules)
        self._buffers = [
            torch.view_as_real(b) if b.is_complex() else b
            for _, _, b in self._owned
            if b.dtype is not torch.bool
        ]
        self._base = [b.detach().clone() for b in self._buffers]
        self._ordered = ordered
        self._riders = riders
        summed = self._params if ordered else []
        shapes = [p.shape for p in summed] + [b.shape for b in self._buffers]
        self._sizes = [s.numel() for s in shapes]
        self._shapes = shapes
        self._presence = len(summed)
        self.length = sum(self._sizes) + self._presence + riders
        wide = any(t.dtype is torch.float64 for t in [*self._params, *self._buffers])
        self._dtype = torch.float64 if wide else torch.float32
        self._device = self._params[0].device if self._params else torch.device("cpu")
        self._free: list[torch.Tensor] = []
        self._sum: ShardSum | None = None
        self._hidden: list[torch.Tensor | None] | None = None

    def begin_step(self, held: range, shards: int) -> None:
        """Start a step whose shards ``held`` are this worker's."""
        trained = self._trained()
        if len(trained) != len(self._params) or any(
            a is not b for a, b in zip(trained, self._params, strict=True)
        ):
            raise ConfigError(
                "the models' trainable parameters changed after run.prepare(): freeze or add "
                "them before it"
            )
        self._sum = ShardSum(held, shards, self._free)
        self._take_over_assigned()
        # Loops also call zero_grad() before backward(), where it comes too early for us,
        # or never; old gradients would count once for each worker.
        self._drop_grads()
        for base, buffer in zip(self._base, self._buffers, strict=True):
            base.copy_(buffer)

    def begin_shard(self, *, last: bool) -> None:
        """Prepare for the forward pass of a shard; ``last`` of this worker in the step."""
        for module in self._modules:
            if isinstance(module, DistributedDataParallel):
                module.require_backward_grad_sync = last
        if self._hidden is not None:
            for param, grad in zip(self._params, self._hidden, strict=True):
                param.grad = grad
            self._hidden = None

    @torch.no_grad()
    def abandon(self) -> None:
        """Forget an unfinished step: its loop was left early. Its traces are removed."""
        if self._sum is None:
            return
        self._free.extend(self._sum.parts.values())
        self._sum = None
        self._hidden = None
        self._take_over_assigned()
        self._put_back(self._base)
        self._drop_grads()

    @torch.no_grad()
    def collect(self, shard: int | None, *, weight: float, riders: Sequence[float]) -> None:
        """Take the gradients of a shard out of the models.

        Args:
            shard: Its index in the step, or None for a shard that only keeps
                this worker in step with the others and must leave no trace.
            weight: The shard's part of the global batch, 0..1; scales its buffers.
            riders: The extra numbers, of which the sum over shards is wanted.

        Raises:
            ConfigError: a gradient is sparse.
        """
        assert self._sum is not None, "begin_step comes first"
        self._take_over_assigned()
        if shard is None:
            self._put_back(self._base)
            if self._ordered:
                self._drop_grads()
            return
        vector = self._free.pop() if self._free else self._vector()
        parts = vector.split([*self._sizes, self._presence, self._riders])
        if self._ordered:
            for part, param in zip(parts, self._params, strict=False):
                if param.grad is None:
                    part.zero_()
                elif param.grad.layout is not torch.strided:
                    raise ConfigError(
                        f"a parameter of shape {tuple(param.shape)} has a sparse gradient, which "
                        "has no fixed place in the sum: use nn.Embedding(..., sparse=False)"
                    )
                else:
                    part.view(param.shape).copy_(param.grad)
            present = [float(p.grad is not None) for p in self._params]
            parts[-2].copy_(torch.tensor(present, dtype=self._dtype))
            self._drop_grads()
        for part, buffer, base in zip(
            parts[self._presence :], self._buffers, self._base, strict=False
        ):
            # Counters are alike in all shards: the first one's change is the change.
            # What did not change stays as it is, also where it is infinite.
            share = weight if buffer.is_floating_point() else float(shard == 0)
            change = torch.where(buffer == base, torch.zeros_like(base), buffer - base)
            part.view(buffer.shape).copy_(change).mul_(share)
        self._put_back(self._base)
        parts[-1].copy_(torch.tensor(riders, dtype=self._dtype))
        self._sum.add(shard, vector)

    @torch.no_grad()
    def hide(self) -> None:
        """Put unfinished gradients out of sight, so that clipping or a step finds none."""
        if not self._ordered:
            self._hidden = [p.grad for p in self._params]
            self._drop_grads()

    @torch.no_grad()
    def finish(self, world: World) -> list[float]:
        """Sum over all workers' shards, write gradients and buffers; the summed riders.

        Raises:
            WorldBroken: a worker was lost meanwhile.
        """
        assert self._sum is not None, "begin_step comes first"
        like = torch.empty(0, dtype=self._dtype, device=self._device)
        if self._ordered:
            total = ordered_sum(self._sum, length=self.length, world=world, like=like)
        else:
            total = like.new_zeros(self.length)
            for part in self._sum.parts.values():
                total.add_(part)
            world.sum_(total)
        parts = total.split([*self._sizes, self._presence, self._riders])
        if self._ordered:
            present = parts[-2].tolist()
            for part, param, count in zip(parts, self._params, present, strict=False):
                param.grad = part.view(param.shape).to(param.dtype, copy=True) if count else None
        for part, buffer, base in zip(
            parts[self._presence :], self._buffers, self._base, strict=False
        ):
            buffer.copy_(base + part.view(buffer.shape).to(buffer.dtype))
        self._free.extend(self._sum.parts.values())
        self._sum = None
        riders: list[float] = parts[-1].tolist()
        return riders

    def _trained(self) -> list[nn.Parameter]:
        seen: dict[int, nn.Parameter] = {}
        for module in self._modules:
            for param in module.parameters():
                if param.requires_grad:
                    seen.setdefault(id(param), param)
        return list(seen.values())

    @torch.no_grad()
    def _take_over_assigned(self) -> None:
        """Bring buffers that a module exchanged for new tensors back into their own ones.

        ``self.mean = 0.9 * self.mean + ...`` is as good a buffer update as one in place.
        """
        for module, name, own in self._owned:
            now = module._buffers.get(name)
            if now is not None and now is not own and now.shape == own.shape:
                own.copy_(now)
                module._buffers[name] = own

    def _vector(self) -> torch.Tensor:
        return torch.empty(self.length, dtype=self._dtype, device=self._device)

    def _put_back(self, values: Sequence[torch.Tensor]) -> None:
        for buffer, value in zip(self._buffers, values, strict=True):
            buffer.copy_(value)

    def _drop_grads(self) -> None:
        for param in self._params:
            param.grad = None


def _owned_buffers(modules: Iterable[nn.Module]) -> list[tuple[nn.Module, str, torch.Tensor]]:
    """Each buffer once, with the module and the name that hold it."""
    seen: dict[int, tuple[nn.Module, str, torch.Tensor]] = {}
    for root in modules:
        for module in root.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    seen.setdefault(id(buffer), (module, name, buffer))
    return list(seen.values())
