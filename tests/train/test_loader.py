"""Micro-batches: the same samples and the same randomness whoever loads them."""

from __future__ import annotations

import random
from collections import UserDict, namedtuple
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import DataLoader, IterableDataset

from spotray.errors import ConfigError
from spotray.train.loader import ShardSource, dataset_of, seed_streams, to_device
from spotray.train.order import BatchPlan
from spotray.train.run import Run
from tests.train.jobs import Images


class Noisy(torch.utils.data.Dataset[Any]):
    """Each sample draws from all three random streams."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> dict[str, Any]:
        noise = [random.random(), float(np.random.rand()), torch.rand(1).item()]
        return {"id": index, "noise": torch.tensor(noise)}


def source_of(dataset: Any, *, workers: int = 0, collate: Any = None) -> ShardSource:
    plan = BatchPlan(length=len(dataset), global_batch_size=8, micro_batch_size=2)
    return ShardSource(dataset, plan, seed=3, collate=collate, workers=workers)


def batches(source: ShardSource, *, world_size: int = 1, epoch: int = 0) -> dict[Any, Any]:
    """Every (step, shard) of an epoch with its collated samples, over all ranks."""
    found = {}
    for rank in range(world_size):
        shards = [
            shard
            for step in range(source.plan.steps_per_epoch)
            for shard in source.shards_of(epoch, step, world_size=world_size, rank=rank)
        ]
        for shard, batch in source.batches(epoch, shards):
            if shard.real:
                assert (shard.step, shard.index) not in found
                found[shard.step, shard.index] = batch
    return found


def plain(found: dict[Any, Any]) -> dict[Any, Any]:
    return {k: (b["id"].tolist(), b["noise"].tolist()) for k, b in found.items()}


def test_samples_and_their_randomness_do_not_depend_on_the_world() -> None:
    alone = plain(batches(source_of(Noisy())))
    assert sorted(i for ids, _ in alone.values() for i in ids) == list(range(23))
    for world_size in (2, 3, 7):
        random.seed(world_size)
        assert plain(batches(source_of(Noisy()), world_size=world_size)) == alone
    assert plain(batches(source_of(Noisy()), epoch=1)) != alone


def test_loader_processes_give_the_bits_of_none() -> None:
    with_processes = plain(batches(source_of(Noisy(), workers=2)))
    assert with_processes == plain(batches(source_of(Noisy())))


def train_a_little(loader_workers: int) -> list[float]:
    run = Run(global_batch_size=8, micro_batch_size=2, seed=1, loader_workers=loader_workers)
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = run.prepare(model, optimizer, Images(20))
    losses = []
    for _ in run.epochs(2):
        for x, y in loader:
            run.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
            losses.append(run.loss)
        losses.append(torch.rand(1).item())
    return [*losses, *model[2].weight.detach().view(-1).tolist()]


def test_training_with_loader_processes_has_the_bits_of_training_without() -> None:
    assert train_a_little(2) == train_a_little(0)


def test_a_worker_without_a_shard_gets_one_for_show() -> None:
    source = source_of(Noisy())
    for rank in range(6):
        shards = source.shards_of(0, 0, world_size=6, rank=rank)
        assert len(shards) == 1
        assert shards[0].real == (rank < 4)
        assert shards[0].last


def test_datasets_that_fetch_many_at_once_are_asked_once_a_shard() -> None:
    class Many(Noisy):
        asked: list[list[int]] = []  # noqa: RUF012

        def __getitems__(self, indices: list[int]) -> list[Any]:
            self.asked.append(indices)
            return [self[i] for i in indices]

    dataset = Many()
    assert plain(batches(source_of(dataset))) == plain(batches(source_of(Noisy())))
    assert len(dataset.asked) == 12
    assert all(type(i) is int for ids in dataset.asked for i in ids)


def test_of_a_dataloader_dataset_collate_and_processes_are_taken() -> None:
    def collate(samples: list[Any]) -> str:
        return "-".join(str(s) for s in samples)

    given = DataLoader(list(range(8)), batch_size=64, collate_fn=collate, num_workers=2)
    dataset, taken, workers = dataset_of(given)
    assert dataset is given.dataset
    assert taken is collate
    assert workers == 2
    source = source_of(dataset, collate=taken)
    assert sorted("-".join(batches(source).values()).split("-")) == list("01234567")


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))

    def __len__(self) -> int:
        return 5


@pytest.mark.parametrize(
    "source", [iter([1, 2]), Stream(), DataLoader(Stream()), {1, 2}, 7, None, lambda: None]
)
def test_a_source_without_an_index_is_refused_with_the_cure(source: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        dataset_of(source)
    text = str(caught.value)
    assert "has no length or no index: give run.prepare() a map-style dataset" in text
    assert "\n" not in text


def test_an_empty_dataset_is_refused() -> None:
    run = Run(global_batch_size=4, micro_batch_size=2)
    with pytest.raises(ConfigError, match="the dataset has 0 samples"):
        run.prepare(nn.Linear(1, 1), [])


Pair = namedtuple("Pair", "x name")


class Encoding(UserDict[str, torch.Tensor]):
    """As tokenizers return it: no dict, but with a method of its own."""

    def to(self, device: torch.device) -> Encoding:
        return Encoding({k: v.to(device) for k, v in self.data.items()})


def test_nested_batches_go_to_the_device_and_keep_their_form() -> None:
    meta = torch.device("meta")
    x = torch.ones(2)
    batch = {
        "pair": Pair(x, "a"),
        "list": [x, (x, 3, None)],
        "deep": {"x": x},
        "encoding": Encoding(x=x),
        "word": "text",
    }
    moved = to_device(batch, meta)
    assert moved["pair"].x.device == meta
    assert type(moved["pair"]) is Pair
    assert moved["pair"].name == "a"
    assert type(moved["list"]) is list
    assert moved["list"][0].device == meta
    assert moved["list"][1][0].device == meta
    assert moved["list"][1][1:] == (3, None)
    assert moved["deep"]["x"].device == meta
    assert moved["encoding"]["x"].device == meta
    assert moved["word"] == "text"


def test_a_packed_sequence_moves_as_torch_moves_it() -> None:
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    moved = to_device(packed, torch.device("meta"))
    assert isinstance(moved, PackedSequence)
    assert moved.data.device.type == "meta"
    assert moved.batch_sizes.device.type == "cpu", "torch wants the sizes on the host"


def test_streams_follow_the_key_alone() -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), torch.rand(1).item()

    seed_streams(1, 2)
    first = draw()
    seed_streams(1, 3)
    assert draw() != first
    seed_streams(1, 2)
    assert draw() == first
