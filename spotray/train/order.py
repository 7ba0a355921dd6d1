"""Which sample is used when: a pure function of seed, epoch and dataset, never of the workers.

Step ``s`` of an epoch consumes the ``s``-th global batch of the epoch's order. The
batch is cut into shards of ``micro_batch_size`` samples, and ranks take contiguous
runs of shards. A position in the data is therefore (epoch, step) and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spotray.errors import ConfigError

Ids = npt.NDArray[np.int64]

_ORDER_STREAM = 0x0D  # keeps the order's random numbers apart from those of the shards
_WINDOW_BLOCKS = 4  # row groups that are open, and mixed, at one time


def epoch_order(length: int, *, seed: int, epoch: int, blocks: Sequence[int] | None = None) -> Ids:
    """Order of the samples in one epoch, shape ``(length,)``.

    Args:
        length: Samples in the dataset.
        seed: Of the run.
        epoch: From 0.
        blocks: Sizes of consecutive runs of samples that are cheap to read
            together (Parquet row groups). The blocks are shuffled, and samples
            within a window of a few blocks, so that a pass over the data opens
            each block about once. None: one shuffle over everything.

    Raises:
        ConfigError: the blocks do not add up to ``length``.
    """
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch, _ORDER_STREAM])))
    if blocks is None:
        return rng.permutation(length).astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(blocks)]).astype(np.int64)
    if starts[-1] != length:
        raise ConfigError(
            f"the dataset's row_groups hold {starts[-1]} samples and its length is {length}: "
            "make them agree"
        )
    turn = rng.permutation(len(blocks))
    windows = []
    for first in range(0, len(turn), _WINDOW_BLOCKS):
        ids = [np.arange(starts[b], starts[b + 1]) for b in turn[first : first + _WINDOW_BLOCKS]]
        windows.append(rng.permutation(np.concatenate(ids)))
    return np.concatenate(windows).astype(np.int64) if windows else np.empty(0, np.int64)


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """How an epoch is cut into steps, and a step into shards.

    Raises:
        ConfigError: the dataset is empty, or the micro-batch does not divide the
            global batch.
    """

    length: int  # samples in the dataset
    global_batch_size: int  # samples per step, over all workers
    micro_batch_size: int  # samples per shard
    drop_last: bool = False  # leave out the shorter batch at an epoch's end

    def __post_init__(self) -> None:
        check_batch_sizes(self.global_batch_size, self.micro_batch_size)
        if self.length < 1:
            raise ConfigError(
                f"the dataset has {self.length} samples: give run.prepare() one with at least 1"
            )
        if self.drop_last and self.length < self.global_batch_size:
            raise ConfigError(
                f"drop_last leaves nothing: {self.length} samples are fewer than one global "
                f"batch of {self.global_batch_size}; lower global_batch_size or keep the last batch"
            )

    @property
    def steps_per_epoch(self) -> int:
        full, rest = divmod(self.length, self.global_batch_size)
        return full + (1 if rest and not self.drop_last else 0)

    def batch_samples(self, step: int) -> int:
        """Samples in the global batch of ``step``, from 0 within the epoch."""
        start = step * self.global_batch_size
        return min(self.global_batch_size, self.length - start)

    def shard_count(self, step: int) -> int:
        """Shards of ``step``; only an epoch's last step has fewer than the others."""
        return -(-self.batch_samples(step) // self.micro_batch_size)

    def shard_ids(self, order: Ids, step: int, shard: int) -> Ids:
        """Sample ids of one shard, shape ``(<= micro_batch_size,)``."""
        start = step * self.global_batch_size + shard * self.micro_batch_size
        stop = min(
            start + self.micro_batch_size, step * self.global_batch_size + self.batch_samples(step)
        )
        return order[start:stop]


def check_batch_sizes(global_batch_size: int, micro_batch_size: int) -> None:
    """Raise `ConfigError` unless the micro-batch divides the global batch."""
    for name, size in (
        ("global_batch_size", global_batch_size),
        ("micro_batch_size", micro_batch_size),
    ):
        if not _is_whole(size):  # 256 / 8 is 32.0
            raise ConfigError(f"{name} must be a whole number, got {size!r}: write int(...) or //")
    if global_batch_size < 1 or micro_batch_size < 1:
        raise ConfigError(
            f"batch sizes must be at least 1, got global_batch_size={global_batch_size}, "
            f"micro_batch_size={micro_batch_size}"
        )
    if global_batch_size % micro_batch_size:
        near = max(d for d in range(1, micro_batch_size + 1) if global_batch_size % d == 0)
        raise ConfigError(
            f"micro_batch_size={micro_batch_size} does not divide "
            f"global_batch_size={global_batch_size}: use {near}, for example"
        )


def shard_range(shards: int, *, world_size: int, rank: int) -> range:
    """The contiguous shards of one rank; the first ranks take one more if it does not divide."""
    each, more = divmod(shards, world_size)
    start = rank * each + min(rank, more)
    return range(start, start + each + (1 if rank < more else 0))


def stream_seed(*key: int) -> int:
    """Seed of an independent random stream, one for each key (63 bits).

    Raises:
        ConfigError: a part of the key, of which the first is the user's seed, is no
            whole number or negative.
    """
    for part in key:
        if not _is_whole(part) or part < 0:
            raise ConfigError(f"a seed must be a whole number of at least 0, got {part!r}")
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
