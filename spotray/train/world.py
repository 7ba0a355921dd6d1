"""The workers of one generation, and the collectives among them.

Everything that needs a peer goes through a `World`, and a world that lost a peer
raises `WorldBroken`. Nothing else in `spotray.train` holds a process group, so a run
can exchange its world between two steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from spotray.errors import WorldBroken

# torch 2.13 renamed it.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class World:
    """Rank, size, process group and generation of the workers that step together."""

    def __init__(
        self,
        *,
        rank: int = 0,
        size: int = 1,
        local_rank: int = 0,
        generation: int = 0,
        device: torch.device | None = None,
        group: dist.ProcessGroup | None = None,
        host_group: dist.ProcessGroup | None = None,
        io_group: dist.ProcessGroup | None = None,
    ) -> None:
        """A world of one needs no group.

        Args:
            rank: This worker's index, ``0 <= rank < size``.
            size: Number of workers.
            local_rank: Index among the workers of this node.
            generation: Grows with every new worker group of a job.
            device: Where gradients live.
            group: For tensors on ``device``.
            host_group: gloo, for tensors and objects in host memory.
            io_group: gloo, for the thread that writes checkpoints: two threads
                must not share one group, since their collectives would mix.
        """
        self.rank = rank
        self.size = size
        self.local_rank = local_rank
        self.generation = generation
        self.device = device or torch.device("cpu")
        self.group = group
        self.host_group = host_group
        self.io_group = io_group

    @classmethod
    def from_process_group(
        cls, *, device: torch.device, local_rank: int = 0, generation: int = 0
    ) -> World:
        """The world of torch's default process group, which must be initialised."""
        if dist.get_world_size() == 1:
            return cls(device=device, local_rank=local_rank, generation=generation)
        on_host = dist.get_backend() == "gloo"
        with peers("forming the world"):
            host = dist.group.WORLD if on_host else dist.new_group(backend="gloo")
            return cls(
                rank=dist.get_rank(),
                size=dist.get_world_size(),
                local_rank=local_rank,
                generation=generation,
                device=device,
                group=dist.group.WORLD,
                host_group=host,
                io_group=dist.new_group(backend="gloo"),
            )

    def all_to_all(
        self,
        received: torch.Tensor,
        send: torch.Tensor,
        received_counts: Sequence[int],
        send_counts: Sequence[int],
    ) -> None:
        """Exchange runs of elements between all pairs of workers."""
        with peers("all-to-all"):
            dist.all_to_all_single(
                received, send, list(received_counts), list(send_counts), group=self.group
            )

    def all_gather(self, total: torch.Tensor, mine: torch.Tensor) -> None:
        """Concatenate every worker's tensor, in the order of ranks."""
        with peers("all-gather"):
            _all_gather(total, mine, group=self.group)

    def sum_(self, tensor: torch.Tensor) -> None:
        """All-reduce in place, with no promise about the order of the sum."""
        if self.size > 1:
            with peers("all-reduce"):
                dist.all_reduce(tensor, group=self.group)

    def gather_objects(self, mine: Any, *, for_io: bool = False) -> list[Any]:
        """Every worker's small picklable object, in the order of ranks."""
        if self.size == 1:
            return [mine]
        objects: list[Any] = [None] * self.size
        with peers("gather"):
            dist.all_gather_object(
                objects, mine, group=self.io_group if for_io else self.host_group
            )
        return objects

    def broadcast_object(self, mine: Any, *, source: int) -> Any:
        """The picklable object of rank ``source``."""
        if self.size == 1:
            return mine
        box = [mine]
        with peers("broadcast"):
            dist.broadcast_object_list(box, src=source, group=self.host_group)
        return box[0]

    def broadcast_(self, tensor: torch.Tensor, *, source: int) -> None:
        """Overwrite a tensor in host memory with that of rank ``source``."""
        if self.size > 1:
            with peers("broadcast"):
                dist.broadcast(tensor, src=source, group=self.host_group)


@contextmanager
def peers(doing: str) -> Iterator[None]:
    """Turn torch's error for a lost peer into `WorldBroken`."""
    try:
        yield
    except RuntimeError as exc:
        # torch has no one class for it: DistBackendError with NCCL, a plain
        # RuntimeError with gloo. A collective on our own tensors has no other
        # reason to fail than a peer that is gone or that failed itself.
        first = str(exc).strip().splitlines()[0] if str(exc).strip() else repr(exc)
        raise WorldBroken(f"{doing} with the other workers failed: {first}") from exc
