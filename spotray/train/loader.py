"""This worker's micro-batches, in an order that knows nothing of the workers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from spotray.errors import ConfigError
from spotray.train.order import BatchPlan, Ids, epoch_order, shard_range, stream_seed

Collate = Callable[[list[Any]], Any]

_FETCH_STREAM, FORWARD_STREAM = 1, 2


class MapDataset(Protocol):
    """A map-style dataset, as torch has it."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True)
class Shard:
    """One micro-batch of one step."""

    step: int  # within the epoch, from 0
    index: int  # within the step, from 0
    ids: Ids  # of the samples
    real: bool  # False: it counts for nothing, and only keeps pace with other workers
    last: bool  # this worker's last shard of the step


def seed_streams(*key: int) -> None:
    """Seed Python's, numpy's and torch's global random streams from ``key``."""
    seed = stream_seed(*key)
    random.seed(seed)
    np.random.seed(seed & 0xFFFF_FFFF)
    if torch.accelerator.current_accelerator() is None:
        # torch.manual_seed would also note the call, with its stack, for each kind of
        # accelerator that may yet be started: that took 0.5 % of a small model's step.
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


class ShardSource:
    """Fetches the samples of shards, in this process or in loader processes."""

    def __init__(
        self,
        dataset: MapDataset,
        plan: BatchPlan,
        *,
        seed: int,
        collate: Collate | None,
        workers: int,
    ) -> None:
        self.plan = plan
        self._dataset = dataset
        self._seed = seed
        self._collate = collate or default_collate
        self._workers = workers
        self.in_step = False  # all workers run equally many micro-batches of a step
        self._order: tuple[int, Ids] | None = None

    def shards_of(self, epoch: int, step: int, *, world_size: int, rank: int) -> list[Shard]:
        """This worker's shards of one step; at least one."""
        order = self._epoch_order(epoch)
        held = self.held(step, world_size=world_size, rank=rank)
        # A worker without a shard runs shard 0 for show, so that the loop's body
        # (clipping, schedulers) runs equally often on all workers.
        pace = -(-self.plan.shard_count(step) // world_size) if self.in_step else 1
        # Those come first: what rides on a worker's last shard must count.
        todo = [(0, False)] * (pace - len(held)) + [(i, True) for i in held]
        return [
            Shard(
                step=step,
                index=i,
                ids=self.plan.shard_ids(order, step, i),
                real=real,
                last=done == len(todo),
            )
            for done, (i, real) in enumerate(todo, start=1)
        ]

    def held(self, step: int, *, world_size: int, rank: int) -> range:
        """Indices of this worker's real shards of one step."""
        return shard_range(self.plan.shard_count(step), world_size=world_size, rank=rank)

    def batches(self, epoch: int, shards: Iterable[Shard]) -> Iterator[tuple[Shard, Any]]:
        """Every shard with its collated samples, in order."""
        if not self._workers:
            for shard in shards:
                yield shard, _fetch(self._dataset, self._collate, self._seed, epoch, shard)
            return
        todo = list(shards)
        view = _ShardView(self._dataset, self._collate, self._seed, epoch, todo)
        loader = DataLoader(view, batch_size=None, shuffle=False, num_workers=self._workers)
        yield from zip(todo, loader, strict=True)

    def _epoch_order(self, epoch: int) -> Ids:
        if self._order is None or self._order[0] != epoch:
            blocks = getattr(self._dataset, "row_groups", None)
            order = epoch_order(self.plan.length, seed=self._seed, epoch=epoch, blocks=blocks)
            self._order = (epoch, order)
        return self._order[1]


class _ShardView(torch.utils.data.Dataset[Any]):
    """The shards of one epoch as items, for torch's loader processes."""

    def __init__(
        self, dataset: MapDataset, collate: Collate, seed: int, epoch: int, shards: list[Shard]
    ) -> None:
        self._dataset, self._collate = dataset, collate
        self._seed, self._epoch, self._shards = seed, epoch, shards

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, index: int) -> Any:
        return _fetch(self._dataset, self._collate, self._seed, self._epoch, self._shards[index])


def _fetch(dataset: MapDataset, collate: Collate, seed: int, epoch: int, shard: Shard) -> Any:
    # Random augmentation inside the dataset follows the shard, not the process.
    seed_streams(seed, epoch, shard.step, shard.index, _FETCH_STREAM)
    ids = [int(i) for i in shard.ids]
    many = getattr(dataset, "__getitems__", None)
    samples = many(ids) if many is not None else [dataset[i] for i in ids]
    return collate(samples)


def dataset_of(source: Any) -> tuple[MapDataset, Collate | None, int]:
    """Dataset, collate function and loader processes of what the user gave to ``prepare``.

    Raises:
        ConfigError: it has no length or no index, so that its samples cannot be
            put in an order that survives a restart.
    """
    if isinstance(source, DataLoader):
        # Its batch size, sampler and shuffling are replaced by the elastic order.
        dataset, _, workers = dataset_of(source.dataset)
        return dataset, source.collate_fn, source.num_workers
    # An IterableDataset inherits an index that only raises.
    is_stream = isinstance(source, IterableDataset)
    if is_stream or not hasattr(source, "__getitem__") or not hasattr(source, "__len__"):
        raise ConfigError(
            f"a {type(source).__name__} has no length or no index: give run.prepare() a map-style "
            "dataset (__len__ and __getitem__) or a spotray.ParquetDataset"
        )
    return source, None, 0


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch with all its tensors on ``device``; tuples, lists and dicts keep their form."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if callable(move := getattr(batch, "to", None)):  # packed sequences, tokenizers' batches
        return move(device)
    if isinstance(batch, dict):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(to_device(value, device) for value in batch)
    return batch
