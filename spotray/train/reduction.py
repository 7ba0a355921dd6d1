"""A sum over shards whose bits do not depend on who holds which shard.

Floating-point addition is not associative, so an ordinary all-reduce gives other
bits at another number of workers. Here the shards are the leaves of one fixed
binary tree; every worker adds the subtrees that it holds completely, workers
exchange subtree sums by chunks (all-to-all), the owner of a chunk finishes the
tree, and the chunks are gathered. On the wire this is what a ring all-reduce
moves, as long as a worker's shards form one subtree; runs that are not aligned
send up to ``2 log2(shards)`` subtrees.

The tree over ``shards`` leaves: node ``(start, size)`` with ``size`` a power of two
covers ``[start, min(start + size, shards))``; its value is the sum of its two
halves, or the left half alone where the right one is empty.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from spotray.train.order import shard_range
from spotray.train.world import Pending, World

Node = tuple[int, int]  # (start, size)

ALIGNED = 16  # elements: views begin where a fresh tensor could, whatever lies before them
_LAG = 1  # sums that start before the first one's chunk is finished; the same on all workers


def subtrees(held: range, shards: int) -> Iterator[Node]:
    """The largest tree nodes that lie wholly within ``held``, in order."""
    start = held.start
    while start < held.stop:
        size = start & -start if start else 1 << max(shards - 1, 0).bit_length()
        while min(start + size, shards) > held.stop:
            size //= 2
        yield _normal(start, size, shards)
        start = min(start + size, shards)


def tree_sum(
    parts: Mapping[Node, torch.Tensor], shards: int, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Value of the whole tree from the values of nodes that cover all its leaves.

    Args:
        parts: The values; their memory is used for what lies between them and the sum.
        shards: Leaves of the tree.
        out: Where the sum goes; by default into one of the parts.
    """

    return _value(parts, shards, 0, 1 << max(shards - 1, 0).bit_length(), out)


def _value(
    parts: Mapping[Node, torch.Tensor],
    shards: int,
    start: int,
    size: int,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    known = parts.get((start, size))
    if known is not None:
        return known if out is None else out.copy_(known)
    half = size // 2
    if start + half >= shards:
        return _value(parts, shards, start, half, out)
    left = _value(parts, shards, start, half)
    right = _value(parts, shards, start + half, half)
    return torch.add(left, right, out=left if out is None else out)


@dataclass(frozen=True)
class Merge:
    """What becomes of a shard's value: the subtrees to its left are added to it in turn."""

    lefts: tuple[Node, ...]  # each completes a larger subtree: left + value
    node: Node  # whose value comes out
    is_subtree: bool  # nothing of this worker is added to that any more


@lru_cache(maxsize=64)
def merges(held: range, shards: int) -> Mapping[int, Merge]:
    """For each shard of a worker, which subtrees are complete with it.

    Shards come in ascending order, and what came out of earlier ones is the left part
    of what is to come. In the end the values of `subtrees` are left.
    """
    want = set(subtrees(held, shards))
    found: dict[int, Merge] = {}
    for shard in held:
        start, size = shard, 1
        lefts: list[Node] = []
        while (start, size) not in want:
            if start % (2 * size):
                start -= size
                lefts.append((start, size))
            elif start + size < shards:
                break  # the sibling is still to come
            size *= 2  # also where the right half is empty
        found[shard] = Merge(tuple(lefts), (start, size), (start, size) in want)
    return found


class ShardSum:
    """Adds one worker's shards of one step, in the order of the tree.

    At most ``log2(shards) + 1`` buffers are alive at a time.
    """

    def __init__(self, held: range, shards: int, free: list[torch.Tensor] | None = None) -> None:
        """``free`` gets the vectors that are no longer needed, for the next shard."""
        self.held = held
        self._free = free if free is not None else []
        self.shards = shards
        self._merges = merges(held, shards)
        self.parts: dict[Node, torch.Tensor] = {}

    def add(self, shard: int, vector: torch.Tensor) -> None:
        """Add a shard's vector; shards come in ascending order. Takes the vector over."""
        merge = self._merges[shard]
        for left in merge.lefts:
            self._free.append(vector)
            vector = self.parts.pop(left).add_(vector)
        self.parts[merge.node] = vector


class VectorSum:
    """The sum over all workers' shards of vectors of one length, in memory that is kept.

    A sum takes three calls, the same on all workers: `start`, where this worker's
    subtrees leave; `turn`, where its chunk is summed and leaves; `wait`. Several sums may
    be under way if all workers make these calls in the same order (`Pipeline`).

    After a lost peer the memory may still be written to, so the object must be forgotten.
    """

    def __init__(
        self, length: int, *, world: World, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.length = length
        self._world = world
        self._chunk = _aligned(-(-length // world.size))
        self._dtype = dtype
        self._device = device
        self.total = self.new()  # (world.size * chunk,), the first `length` are the sum
        self._received: list[torch.Tensor] = []  # one for each turn of the all-to-all
        self._parts: dict[Node, torch.Tensor] = {}
        self._shards = 0
        self._pending: list[Pending] = []

    def new(self) -> torch.Tensor:
        """A vector as `start` takes it: longer than ``length``, so that it can be cut evenly."""
        size = self._world.size * self._chunk
        return torch.zeros(size, dtype=self._dtype, device=self._device)

    def start(self, parts: Mapping[Node, torch.Tensor], shards: int) -> None:
        """Send this worker's subtrees, as vectors that `new` made, to the chunks' owners.

        They, and `total`, must be left alone until `wait` is back.

        Raises:
            WorldBroken: a worker was lost meanwhile.
        """
        world = self._world
        self._shards = shards
        if world.size == 1:
            (part,) = parts.values()
            if part is not self.total:
                self.total.copy_(part)
            return
        nodes = _nodes_by_rank(shards, world.size)
        mine = nodes[world.rank]
        self._parts = {}
        item = self.total.element_size()
        # One turn for each worker's first subtree, one for the second, and so on: a
        # subtree's vector is then sent as it lies in memory.
        for turn in range(max(len(theirs) for theirs in nodes)):
            senders = [rank for rank, theirs in enumerate(nodes) if turn < len(theirs)]
            received = self._room(turn, len(senders))
            for i, rank in enumerate(senders):
                row = received[i * self._chunk : (i + 1) * self._chunk]
                self._parts[nodes[rank][turn]] = row
            each = self._chunk * item
            sends = turn < len(mine)
            self._pending.append(
                world.start_all_to_all(
                    received.view(torch.uint8),
                    (parts[mine[turn]] if sends else self.total[:0]).view(torch.uint8),
                    [each if turn < len(theirs) else 0 for theirs in nodes],
                    [each if sends else 0] * world.size,
                )
            )

    def turn(self) -> None:
        """Sum this worker's chunk and send it to all.

        Raises:
            WorldBroken: a worker was lost meanwhile.
        """
        world = self._world
        if world.size == 1:
            return
        self._wait()
        chunks = self.total.view(world.size, self._chunk)
        tree_sum(self._parts, self._shards, out=chunks[world.rank])
        self._pending = world.start_gather_in_place(chunks.view(torch.uint8))

    def wait(self) -> torch.Tensor:
        """The sum, shape ``(length,)``; valid until the next `start`.

        Raises:
            WorldBroken: a worker was lost meanwhile.
        """
        self._wait()
        return self.total[: self.length]

    def renew_total(self) -> None:
        """Leave `total` to whoever still holds it, and take new memory for the next sum."""
        self.total = self.new()

    def _wait(self) -> None:
        for pending in self._pending:
            pending.wait()
        self._pending = []

    def _room(self, turn: int, rows: int) -> torch.Tensor:
        if turn == len(self._received):
            self._received.append(torch.empty(0, dtype=self._dtype, device=self._device))
        if self._received[turn].numel() < rows * self._chunk:
            self._received[turn] = torch.empty(
                rows * self._chunk, dtype=self._dtype, device=self._device
            )
        return self._received[turn][: rows * self._chunk]


class Pipeline:
    """Several sums under way, whose collectives start in one order on all workers."""

    def __init__(self) -> None:
        self._started: deque[VectorSum] = deque()
        self._turned: list[VectorSum] = []

    @property
    def is_idle(self) -> bool:
        """Whether no sum is under way."""
        return not self._started and not self._turned

    def start(self, one: VectorSum, parts: Mapping[Node, torch.Tensor], shards: int) -> None:
        """Start a sum, and finish the chunk of one that started earlier.

        Raises:
            WorldBroken: a worker was lost meanwhile.
        """
        self._started.append(one)  # first: what may have started must be forgotten if lost
        one.start(parts, shards)
        if len(self._started) > _LAG:
            self._turn()

    def finish(self) -> None:
        """Wait until all sums are done.

        Raises:
            WorldBroken: a worker was lost meanwhile.
        """
        while self._started:
            self._turn()
        for one in self._turned:
            one.wait()
        self._turned.clear()

    def _turn(self) -> None:
        one = self._started.popleft()
        self._turned.append(one)
        one.turn()


@lru_cache(maxsize=64)
def _nodes_by_rank(shards: int, world_size: int) -> Sequence[Sequence[Node]]:
    """The subtrees that each worker holds."""
    return [
        list(subtrees(shard_range(shards, world_size=world_size, rank=rank), shards))
        for rank in range(world_size)
    ]


def _aligned(length: int) -> int:
    return -(-length // ALIGNED) * ALIGNED


def _normal(start: int, size: int, shards: int) -> Node:
    """The smallest node with the same leaves, so that one value has one name."""
    while size > 1 and start + size // 2 >= shards:
        size //= 2
    return start, size
