"""The sum over shards has one set of bits, whoever holds which shard."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spotray.train.order import shard_range
from spotray.train.reduction import Pipeline, ShardSum, VectorSum, subtrees, tree_sum
from spotray.train.world import World
from tests.train.workers import WorkerPool

AWKWARD = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-40, 3.4e38, -3.4e38, 1.0, 1e-8]
numbers = st.one_of(st.sampled_from(AWKWARD), st.floats(width=32))


def bits(tensor: torch.Tensor) -> bytes:
    """The bits, with one NaN for all: which payload comes out is the processor's business."""
    values = tensor.numpy().copy()
    values[np.isnan(values)] = np.nan
    return values.tobytes()


def own_sum(values: list[float], held: range) -> ShardSum:
    local = ShardSum(held, len(values))
    for shard in held:
        local.add(shard, torch.tensor([values[shard]], dtype=torch.float32))
    return local


def tree_by_hand(values: list[np.float32], size: int) -> np.float32:
    """The tree as its definition has it."""
    if size == 1:
        return values[0]
    half = size // 2
    left = tree_by_hand(values[:half], half)
    return left + tree_by_hand(values[half:], half) if len(values) > half else left


@given(st.lists(numbers, min_size=1, max_size=70), st.integers(1, 80))
def test_any_shards_over_any_world_give_the_bits_of_one_worker(
    values: list[float], world_size: int
) -> None:
    shards = len(values)
    everything: dict[Any, torch.Tensor] = {}
    for rank in range(world_size):
        held = shard_range(shards, world_size=world_size, rank=rank)
        local = own_sum(values, held)
        assert set(local.parts) == set(subtrees(held, shards)), "parts are the wanted subtrees"
        everything |= local.parts
    alone = tree_sum(own_sum(values, range(shards)).parts, shards)
    assert bits(tree_sum(everything, shards)) == bits(alone)
    with np.errstate(all="ignore"):
        leaves = [np.float32(v) for v in values]
        by_hand = tree_by_hand(leaves, 1 << (shards - 1).bit_length())
    assert bits(alone) == bits(torch.tensor([by_hand]))


@given(st.integers(1, 200), st.integers(1, 200))
def test_subtrees_cover_a_workers_shards_once_and_are_few(shards: int, world_size: int) -> None:
    for rank in range(world_size):
        held = shard_range(shards, world_size=world_size, rank=rank)
        nodes = list(subtrees(held, shards))
        covered = [i for start, size in nodes for i in range(start, min(start + size, shards))]
        assert covered == list(held)
        assert len(nodes) <= 2 * max(1, math.ceil(math.log2(shards)))


@given(st.integers(1, 300))
def test_one_workers_sum_keeps_a_logarithm_of_buffers(shards: int) -> None:
    free: list[torch.Tensor] = []
    local = ShardSum(range(shards), shards, free)
    made = 0
    for shard in range(shards):
        if not free:
            made += 1
        vector = free.pop() if free else torch.zeros(1)
        local.add(shard, vector.fill_(float(shard)))
    assert made <= math.ceil(math.log2(shards)) + 1
    assert tree_sum(local.parts, shards).item() == sum(range(shards))


def sums_of(world: World, cases: list[list[list[float]]]) -> list[bytes]:
    """For each case, a vector per shard, the sum over all workers; all under way at once."""
    sums = []
    pipeline = Pipeline()
    for vectors in cases:
        length = len(vectors[0])
        held = shard_range(len(vectors), world_size=world.size, rank=world.rank)
        local = ShardSum(held, len(vectors))
        one = VectorSum(length, world=world, dtype=torch.float32, device=torch.device("cpu"))
        for shard in held:
            vector = one.new()
            vector[:length] = torch.tensor(vectors[shard], dtype=torch.float32)
            local.add(shard, vector)
        pipeline.start(one, local.parts, local.shards)
        sums.append(one)
    pipeline.finish()
    assert pipeline.is_idle
    return [bits(one.total[: one.length]) for one in sums]


def case(shards: int, length: int, seed: int) -> list[list[float]]:
    rng = np.random.default_rng(seed)
    scale = 10.0 ** rng.integers(-12, 12, size=(shards, length))
    vectors = (rng.normal(size=(shards, length)) * scale).astype(np.float32)
    odd = rng.random((shards, length)) < 0.05
    vectors[odd] = rng.choice(np.asarray(AWKWARD, np.float32), size=int(odd.sum()))
    return vectors.tolist()


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_workers_that_exchange_their_sums_get_the_bits_of_one(
    workers: WorkerPool, world_size: int
) -> None:
    # Lengths below the world size, not divisible by it, and fewer shards than workers.
    shapes = [(s, n) for s in (1, 2, 3, 5, 8, 13) for n in (1, 2, 3, 4, 5, 7, 64, 101)]
    cases = [case(shards, length, seed) for seed, (shards, length) in enumerate(shapes)]
    alone = sums_of(World(), cases)
    for of_rank in workers.run(world_size, sums_of, cases):
        for shape, ours, theirs in zip(shapes, of_rank, alone, strict=True):
            assert ours == theirs, f"{shape} differs at {world_size} workers"


@settings(max_examples=25)
@given(
    st.integers(2, 4),
    st.integers(1, 9).flatmap(
        lambda n: st.lists(st.lists(numbers, min_size=n, max_size=n), min_size=1, max_size=9)
    ),
)
def test_no_vectors_are_found_that_a_real_world_sums_otherwise(
    workers: WorkerPool, world_size: int, vectors: list[list[float]]
) -> None:
    alone = sums_of(World(), [vectors])
    for of_rank in workers.run(world_size, sums_of, [vectors]):
        assert of_rank == alone
