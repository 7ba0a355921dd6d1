"""The workers of one generation, and the collectives among them.

Everything that needs a peer goes through a `World`, and a world that lost a peer
raises `WorldBroken`. Nothing else in `spotray.train` holds a process group, so a run
can exchange its world between two steps.

A peer that is silent but keeps its sockets open (a frozen node) leaves a gloo
collective waiting, and gloo has no working abort. So collectives are started
asynchronously and waited for in slices, between which another thread can say that the
world is broken (`World.fail`). The group is then left as it is, and forgotten.
"""

from __future__ import annotations

import logging
import pickle
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from spotray.errors import WorldBroken

log = logging.getLogger(__name__)

_SLICE = timedelta(seconds=0.1)  # how long a broken world may go unseen in a collective
_MAX_BROADCASTS = 4  # workers up to which a broadcast from each beats gloo's all-gather

# torch 2.13 renamed it.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class Pending:
    """A collective under way; its tensors must not be touched before `wait` is back."""

    def __init__(self, world: World, work: Any, doing: str) -> None:
        self._world, self._work, self._doing = world, work, doing
        world.track(work)

    def wait(self) -> None:
        """Return when it is done.

        Raises:
            WorldBroken: a peer was lost, or the world was failed.
        """
        self._world.wait_for(self._work, self._doing)


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
        self._failed = ""
        self._works: list[Any] = []  # collectives that may be under way
        self._lock = threading.Lock()  # of the works: checkpoints have a thread of their own
        self._on_fail: list[Callable[[str], None]] = []

    @classmethod
    def from_process_group(
        cls,
        *,
        device: torch.device,
        local_rank: int = 0,
        generation: int = 0,
        timeout: timedelta | None = None,
    ) -> World:
        """The world of torch's default process group, which must be initialised.

        Args:
            device: Where gradients live.
            local_rank: Index among the workers of this node.
            generation: Of the worker group.
            timeout: For connecting the further groups; default: torch's, half an hour.
        """
        if dist.get_world_size() == 1:
            return cls(device=device, local_rank=local_rank, generation=generation)
        on_host = dist.get_backend() == "gloo"
        with peers("forming the world"):
            host = dist.group.WORLD if on_host else dist.new_group(backend="gloo", timeout=timeout)
            return cls(
                rank=dist.get_rank(),
                size=dist.get_world_size(),
                local_rank=local_rank,
                generation=generation,
                device=device,
                group=dist.group.WORLD,
                host_group=host,
                io_group=dist.new_group(backend="gloo", timeout=timeout),
            )

    @property
    def failed(self) -> str:
        """Why this world is broken, as far as somebody said so; else empty."""
        return self._failed

    def fail(self, why: str) -> None:
        """Break the collectives under way and all later ones. For another thread."""
        if self._failed:
            return
        self._failed = why
        if self.group is not None and self.device.type == "cuda":
            # NCCL's work only enters a stream; ending the communicator ends the wait.
            self.group._get_backend(self.device).abort()
        for tell in self._on_fail:
            tell(why)

    def track(self, work: Any) -> None:
        """A collective was started: the groups must not go before it is through."""
        with self._lock:
            self._drop_ended()
            self._works.append(work)

    def forget_ended(self) -> None:
        """Let go of collectives that are through: each holds its tensors' memory."""
        with self._lock:
            self._drop_ended()

    @property
    def is_still(self) -> bool:
        """Whether no collective is under way any more; failed ones are not."""
        with self._lock:
            return all(work.is_completed() for work in self._works)

    def on_fail(self, tell: Callable[[str], None]) -> None:
        """Call ``tell`` with the reason when this world is failed; for who waits elsewhere."""
        self._on_fail.append(tell)

    def start_all_to_all(
        self,
        received: torch.Tensor,
        send: torch.Tensor,
        received_counts: Sequence[int],
        send_counts: Sequence[int],
    ) -> Pending:
        """Exchange runs of elements between all pairs of workers."""
        doing = "all-to-all"
        with self._peers(doing):
            work = dist.all_to_all_single(
                received,
                send,
                list(received_counts),
                list(send_counts),
                group=self.group,
                async_op=True,
            )
        return Pending(self, work, doing)

    def start_all_gather(self, total: torch.Tensor, mine: torch.Tensor) -> Pending:
        """Concatenate every worker's tensor, in the order of ranks."""
        doing = "all-gather"
        with self._peers(doing):
            work = _all_gather(total, mine, group=self.group, async_op=True)
        return Pending(self, work, doing)

    def start_gather_in_place(self, rows: torch.Tensor) -> list[Pending]:
        """Fill row ``r`` of a contiguous matrix, on all workers, with that of rank ``r``."""
        if self.size > _MAX_BROADCASTS or self.device.type == "cuda":
            return [self.start_all_gather(rows.view(-1), rows[self.rank])]
        # gloo's all-gather writes into memory that it takes anew, and copies from there.
        doing = "broadcast"
        pending = []
        for rank, row in enumerate(rows):
            with self._peers(doing):
                work = dist.broadcast(row, group=self.group, group_src=rank, async_op=True)
            pending.append(Pending(self, work, doing))
        return pending

    def sum_(self, tensor: torch.Tensor) -> None:
        """All-reduce in place, with no promise about the order of the sum."""
        if self.size > 1:
            with self._peers("all-reduce"):
                work = dist.all_reduce(tensor, group=self.group, async_op=True)
            Pending(self, work, "all-reduce").wait()

    def gather_objects(self, mine: Any, *, for_io: bool = False) -> list[Any]:
        """Every worker's small picklable object, in the order of ranks."""
        if self.size == 1:
            self.check()
            return [mine]
        group = self.io_group if for_io else self.host_group
        own = torch.frombuffer(bytearray(pickle.dumps(mine)), dtype=torch.uint8)
        sizes = torch.zeros(self.size, dtype=torch.int64)
        self._gather(sizes, torch.tensor([own.numel()]), group)
        longest = int(sizes.max())
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: own.numel()] = own
        told = torch.empty(self.size * longest, dtype=torch.uint8)
        self._gather(told, padded, group)
        rows = told.view(self.size, longest)
        return [
            pickle.loads(bytes(row[:size].numpy()))
            for row, size in zip(rows, sizes.tolist(), strict=True)
        ]

    def broadcast_object(self, mine: Any, *, source: int) -> Any:
        """The picklable object of rank ``source``."""
        if self.size == 1:
            return mine
        raw = bytearray(pickle.dumps(mine)) if self.rank == source else bytearray()
        size = torch.tensor([len(raw)])
        self.broadcast_(size, source=source)
        body = torch.empty(int(size), dtype=torch.uint8)
        if self.rank == source:
            body.copy_(torch.frombuffer(raw, dtype=torch.uint8))
        self.broadcast_(body, source=source)
        return pickle.loads(bytes(body.numpy()))

    def broadcast_(self, tensor: torch.Tensor, *, source: int) -> None:
        """Overwrite a tensor in host memory with that of rank ``source``."""
        if self.size > 1:
            with self._peers("broadcast"):
                work = dist.broadcast(tensor, src=source, group=self.host_group, async_op=True)
            Pending(self, work, "broadcast").wait()

    def wait_for(self, work: Any, doing: str) -> None:
        """Wait for torch's ``work``, which `track` knows.

        Raises:
            WorldBroken: a peer was lost, or the world was failed.
        """
        with self._peers(doing):
            if self.device.type == "cuda" and self.group is not self.host_group:
                work.wait()  # enters the stream and is back at once
                return
            while True:
                try:
                    work.wait(_SLICE)
                    return
                except RuntimeError:
                    if work.is_completed():
                        work.wait()  # raises its own error, if it was not just the slice
                        return
                self.check()

    def _drop_ended(self) -> None:
        self._works = [one for one in self._works if not one.is_completed()]

    def _gather(self, total: torch.Tensor, mine: torch.Tensor, group: Any) -> None:
        with self._peers("gather"):
            work = _all_gather(total, mine, group=group, async_op=True)
        Pending(self, work, "gather").wait()

    def check(self) -> None:
        """Raise `WorldBroken` if this world was failed; collectives do it by themselves."""
        if self._failed:
            raise WorldBroken(self._failed)

    @contextmanager
    def _peers(self, doing: str) -> Iterator[None]:
        self.check()
        with peers(doing):
            yield


def open_store(host: str) -> tuple[Any, int]:
    """The store at which process groups meet, on ``host`` alone, and its port."""
    with socket.create_server((host, 0), backlog=1024) as listener:
        port = listener.getsockname()[1]
        store = dist.TCPStore(
            host,
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
    return store, port


@contextmanager
def peers(doing: str) -> Iterator[None]:
    """Turn torch's error for a lost peer into `WorldBroken`."""
    try:
        yield
    except WorldBroken:
        raise
    except RuntimeError as exc:
        # torch has no one class for it: DistBackendError with NCCL, a plain
        # RuntimeError with gloo. A collective on our own tensors has no other
        # reason to fail than a peer that is gone or that failed itself.
        first = str(exc).strip().splitlines()[0] if str(exc).strip() else repr(exc)
        raise WorldBroken(f"{doing} with the other workers failed: {first}") from exc


# Groups with a collective that hangs: their destructors would wait for it, and hold the
# interpreter meanwhile. They are kept until it is through: a lost peer's sockets close at
# last, or the process ends.
_FORGOTTEN: list[World] = []
_KEPT: list[World] = []  # used by a thread whose collectives nobody tracks: until the process ends
_LEFT: list[World] = []  # healthy, and kept for a while


def forget_groups(world: World, *, is_busy: bool) -> None:
    """Make room for the next default process group, without waiting for this one.

    The sockets of a healthy world stay open until the next call: a peer may still be
    reading what was the last message.

    Args:
        world: No collective of it is started any more.
        is_busy: Another thread, with torch's own collectives, may be in it.
    """
    is_healthy = not world.failed
    world.fail("this worker left for the next generation")
    _FORGOTTEN[:] = [one for one in _FORGOTTEN if not one.is_still]
    if is_busy:
        _KEPT.append(world)
    elif is_healthy and world.is_still:
        _LEFT[:] = [world]
    else:
        _FORGOTTEN.append(world)
    if dist.is_initialized():
        dist.destroy_process_group()
