"""Every sample once an epoch, in an order that no worker can change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotray.errors import ConfigError
from spotray.train.order import (
    BatchPlan,
    check_batch_sizes,
    epoch_order,
    shard_range,
    stream_seed,
)


@st.composite
def plans(draw: Any) -> BatchPlan:
    micro = draw(st.integers(1, 5))
    plan = {
        "length": draw(st.integers(1, 120)),
        "micro_batch_size": micro,
        "global_batch_size": micro * draw(st.integers(1, 7)),
    }
    drop_last = draw(st.booleans()) and plan["length"] >= plan["global_batch_size"]
    return BatchPlan(**plan, drop_last=drop_last)


def ids_of_step(plan: BatchPlan, order: Any, step: int, world_size: int) -> list[int]:
    """Ids that all ranks together use in a step, in the order of ranks."""
    used: list[int] = []
    for rank in range(world_size):
        for shard in shard_range(plan.shard_count(step), world_size=world_size, rank=rank):
            ids = plan.shard_ids(order, step, shard)
            assert 1 <= len(ids) <= plan.micro_batch_size
            used.extend(ids.tolist())
    return used


@given(plans(), st.data(), st.integers(0, 3))
def test_every_sample_is_used_once_an_epoch_whatever_the_resizes(
    plan: BatchPlan, data: st.DataObject, epoch: int
) -> None:
    order = epoch_order(plan.length, seed=1, epoch=epoch)
    used: list[int] = []
    for step in range(plan.steps_per_epoch):
        world_size = data.draw(st.integers(1, 9))
        used += ids_of_step(plan, order, step, world_size)
    if plan.drop_last:
        assert len(used) == plan.length // plan.global_batch_size * plan.global_batch_size
        assert len(set(used)) == len(used)
    else:
        assert sorted(used) == list(range(plan.length))


@given(plans(), st.integers(1, 9))
def test_a_step_uses_the_same_samples_in_the_same_order_at_any_world_size(
    plan: BatchPlan, world_size: int
) -> None:
    order = epoch_order(plan.length, seed=5, epoch=0)
    for step in range(plan.steps_per_epoch):
        alone = ids_of_step(plan, order, step, 1)
        assert ids_of_step(plan, order, step, world_size) == alone
        start = step * plan.global_batch_size
        assert alone == order[start : start + plan.batch_samples(step)].tolist()


@given(st.integers(0, 50), st.integers(1, 60))
def test_ranks_hold_contiguous_shards_that_differ_by_one_at_most(
    shards: int, world_size: int
) -> None:
    ranges = [shard_range(shards, world_size=world_size, rank=r) for r in range(world_size)]
    assert [i for held in ranges for i in held] == list(range(shards))
    sizes = [len(held) for held in ranges]
    assert max(sizes) - min(sizes) <= 1


@given(st.lists(st.integers(1, 30), max_size=20), st.integers(0, 2**40), st.integers(0, 5))
def test_blocks_of_any_size_are_used_completely_and_once(
    blocks: list[int], seed: int, epoch: int
) -> None:
    order = epoch_order(sum(blocks), seed=seed, epoch=epoch, blocks=blocks)
    assert sorted(order.tolist()) == list(range(sum(blocks)))


def opened_blocks(order: Any, blocks: list[int], *, keep: int) -> int:
    """How often a reader opens a block that keeps the last ``keep`` ones in memory."""
    owner = np.repeat(np.arange(len(blocks)), blocks)
    held: list[int] = []
    opened = 0
    for block in owner[order].tolist():
        if block in held:
            held.remove(block)
        else:
            opened += 1
        held = [*held, block][-keep:]
    return opened


def test_a_pass_opens_each_block_once_with_eight_in_memory() -> None:
    blocks = [50] * 40
    order = epoch_order(2000, seed=0, epoch=0, blocks=blocks)
    assert opened_blocks(order, blocks, keep=8) == len(blocks)
    shuffled = epoch_order(2000, seed=0, epoch=0)
    assert opened_blocks(shuffled, blocks, keep=8) > 20 * len(blocks)


def test_an_order_by_blocks_is_shuffled_within_and_among_blocks() -> None:
    blocks = [50] * 40
    order = epoch_order(2000, seed=0, epoch=0, blocks=blocks)
    owner = order // 50
    assert len(set(owner[:100].tolist())) > 1, "samples of one block stand together"
    assert sorted(set(owner[:200].tolist())) != [0, 1, 2, 3], "blocks come in file order"


@given(st.integers(0, 2**63), st.integers(0, 2**20))
def test_seed_and_epoch_alone_make_the_order(seed: int, epoch: int) -> None:
    order = epoch_order(200, seed=seed, epoch=epoch)
    assert (order == epoch_order(200, seed=seed, epoch=epoch)).all()
    assert (order != epoch_order(200, seed=seed, epoch=epoch + 1)).any()
    assert (order != epoch_order(200, seed=seed + 1, epoch=epoch)).any()


def test_the_order_of_a_seed_never_changes_between_versions() -> None:
    # A resumed job relies on it, with whatever spotray it is resumed.
    assert epoch_order(10, seed=3, epoch=2).tolist() == [6, 7, 4, 9, 1, 3, 5, 8, 0, 2]
    blocks = [4, 3, 3]
    assert epoch_order(10, seed=3, epoch=2, blocks=blocks).tolist() == [
        3,
        4,
        9,
        6,
        1,
        5,
        0,
        2,
        7,
        8,
    ]
    assert stream_seed(3, 0, 1, 2) == 1419556851746930036


def test_streams_of_neighbouring_keys_differ() -> None:
    keys = [(s, e, i, k) for s in range(3) for e in range(3) for i in range(5) for k in (1, 2)]
    assert len({stream_seed(*key) for key in keys}) == len(keys)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((16, 3), "micro_batch_size=3 does not divide global_batch_size=16: use 2"),
        ((4, 8), "micro_batch_size=8 does not divide global_batch_size=4: use 4"),
        ((0, 1), "must be at least 1, got global_batch_size=0"),
        ((8, -2), "micro_batch_size=-2"),
        ((32.0, 8), "global_batch_size must be a whole number, got 32.0"),
        ((32, "8"), "micro_batch_size must be a whole number, got '8'"),
        ((True, 1), "got True"),
    ],
)
def test_wrong_batch_sizes_are_named_with_the_cure(sizes: tuple[Any, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_batch_sizes(*sizes)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("seed", [-1, 1.5, None])
def test_a_seed_that_is_no_whole_number_is_named(seed: Any) -> None:
    with pytest.raises(ConfigError, match="at least 0, got"):
        stream_seed(seed)


def test_an_empty_dataset_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"has 0 samples: give .* at least 1"):
        BatchPlan(length=0, global_batch_size=4, micro_batch_size=2)


def test_a_dataset_shorter_than_one_batch_cannot_drop_its_last_batch() -> None:
    with pytest.raises(ConfigError, match="3 samples are fewer than one global batch of 4; lower"):
        BatchPlan(length=3, global_batch_size=4, micro_batch_size=2, drop_last=True)


def test_row_groups_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(ConfigError, match="row_groups hold 7 samples and its length is 8"):
        epoch_order(8, seed=0, epoch=0, blocks=[3, 4])
