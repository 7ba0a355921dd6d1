"""The gradients of a step's shards, summed bucket by bucket while backward still runs.

A bucket is a run of parameters whose gradients share one vector. Parameters are taken
in reverse order, for backward produces the last ones' gradients first; as soon as a
worker's last shard has filled a bucket, its sum over all workers starts.

What is done to a gradient depends on its parameter and on the tree over the shards, and
not on the bucket, so how buckets are cut changes no bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from spotray.train.reduction import ALIGNED, Merge, Node, Pipeline, VectorSum, merges
from spotray.train.world import World

# Fewer, larger buckets take less of the processor's time: 8 MiB took 6 % more than 25 MiB at
# 4 workers over loopback. The first one is small, so that the wire is busy early.
_FIRST_BYTES = 1 << 20
_BUCKET_BYTES = 25 << 20


class GradientSum:
    """Takes the gradients of one shard after the other, and sums them over all workers.

    Belongs to one world: another one takes a new object, and so does a world that broke
    while a sum was under way, since the memory may still be written to.

    Args:
        params: In the same order on all workers.
        world: The workers.
        dtype: In which gradients are added up and sent.
        pipeline: Where the sums go, in the order of the buckets.
    """

    def __init__(
        self,
        params: Sequence[nn.Parameter],
        *,
        world: World,
        dtype: torch.dtype,
        pipeline: Pipeline,
    ) -> None:
        self._world = world
        self._pipeline = pipeline
        self._buckets: list[_Bucket] = []
        self._place = [(0, 0)] * len(params)  # bucket, position in it
        for b, members in enumerate(cut(params, dtype)):
            self._buckets.append(_Bucket([params[i] for i in members], world=world, dtype=dtype))
            for k, i in enumerate(members):
                self._place[i] = (b, k)
        self._merges: Mapping[int, Merge] = {}
        self._shards = 0
        self._taken = [False] * len(params)
        self._last = False
        self._next = 0  # the bucket whose sum starts next

    def begin_step(self, held: range, shards: int) -> None:
        """Start a step whose shards ``held`` are this worker's.

        The gradients of the step before must be out of use by now. Those that somebody
        still holds are left to him, and new memory is taken.
        """
        self._merges = merges(held, shards)
        self._shards = shards
        self._next = 0
        self._world.forget_ended()  # the last step's sums are not somebody who holds gradients
        for bucket in self._buckets:
            bucket.begin_step()

    def begin_shard(self, shard: int, *, last: bool) -> None:
        """The gradients to come are those of ``shard``, the ``last`` one of this worker or not."""
        self._last = last
        self._taken = [False] * len(self._taken)
        for bucket in self._buckets:
            bucket.begin_shard(self._merges[shard])

    def is_taken(self, index: int) -> bool:
        """Whether this shard's gradient of a parameter was taken."""
        return self._taken[index]

    def take(self, index: int, grad: torch.Tensor | None) -> None:
        """Take this shard's gradient of a parameter; None if it has none.

        With a bucket's last gradient of the last shard, its sum starts.

        Raises:
            WorldBroken: a worker was lost meanwhile.
        """
        self._taken[index] = True
        b, k = self._place[index]
        self._buckets[b].take(k, grad)
        if self._last and b == self._next:
            self._start_full()

    def start_all(self) -> None:
        """Start the sums that have not started: this worker has no more shards.

        Raises:
            WorldBroken: a worker was lost meanwhile.
        """
        for bucket in self._buckets[self._next :]:
            bucket.missing = 0
        self._start_full()

    def gradients(self) -> list[torch.Tensor]:
        """The sum for each parameter, once the pipeline is through; of the parameter's dtype."""
        found = [bucket.gradients() for bucket in self._buckets]
        return [found[b][k] for b, k in self._place]

    def _start_full(self) -> None:
        while self._next < len(self._buckets) and self._buckets[self._next].missing == 0:
            bucket = self._buckets[self._next]
            self._next += 1
            bucket.start(self._pipeline, self._shards)


def cut(params: Sequence[nn.Parameter], dtype: torch.dtype) -> list[list[int]]:
    """Indices of the parameters of each bucket, in the order in which the sums start."""
    buckets: list[list[int]] = []
    kind: torch.dtype | None = None  # of the parameters: one vector of gradients has one dtype
    filled = 0
    for i in reversed(range(len(params))):
        limit = _FIRST_BYTES if len(buckets) == 1 else _BUCKET_BYTES
        if params[i].dtype is not kind or filled >= limit:
            buckets.append([])
            kind, filled = params[i].dtype, 0
        buckets[-1].append(i)
        filled += params[i].numel() * dtype.itemsize
    return buckets


@dataclass(frozen=True)
class _Vector:
    """A value for each parameter of a bucket, and the vector of which they are views."""

    values: list[torch.Tensor]
    flat: torch.Tensor | None  # None: gradients as backward left them


class _Bucket:
    """Parameters of one dtype whose gradients share a vector."""

    def __init__(self, params: Sequence[nn.Parameter], *, world: World, dtype: torch.dtype) -> None:
        self.missing = 0  # gradients of the shard under way that are still to come
        self._shapes = [p.shape for p in params]
        self._offsets: list[int] = []
        length = 0
        for param in params:
            self._offsets.append(length)
            length += -(-param.numel() // ALIGNED) * ALIGNED
        device, self._dtype = params[0].device, dtype
        self._sum = VectorSum(length, world=world, dtype=dtype, device=device)
        self._alone = world.size == 1
        self._total = self._cut(self._sum.total)
        self._grads = self._total
        if params[0].dtype is not dtype:
            self._grads = self._cut(torch.empty(length, dtype=params[0].dtype, device=device))
        zero = torch.zeros((), dtype=dtype, device=device)
        self._zeros = [zero.expand(shape) for shape in self._shapes]
        self._free: list[_Vector] = []
        self._parts: dict[Node, _Vector] = {}
        self._lefts: list[list[torch.Tensor]] = []  # what the shard under way is added to
        self._into: _Vector | None = None  # where that goes

    def begin_step(self) -> None:
        self._release(self._parts.values())
        self._parts = {}
        self._into = None
        kept = self._grads.flat
        assert kept is not None, "made by _cut"
        if _holders(kept) > 1 + len(self._shapes):
            # The loop holds a gradient of the step before. It must not change in its hands.
            if self._grads is self._total:
                self._sum.renew_total()
                self._grads = self._total = self._cut(self._sum.total)
            else:
                self._grads = self._cut(torch.empty_like(kept))

    def begin_shard(self, merge: Merge) -> None:
        self.missing = len(self._shapes)
        lefts = [self._parts.pop(left) for left in merge.lefts]
        self._lefts = [left.values for left in lefts]
        if lefts and lefts[-1].flat is not None:
            self._into = lefts.pop()
        elif lefts or merge.is_subtree:
            # Where nobody else adds, what begins with shard 0 will be the sum.
            to_total = self._alone and merge.node[0] == 0
            self._into = self._total if to_total else self._vector()
        else:
            self._into = _Vector(list(self._zeros), None)
        self._release(lefts)
        self._parts[merge.node] = self._into

    def take(self, k: int, grad: torch.Tensor | None) -> None:
        """Add the ``k``-th parameter's gradient to what it completes."""
        self.missing -= 1
        assert self._into is not None, "begin_shard comes first"
        value = self._zeros[k] if grad is None else grad.to(self._dtype)
        if self._into.flat is None:
            self._into.values[k] = value
        elif not self._lefts:
            self._into.values[k].copy_(value)
        else:
            for left in self._lefts[:-1]:
                value = left[k] + value
            torch.add(self._lefts[-1][k], value, out=self._into.values[k])

    def start(self, pipeline: Pipeline, shards: int) -> None:
        parts = {node: v.flat for node, v in self._parts.items() if v.flat is not None}
        pipeline.start(self._sum, parts, shards)

    def gradients(self) -> list[torch.Tensor]:
        if self._grads is not self._total:
            assert self._grads.flat is not None, "made by _cut"
            self._grads.flat.copy_(self._sum.total[: self._sum.length])
        return self._grads.values

    def _vector(self) -> _Vector:
        return self._free.pop() if self._free else self._cut(self._sum.new())

    def _release(self, vectors: Iterable[_Vector]) -> None:
        self._free += [v for v in vectors if v.flat is not None and v is not self._total]

    def _cut(self, flat: torch.Tensor) -> _Vector:
        return _Vector(
            [
                flat[offset : offset + shape.numel()].view(shape)
                for offset, shape in zip(self._offsets, self._shapes, strict=True)
            ],
            flat,
        )


def _holders(tensor: torch.Tensor) -> int:
    """Tensors that share this one's memory, itself included."""
    storage = tensor.untyped_storage()
    holders: int = torch._C._storage_Use_Count(storage._cdata)
    return holders - 1  # less the object that asks
