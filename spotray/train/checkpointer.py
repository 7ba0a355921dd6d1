"""Checkpoints of a run: every rank writes its part, a manifest makes the whole valid.

The files are torch.distributed.checkpoint's own, so that a checkpoint can be read
without spotray. Writing happens beside training, on copies in host memory. What is
written becomes a checkpoint only by its commit, and only members may commit.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.tensor import DTensor

from spotray.checkpoint import manifest as manifests
from spotray.checkpoint.manifest import Manifest, Retention
from spotray.errors import CheckpointCorrupt, CheckpointError, FencedOut, WorldBroken
from spotray.storage import Store
from spotray.train.capture import Captured
from spotray.train.checkpoint_files import (
    SKELETON,
    FilesOnStore,
    Pace,
    cause,
    read_checkpoint,
    reason,
)
from spotray.train.hostcopy import HostCopy
from spotray.train.sharded import Layout, local, on_host
from spotray.train.world import World

log = logging.getLogger(__name__)

T = TypeVar("T")

Commit = Callable[[Store, Manifest], None]  # of a checkpoint whose files are in that store


@dataclass(frozen=True)
class Committed:
    """A checkpoint that was committed."""

    step: int
    name: str
    seconds: float  # from start to commit
    blocked_s: float  # time that training stood still
    size_bytes: int
    final: bool = False  # written at the end of training
    cpu_s: float = 0.0  # CPU time of the thread that wrote it, on this worker


class Checkpointer:
    """Writes, finds and reads the checkpoints in one folder.

    Args:
        store: The folder.
        world: The workers that write together.
        run_id: Of the job; stored in each manifest.
        keep: Which checkpoints to keep.
        on_rejected: Called with (name, why) for each damaged or unfinished one.
        commit: Rank 0's last act for a checkpoint: it writes the manifest, or raises
            `FencedOut` because this worker is no longer a member.
        bytes_per_s: What this worker may write beside training; None: no limit.
    """

    def __init__(
        self,
        store: Store,
        world: World,
        *,
        run_id: str,
        keep: Retention,
        on_rejected: Callable[[str, str], None],
        commit: Commit = manifests.write,
        bytes_per_s: float | None = None,
    ) -> None:
        self._store = store
        self._world = world
        self._run_id = run_id
        self._keep = keep
        self._on_rejected = on_rejected
        self._commit_as_member = commit
        self._bytes_per_s = bytes_per_s
        self._staged: dict[str, torch.Tensor] = {}
        self._last = (-1, 0)  # step, and how often it was written
        self._writing: threading.Thread | None = None
        self._outcome: Committed | Exception | None = None
        self._pace = Pace()  # of what is being written
        self._abandoned = threading.Event()

    @property
    def is_busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._writing is not None and self._writing.is_alive()

    def start(
        self,
        captured: Captured,
        *,
        step: int,
        epoch: int,
        final: bool = False,
        hurry: bool = False,
        asked_for: bool = False,
        metrics: Mapping[str, float] | None = None,
        began: float | None = None,
    ) -> None:
        """Copy this rank's part of the state and write it beside training (`outcome`).

        All ranks call it at the same step.

        Args:
            captured: The state; its tensors may be the live ones.
            step: Optimizer steps in it.
            epoch: Of the next step.
            final: The one at the end of training. It is handed to Ray Train and never
                deleted: Ray refuses a job whose checkpoint went.
            hurry: Training waits for it: no limit of bandwidth holds.
            asked_for: Somebody outside of the job is going to read it: it outlives newer ones.
            metrics: The newest that were reported, for `Retention.best`.
            began: ``time.perf_counter()`` when training stopped for it; default: now.
        """
        self.wait()
        began = time.perf_counter() if began is None else began
        attempt = self._last[1] + 1 if self._last[0] == step else 1
        self._last = (step, attempt)
        self._pace = Pace(None if hurry or final else self._bytes_per_s)
        copy = self._stage(_part(captured, rank=self._world.rank, size=self._world.size))
        job = _Job(
            name=manifests.folder_name(step, self._world.generation, attempt),
            staged=dict(self._staged),
            copy=copy,
            step=step,
            epoch=epoch,
            extra={"final": final, "asked_for": asked_for, "metrics": dict(metrics or {})},
            size_bytes=captured.size_bytes,
            pace=self._pace,
            began=began,
            blocked_s=time.perf_counter() - began,
        )
        self._writing = threading.Thread(
            target=self._run, args=(job,), name="checkpoint", daemon=True
        )
        self._writing.start()

    def _stage(self, mine: Mapping[str, torch.Tensor]) -> HostCopy:
        """Begin to copy this rank's tensors into memory that all its checkpoints share.

        Fresh memory would take three times as long, for its pages come at first use.
        """
        on_gpu = any(tensor.is_cuda for tensor in mine.values())
        old = self._staged
        self._staged = {
            name: old[name]
            if name in old and old[name].shape == t.shape and old[name].dtype == t.dtype
            else on_host(t)
            if isinstance(t, DTensor)
            else torch.empty(t.shape, dtype=t.dtype, pin_memory=on_gpu)
            for name, t in mine.items()
        }
        return HostCopy((local(self._staged[name]), local(t)) for name, t in mine.items())

    def wait(self) -> None:
        """Return when no checkpoint is being written; no limit of bandwidth holds any more."""
        self._pace.lift()
        if self._writing is not None:
            self._writing.join()
            self._writing = None

    def abandon(self) -> None:
        """Give up what is being written: it will not be committed, and nobody hears of it.

        Its thread is not waited for: it may hang in a collective until its group ends.
        """
        self._abandoned.set()
        self._pace.give_up()
        self._writing = None

    def outcome(self) -> Committed | Exception | None:
        """What became of the last checkpoint; tells it once, None while it is written."""
        if self.is_busy:
            return None
        outcome, self._outcome = self._outcome, None
        return outcome

    def newest(self) -> Iterator[tuple[str, Manifest]]:
        """Checkpoints that have a manifest, the newest first, without a look at their data."""
        for _, name in manifests.list_checkpoints(self._store):
            try:
                yield name, manifests.read(self._store.child(name))
            except CheckpointCorrupt as exc:
                self._on_rejected(name, str(exc))

    def read(self, name: str, manifest: Manifest, layout: Layout | None = None) -> Captured:
        """The state in a checkpoint, or this worker's pieces of it; every byte checked.

        Raises:
            CheckpointCorrupt: a file is missing or differs from the manifest.
        """
        return read_checkpoint(self._store.child(name), manifest, layout)

    def url(self, name: str) -> str:
        """Where a checkpoint is."""
        return self._store.child(name).url

    def _run(self, job: _Job) -> None:
        try:
            stalled_s = job.copy.wait()
            self._write(job)
        except (FencedOut, WorldBroken) as exc:
            # The workers are about to be replaced; the next ones write their own.
            log.warning("checkpoint of step %d given up: %s", job.step, exc)
            outcome: Committed | Exception = exc
        except Exception as exc:  # the thread's top: training goes on without this one
            log.exception("checkpoint of step %d failed", job.step)
            outcome = exc
        else:
            outcome = Committed(
                step=job.step,
                name=job.name,
                seconds=time.perf_counter() - job.began,
                blocked_s=job.blocked_s + stalled_s,
                size_bytes=job.size_bytes,
                final=job.extra["final"],
                cpu_s=time.thread_time(),  # the thread lives for this checkpoint alone
            )
        if not self._abandoned.is_set():
            self._outcome = outcome

    def _write(self, job: _Job) -> None:
        name, folder = job.name, self._store.child(job.name)
        # What an older process left under the same name must not lend its files.
        self._together(name, lambda: manifests.remove(folder), alone=True)
        files = self._together(name, lambda: self._write_part(job, folder))
        manifest = Manifest(
            run_id=self._run_id,
            step=job.step,
            epoch=job.epoch,
            world_size=self._world.size,
            created_at_s=time.time(),
            files={file: entry for part in files for file, entry in part.items()},
            extra={**job.extra, "generation": self._world.generation},
        )
        self._together(name, lambda: self._commit(folder, manifest), alone=True)
        if self._world.rank == 0:
            try:
                manifests.retain(self._store, self._keep, generation=self._world.generation)
            except (OSError, pa.ArrowException) as exc:
                # This one is committed all the same; the next one tries again.
                log.warning("old checkpoints in %s stay: %s", self._store.url, exc)

    def _commit(self, folder: Store, manifest: Manifest) -> None:
        self._check_membership()
        self._commit_as_member(folder, manifest)

    def _check_membership(self) -> None:
        if self._abandoned.is_set():
            raise FencedOut("the workers that began it are no longer together")

    def _together(self, name: str, work: Callable[[], T], *, alone: bool = False) -> list[T]:
        """``work()`` of every rank (``alone``: of rank 0), or the same error on all of them.

        Peers wait for each other here, so a rank that fails must say so and not leave.
        """
        done: T | None = None
        failed = ""
        fenced = False
        if not alone or self._world.rank == 0:
            try:
                done = work()
            except (Exception, CheckpointException) as exc:
                failed = reason(exc)
                fenced = isinstance(cause(exc), FencedOut)
                log.warning("checkpoint %s: %s", name, failed)
        self._check_membership()  # the peers of a world that ended do not answer
        told = self._world.gather_objects((failed, fenced, done), for_io=True)
        if failures := [(why, fenced) for why, fenced, _ in told if why]:
            for why, fenced in failures:
                if fenced:
                    raise FencedOut(f"{self._store.url}/{name} was not committed: {why}")
            raise CheckpointError(
                f"{self._store.url}/{name} could not be written ({failures[0][0]}): "
                "look at the storage's space and access rights"
            )
        return [result for _, _, result in told]

    def _write_part(self, job: _Job, folder: Store) -> dict[str, tuple[int, str]]:
        """Write this rank's files; name -> size in bytes, SHA-256."""
        files = FilesOnStore(folder, pace=job.pace)
        writer = FileSystemWriter("", sync_files=False)
        writer.fs = files  # type: ignore[assignment]  # as torch's own fsspec writer does
        writer.path = ""
        dcp.save(
            job.staged,
            storage_writer=writer,
            process_group=self._world.io_group,
            no_dist=self._world.size == 1,
        )
        return files.written


@dataclass(frozen=True, kw_only=True)
class _Job:
    """A checkpoint to write."""

    name: str
    staged: dict[str, torch.Tensor]
    copy: HostCopy  # into ``staged``
    step: int
    epoch: int
    extra: dict[str, Any]
    size_bytes: int
    pace: Pace
    began: float  # time.perf_counter()
    blocked_s: float


def _part(captured: Captured, *, rank: int, size: int) -> dict[str, torch.Tensor]:
    """The tensors that a rank writes: about the same number of bytes each.

    Of sharded ones each rank writes its own piece.
    """
    skeleton = torch.frombuffer(bytearray(captured.skeleton.encode()), dtype=torch.uint8)
    tensors: Mapping[str, torch.Tensor] = {**captured.tensors, SKELETON: skeleton}
    load = [0] * size
    mine: dict[str, torch.Tensor] = {
        name: t for name, t in tensors.items() if isinstance(t, DTensor)
    }
    entire = [(name, t) for name, t in tensors.items() if name not in mine]
    largest_first = sorted(entire, key=lambda kv: (-kv[1].nbytes, kv[0]))
    for name, tensor in largest_first:
        owner = load.index(min(load))
        load[owner] += tensor.nbytes
        if owner == rank:
            mine[name] = tensor
    return mine
