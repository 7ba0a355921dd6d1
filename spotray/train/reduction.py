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

from collections.abc import Iterator, Mapping

import torch

from spotray.train.order import shard_range
from spotray.train.world import World

Node = tuple[int, int]  # (start, size)


def subtrees(held: range, shards: int) -> Iterator[Node]:
    """The largest tree nodes that lie wholly within ``held``, in order."""
    start = held.start
    while start < held.stop:
        size = start & -start if start else 1 << max(shards - 1, 0).bit_length()
        while min(start + size, shards) > held.stop:
            size //= 2
        yield _normal(start, size, shards)
        start = min(start + size, shards)


def tree_sum(parts: Mapping[Node, torch.Tensor], shards: int) -> torch.Tensor:
    """Value of the whole tree from the values of nodes that cover all its leaves."""

    def value(start: int, size: int) -> torch.Tensor:
        known = parts.get((start, size))
        if known is not None:
            return known
        half = size // 2
        if start + half >= shards:
            return value(start, half)
        return value(start, half) + value(start + half, half)

    return value(0, 1 << max(shards - 1, 0).bit_length())


class ShardSum:
    """Adds one worker's shards of one step, in the order of the tree.

    At most ``log2(shards) + 1`` buffers are alive at a time.
    """

    def __init__(self, held: range, shards: int, free: list[torch.Tensor] | None = None) -> None:
        """``free`` gets the vectors that are no longer needed, for the next shard."""
        self.held = held
        self._free = free if free is not None else []
        self.shards = shards
        self._want = set(subtrees(held, shards))
        self.parts: dict[Node, torch.Tensor] = {}

    def add(self, shard: int, vector: torch.Tensor) -> None:
        """Add a shard's vector; shards come in ascending order. Takes the vector over."""
        node = (shard, 1)
        while node not in self._want:
            start, size = node
            if start % (2 * size) == 0 and start + size >= self.shards:
                node = (start, 2 * size)  # the right half is empty
                continue
            left = (start - size, size)
            if start % (2 * size) == 0 or left not in self.parts:
                break  # the sibling is still to come
            self._free.append(vector)
            vector = self.parts.pop(left).add_(vector)
            node = (start - size, 2 * size)
        self.parts[node] = vector


def ordered_sum(local: ShardSum, *, length: int, world: World, like: torch.Tensor) -> torch.Tensor:
    """Sum over all workers' shards, the same bits on every worker and at every world size.

    Args:
        local: This worker's shards, all added.
        length: Elements of one vector.
        world: The workers; each holds its `shard_range`.
        like: A tensor with the vectors' dtype and device.

    Returns:
        Shape ``(length,)``.

    Raises:
        WorldBroken: a worker was lost meanwhile.
    """
    if world.size == 1:
        return tree_sum(local.parts, local.shards)
    nodes = [
        list(subtrees(shard_range(local.shards, world_size=world.size, rank=rank), local.shards))
        for rank in range(world.size)
    ]
    chunk = -(-length // world.size)
    mine = nodes[world.rank]
    # Rows by destination: what goes to rank r is its chunk of each of my subtrees.
    send = like.new_zeros((world.size, len(mine), chunk))
    for k, node in enumerate(mine):
        flat = local.parts[node]
        full = length // chunk
        send[:full, k].copy_(flat[: full * chunk].view(full, chunk))
        if full < world.size:
            send[full, k, : length - full * chunk].copy_(flat[full * chunk :])
    counts = [len(theirs) * chunk for theirs in nodes]
    received = like.new_empty(sum(counts))
    world.all_to_all(received, send.view(-1), counts, [len(mine) * chunk] * world.size)
    parts: dict[Node, torch.Tensor] = {}
    offset = 0
    for theirs in nodes:
        for node in theirs:
            parts[node] = received[offset : offset + chunk]
            offset += chunk
    total = like.new_empty(world.size * chunk)
    world.all_gather(total, tree_sum(parts, local.shards).contiguous())
    return total[:length]


def _normal(start: int, size: int, shards: int) -> Node:
    """The smallest node with the same leaves, so that one value has one name."""
    while size > 1 and start + size // 2 >= shards:
        size //= 2
    return start, size
