"""From per-shard gradients to the step's gradient, the same at any number of workers.

Each shard's backward pass leaves its gradients, the change of its buffers (BatchNorm's
running statistics), whether each parameter had a gradient at all, and a few numbers that
ride along (loss, samples, what the workers want to do next). The gradients are summed over
all shards while the last backward pass is under way (`spotray.train.buckets`), or by
torch's DDP; the rest makes one vector, which is summed after it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from spotray.errors import ConfigError
from spotray.train.buckets import GradientSum
from spotray.train.ddp import ElasticDDP
from spotray.train.reduction import Pipeline, ShardSum, VectorSum
from spotray.train.sharded import ShardedGradients
from spotray.train.world import World


def wire_dtype_of(given: str | torch.dtype, *, ordered: bool) -> torch.dtype:
    """What gradients are sent in, from its name or from torch's object.

    Raises:
        ConfigError: another dtype, or one that only the ordered sum knows.
    """
    name = str(given).removeprefix("torch.")
    if name not in ("float32", "bfloat16"):
        raise ConfigError(f"wire_dtype must be 'float32' or 'bfloat16', got {given!r}")
    if name == "bfloat16" and not ordered:
        raise ConfigError(
            "wire_dtype='bfloat16' goes with reduction='ordered': leave it out for 'ddp'"
        )
    return torch.bfloat16 if name == "bfloat16" else torch.float32


class GradientExchange:
    """Collects the vectors of a step's shards and writes their sum into the models.

    Args:
        modules: The user's models. Parameters must not be added, frozen or
            unfrozen afterwards.
        riders: How many extra numbers each vector carries.
        ordered: Sum in the fixed order; else DDP sums the gradients as it likes.
        wire_dtype: bfloat16 rounds gradients, and every sum of some, to bfloat16, with
            the same bits at any number of workers; float32 rounds nothing.
        sharded: Sums the gradients in place of DDP, for models of which some are sharded.
    """

    def __init__(
        self,
        modules: Iterable[nn.Module],
        *,
        riders: int,
        ordered: bool,
        wire_dtype: torch.dtype = torch.float32,
        sharded: ShardedGradients | None = None,
    ) -> None:
        self._modules = list(modules)
        self._sharded = sharded
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
        self._shapes = [b.shape for b in self._buffers]
        self._sizes = [shape.numel() for shape in self._shapes]
        self._presence = len(self._params) if ordered else 0
        wide = any(t.dtype is torch.float64 for t in [*self._params, *self._buffers])
        self._dtype = torch.float64 if wide else torch.float32
        self._wire_dtype = self._dtype if wire_dtype is torch.float32 else wire_dtype
        self._device = self._params[0].device if self._params else torch.device("cpu")
        self._sums: _Sums | None = None  # made anew for another world
        self._local: ShardSum | None = None  # None: no step is under way
        self._last = False
        self._eager = False  # gradients are taken as they come
        self._begun = False  # some gradients of the shard under way may have been taken
        self._present: list[bool] = []  # which parameters have one
        self._hidden: list[torch.Tensor | None] | None = None
        if ordered:
            for index, param in enumerate(self._params):
                param.register_post_accumulate_grad_hook(_hook(weakref.ref(self), index))

    def begin_step(self, held: range, shards: int, world: World) -> None:
        """Start a step whose shards ``held`` are this worker's."""
        if self._sharded is not None:
            self._sharded.reshard()
        trained = self._trained()
        if len(trained) != len(self._params) or any(
            a is not b for a, b in zip(trained, self._params, strict=True)
        ):
            raise ConfigError(
                "the models' trainable parameters changed after run.prepare(): freeze or add "
                "them before it"
            )
        if self._sums is None or self._sums.world is not world:
            self._sums = None  # first, so that the memory of both is never held
            self._sums = self._new_sums(world)
        for module in self._modules:
            if isinstance(module, ElasticDDP):
                module.enter(world)
        self._local = ShardSum(held, shards, self._sums.free)
        self._take_over_assigned()
        # Loops also call zero_grad() before backward(), where it comes too early for us,
        # or never; old gradients would count once for each worker.
        self._drop_grads()
        if self._sharded is not None:
            self._sharded.drop()
        if self._ordered:
            self._sums.gradients.begin_step(held, shards)
        for base, buffer in zip(self._base, self._buffers, strict=True):
            base.copy_(buffer)

    def begin_shard(self, *, last: bool) -> None:
        """Prepare for the forward pass of a shard; ``last`` of this worker in the step."""
        self._last = last
        if self._sharded is not None:
            self._sharded.begin_shard(last=last)
        for module in self._modules:
            if isinstance(module, ElasticDDP):
                module.require_backward_grad_sync = last
        if self._hidden is not None:
            for param, grad in zip(self._params, self._hidden, strict=True):
                param.grad = grad
            self._hidden = None

    def backward(self, loss: torch.Tensor, shard: int | None) -> None:
        """Backward pass of a shard, whose gradients are taken as they come.

        With the last shard their sum starts meanwhile. `collect` comes next.

        Args:
            loss: What to differentiate.
            shard: As in `collect`.

        Raises:
            ConfigError: a gradient is sparse, or comes in parts.
            WorldBroken: a worker was lost meanwhile.
        """
        if self._ordered and shard is not None and not self._stays:
            self._begin_gradients(shard)
            self._eager = True
        try:
            loss.backward()
        finally:
            self._eager = False

    @torch.no_grad()
    def abandon(self) -> None:
        """Forget an unfinished step: its loop was left early, or a worker was lost.

        The models are left as they were at its start. Memory that a collective may
        still write to is never used again.
        """
        if self._local is None or self._sums is None:
            return
        if self._sums.pipeline.is_idle:
            self._sums.free.extend(self._local.parts.values())
        else:
            self._sums = None
        for module in self._modules:
            if isinstance(module, ElasticDDP):
                module.forget()
        self._local = None
        self._begun = False
        self._hidden = None
        self._take_over_assigned()
        self._put_back(self._base)
        self._drop_grads()
        if self._sharded is not None:
            self._sharded.drop()

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
            WorldBroken: a worker was lost meanwhile.
        """
        assert self._local is not None and self._sums is not None, "begin_step comes first"
        self._take_over_assigned()
        if shard is None:
            self._put_back(self._base)
            if self._ordered:
                self._drop_grads()
            return
        vector = self._sums.free.pop() if self._sums.free else self._sums.rest.new()
        parts = self._split(vector)
        if self._ordered:
            self._take_rest(shard)
            parts[-2].copy_(torch.tensor(self._present, dtype=self._dtype))
        for part, buffer, base in zip(parts, self._buffers, self._base, strict=False):
            # Counters are alike in all shards: the first one's change is the change.
            # What did not change stays as it is, also where it is infinite.
            share = weight if buffer.is_floating_point() else float(shard == 0)
            change = torch.where(buffer == base, torch.zeros_like(base), buffer - base)
            part.view(buffer.shape).copy_(change).mul_(share)
        self._put_back(self._base)
        parts[-1].copy_(torch.tensor(riders, dtype=self._dtype))
        self._local.add(shard, vector)

    @torch.no_grad()
    def hide(self) -> None:
        """Put unfinished gradients out of sight, so that clipping or a step finds none."""
        if not self._ordered:
            self._hidden = [p.grad for p in self._params]
            self._drop_grads()

    @torch.no_grad()
    def finish(self) -> list[float]:
        """Sum over all workers' shards, write gradients and buffers; the summed riders.

        Raises:
            WorldBroken: a worker was lost meanwhile.
        """
        assert self._local is not None and self._sums is not None, "begin_step comes first"
        sums, local = self._sums, self._local
        if self._ordered:
            if not self._stays:
                sums.gradients.start_all()
            sums.pipeline.start(sums.rest, local.parts, local.shards)
            sums.pipeline.finish()
            total = sums.rest.total
        else:
            total = sums.rest.new()
            for part in local.parts.values():
                total.add_(part)
            sums.world.sum_(total)
            if self._sharded is not None:
                for param in self._params:
                    _checked(param)
                self._sharded.sum_whole(sums.world)
        # Nothing is written before everything has come: a broken step leaves no trace.
        parts = self._split(total)
        if self._ordered and not self._stays:
            totals = sums.gradients.gradients()
            for param, grad, count in zip(self._params, totals, parts[-2].tolist(), strict=True):
                param.grad = grad if count else None
        for part, buffer, base in zip(parts, self._buffers, self._base, strict=False):
            buffer.copy_(base + part.view(buffer.shape).to(buffer.dtype))
        sums.free.extend(local.parts.values())
        self._local = None
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

    @property
    def _stays(self) -> bool:
        """Whether one shard is all there is: its gradients are the sum where they are."""
        assert self._sums is not None and self._local is not None, "begin_step comes first"
        return (
            self._sums.world.size == 1
            and self._local.shards == 1
            and self._wire_dtype is self._dtype
        )

    def _new_sums(self, world: World) -> _Sums:
        pipeline = Pipeline()
        params = self._params if self._ordered else []
        length = sum(self._sizes) + self._presence + self._riders
        return _Sums(
            world,
            pipeline,
            GradientSum(params, world=world, dtype=self._wire_dtype, pipeline=pipeline),
            VectorSum(length, world=world, dtype=self._dtype, device=self._device),
        )

    def _split(self, vector: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """One part for each buffer, then presence and riders; what is behind them is unused."""
        sizes = [*self._sizes, self._presence, self._riders]
        return tuple(vector[: sum(sizes)].split(sizes))

    def _begin_gradients(self, shard: int) -> None:
        assert self._sums is not None, "begin_step comes first"
        self._sums.gradients.begin_shard(shard, last=self._last)
        self._present = [False] * len(self._params)
        self._begun = True

    def _take_rest(self, shard: int) -> None:
        """Take the gradients that were not taken as they came; those of unused parameters."""
        assert self._sums is not None, "begin_step comes first"
        if self._stays:
            self._present = [_checked(param) is not None for param in self._params]
            return
        if not self._begun:
            self._begin_gradients(shard)
        for index in reversed(range(len(self._params))):
            if not self._sums.gradients.is_taken(index):
                self._take(index)
        self._begun = False

    def _take(self, index: int) -> None:
        param = self._params[index]
        assert self._sums is not None, "begin_step comes first"
        if self._sums.gradients.is_taken(index):
            raise ConfigError(
                f"a parameter of shape {tuple(param.shape)} got its gradient in several parts, of "
                "which the first is on its way already: with torch.utils.checkpoint, give it "
                "use_reentrant=False"
            )
        grad, param.grad = _checked(param), None
        self._present[index] = grad is not None
        self._sums.gradients.take(index, grad)

    def _put_back(self, values: Sequence[torch.Tensor]) -> None:
        for buffer, value in zip(self._buffers, values, strict=True):
            buffer.copy_(value)

    def _drop_grads(self) -> None:
        for param in self._params:
            param.grad = None


@dataclass(frozen=True)
class _Sums:
    """The sums of one world, in the memory that they keep."""

    world: World
    pipeline: Pipeline
    gradients: GradientSum
    rest: VectorSum  # buffers, presence, riders
    free: list[torch.Tensor] = field(default_factory=list)  # vectors of `rest`


def _hook(exchange: weakref.ref[GradientExchange], index: int) -> Callable[[torch.Tensor], None]:
    """What a parameter does when its gradient has come; it may outlive the exchange."""

    def taken(param: torch.Tensor) -> None:
        del param
        alive = exchange()
        if alive is not None and alive._eager:
            alive._take(index)

    return taken


def _checked(param: nn.Parameter) -> torch.Tensor | None:
    """The parameter's gradient, which must have a place for each element."""
    grad = param.grad
    if grad is not None and grad.layout is not torch.strided:
        raise ConfigError(
            f"a parameter of shape {tuple(param.shape)} has a sparse gradient, which "
            "has no fixed place in the sum: use nn.Embedding(..., sparse=False)"
        )
    return grad


def _owned_buffers(modules: Iterable[nn.Module]) -> list[tuple[nn.Module, str, torch.Tensor]]:
    """Each buffer once, with the module and the name that hold it."""
    seen: dict[int, tuple[nn.Module, str, torch.Tensor]] = {}
    for root in modules:
        for module in root.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    seen.setdefault(id(buffer), (module, name, buffer))
    return list(seen.values())
