"""Checkpoints of a run: every rank writes its part, a manifest makes the whole valid.

The files are torch.distributed.checkpoint's own, so that a checkpoint can be read
without spotray. Writing happens beside training, on copies in host memory.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeVar

import pyarrow as pa
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import (
    FileSystemBase,
    FileSystemReader,
    FileSystemWriter,
)
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from spotray.checkpoint import manifest as manifests
from spotray.checkpoint.manifest import Manifest
from spotray.errors import CheckpointCorrupt, CheckpointError, WorldBroken
from spotray.storage import Store
from spotray.train.capture import Captured
from spotray.train.world import World

log = logging.getLogger(__name__)

T = TypeVar("T")

_SKELETON = "~skeleton"  # the skeleton's bytes travel as one more tensor


@dataclass(frozen=True)
class Committed:
    """A checkpoint that was committed."""

    step: int
    name: str
    seconds: float  # from start to commit
    blocked_s: float  # time that training stood still
    size_bytes: int
    final: bool = False  # written at the end of training


class Checkpointer:
    """Writes, finds and reads the checkpoints in one folder.

    Args:
        store: The folder.
        world: The workers that write together.
        run_id: Of the job; stored in each manifest.
        keep: How many checkpoints to keep.
        on_rejected: Called with (name, why) for each damaged or unfinished one.
    """

    def __init__(
        self,
        store: Store,
        world: World,
        *,
        run_id: str,
        keep: int,
        on_rejected: Callable[[str, str], None],
    ) -> None:
        self._store = store
        self._world = world
        self._run_id = run_id
        self._keep = keep
        self._on_rejected = on_rejected
        self._writing: threading.Thread | None = None
        self._outcome: Committed | Exception | None = None
        self._abandoned = threading.Event()

    @property
    def is_busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._writing is not None and self._writing.is_alive()

    def start(self, captured: Captured, *, step: int, epoch: int, final: bool = False) -> None:
        """Copy this rank's part of the state and write it beside training (`outcome`).

        All ranks call it at the same step. A ``final`` one, at the end of training, is
        handed to Ray Train and is never deleted: Ray refuses a job whose checkpoint went.
        """
        self.wait()
        started = time.perf_counter()
        mine = _part(captured, rank=self._world.rank, size=self._world.size)
        staged = {name: tensor.to("cpu", copy=True) for name, tensor in mine.items()}
        blocked_s = time.perf_counter() - started
        size_bytes = captured.size_bytes
        self._writing = threading.Thread(
            target=self._run,
            args=(staged, step, epoch, started, blocked_s, size_bytes, final),
            name="checkpoint",
            daemon=True,
        )
        self._writing.start()

    def wait(self) -> None:
        """Return when no checkpoint is being written."""
        if self._writing is not None:
            self._writing.join()
            self._writing = None

    def abandon(self) -> None:
        """Give up what is being written: it will not be committed, and nobody hears of it.

        Its thread is not waited for: it may hang in a collective until its group ends.
        """
        self._abandoned.set()
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

    def read(self, name: str, manifest: Manifest) -> Captured:
        """The state in a checkpoint, every byte checked.

        Raises:
            CheckpointCorrupt: a file is missing or differs from the manifest.
        """
        return read_checkpoint(self._store.child(name), manifest)

    def url(self, name: str) -> str:
        """Where a checkpoint is."""
        return self._store.child(name).url

    def _run(
        self,
        staged: dict[str, torch.Tensor],
        step: int,
        epoch: int,
        started: float,
        blocked_s: float,
        size_bytes: int,
        final: bool,
    ) -> None:
        name = manifests.folder_name(step)
        try:
            self._write(staged, name, step, epoch, final)
        except WorldBroken as exc:
            # The workers are about to be replaced; the next ones write their own.
            log.warning("checkpoint of step %d given up: %s", step, exc)
            self._outcome = exc
        except Exception as exc:  # the thread's top: training goes on without this one
            log.exception("checkpoint of step %d failed", step)
            self._outcome = exc
        else:
            seconds = time.perf_counter() - started
            self._outcome = Committed(step, name, seconds, blocked_s, size_bytes, final)

    def _write(
        self, staged: dict[str, torch.Tensor], name: str, step: int, epoch: int, final: bool
    ) -> None:
        folder = self._store.child(name)
        # An older attempt at the same step, perhaps a damaged one, must not lend its
        # files to this one.
        self._together(name, lambda: manifests.remove(folder), alone=True)
        files = self._together(name, lambda: self._write_part(staged, folder))
        manifest = Manifest(
            run_id=self._run_id,
            step=step,
            epoch=epoch,
            world_size=self._world.size,
            created_at_s=time.time(),
            files={file: entry for part in files for file, entry in part.items()},
            extra={"final": final},
        )
        self._together(name, lambda: self._commit(folder, manifest), alone=True)
        if self._world.rank == 0:
            try:
                manifests.retain(self._store, keep_last=self._keep, keep=_is_final)
            except (OSError, pa.ArrowException) as exc:
                # This one is committed all the same; the next one tries again.
                log.warning("old checkpoints in %s stay: %s", self._store.url, exc)

    def _commit(self, folder: Store, manifest: Manifest) -> None:
        if self._abandoned.is_set():
            raise WorldBroken("the workers that began it are no longer together")
        manifests.write(folder, manifest)

    def _together(self, name: str, work: Callable[[], T], *, alone: bool = False) -> list[T]:
        """``work()`` of every rank (``alone``: of rank 0), or the same error on all of them.

        Peers wait for each other here, so a rank that fails must say so and not leave.
        """
        done: T | None = None
        failed = ""
        if not alone or self._world.rank == 0:
            try:
                done = work()
            except (Exception, CheckpointException) as exc:
                failed = _reason(exc)
                log.warning("checkpoint %s: %s", name, failed)
        told = self._world.gather_objects((failed, done), for_io=True)
        if failures := [why for why, _ in told if why]:
            raise CheckpointError(
                f"{self._store.url}/{name} could not be written ({failures[0]}): "
                "look at the storage's space and access rights"
            )
        return [result for _, result in told]

    def _write_part(
        self, staged: dict[str, torch.Tensor], folder: Store
    ) -> dict[str, tuple[int, str]]:
        """Write this rank's files; name -> size in bytes, SHA-256."""
        files = _FilesOnStore(folder)
        writer = FileSystemWriter("", sync_files=False)
        writer.fs = files  # type: ignore[assignment]  # as torch's own fsspec writer does
        writer.path = ""
        dcp.save(
            staged,
            storage_writer=writer,
            process_group=self._world.io_group,
            no_dist=self._world.size == 1,
        )
        return files.written


def _is_final(manifest: Manifest) -> bool:
    return bool(manifest.extra.get("final"))


def read_checkpoint(folder: Store, manifest: Manifest | None = None) -> Captured:
    """The state in a checkpoint's folder, every byte checked against its manifest.

    Raises:
        CheckpointCorrupt: no manifest, or a file is missing or differs from it.
        OSError: storage did not answer; the checkpoint may be sound.
    """
    manifest = manifest or manifests.read(folder)
    reader = FileSystemReader("")
    reader.fs = _FilesOnStore(folder, expected=manifest.files)  # type: ignore[assignment]
    reader.path = ""
    try:
        metadata = reader.read_metadata()
        tensors: dict[str, Any] = {}
        for name, item in metadata.state_dict_metadata.items():
            if not isinstance(item, TensorStorageMetadata):
                raise CheckpointCorrupt(f"{folder.url}: {name} is no tensor")
            tensors[name] = torch.empty(item.size, dtype=item.properties.dtype)
        dcp.load(tensors, storage_reader=reader, no_dist=True)
        skeleton = bytes(tensors.pop(_SKELETON).numpy()).decode()
    except CheckpointCorrupt:
        raise
    except (
        OSError,
        RuntimeError,
        ValueError,
        KeyError,
        EOFError,
        pa.ArrowException,
        CheckpointException,
    ) as exc:
        cause = _cause(exc)
        if isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError):
            raise cause from exc
        raise CheckpointCorrupt(f"{folder.url} cannot be read: {_reason(exc)}") from exc
    return Captured(skeleton, tensors)


def _cause(exc: BaseException) -> BaseException:
    """What happened on the first rank that failed, if torch wrapped it; else ``exc``."""
    if isinstance(exc, CheckpointException) and exc.failures:
        return _cause(next(iter(exc.failures.values()))[0])
    return exc


def _reason(exc: BaseException) -> str:
    """An error's own words on one line; torch wraps each rank's into one with all tracebacks."""
    if isinstance(exc, CheckpointException) and exc.failures:
        rank, (cause, _) = next(iter(exc.failures.items()))
        return f"rank {rank}: {_reason(cause)}"
    return " ".join(str(exc).split())[:300] or type(exc).__name__


def _part(captured: Captured, *, rank: int, size: int) -> dict[str, torch.Tensor]:
    """The tensors that a rank writes: about the same number of bytes each."""
    skeleton = torch.frombuffer(bytearray(captured.skeleton.encode()), dtype=torch.uint8)
    tensors: Mapping[str, torch.Tensor] = {**captured.tensors, _SKELETON: skeleton}
    load = [0] * size
    mine = {}
    largest_first = sorted(tensors.items(), key=lambda kv: (-kv[1].nbytes, kv[0]))
    for name, tensor in largest_first:
        owner = load.index(min(load))
        load[owner] += tensor.nbytes
        if owner == rank:
            mine[name] = tensor
    return mine


class _FilesOnStore(FileSystemBase):
    """torch's file protocol over a `Store`; hashes what goes out, checks what comes in."""

    def __init__(self, store: Store, expected: Mapping[str, tuple[int, str]] | None = None) -> None:
        self._store = store
        self._expected = expected
        self.written: dict[str, tuple[int, str]] = {}  # name -> size in bytes, SHA-256

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        name = os.fspath(path)
        if mode == "rb":
            yield io.BytesIO(self._checked(name))
            return
        with self._store.open_output(name) as out:
            stream = _Hashing(out)
            yield stream
            self.written[name] = (stream.size, stream.digest.hexdigest())

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str:
        return f"{os.fspath(path)}/{suffix}".strip("/")

    def init_path(self, path: str | os.PathLike[str]) -> str:
        return os.fspath(path)

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        old, new = os.fspath(path), os.fspath(new_path)
        self._store.write(new, self._store.read(old))
        self._store.delete(old)
        self.written[new] = self.written.pop(old)

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """Nothing to do: a store makes its folders as it writes."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        del checkpoint_id
        return True

    def exists(self, path: str | os.PathLike[str]) -> bool:
        return self._store.exists(os.fspath(path))

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        self._store.delete(os.fspath(path))

    def _checked(self, name: str) -> bytes:
        data = self._store.read(name)
        if self._expected is not None:
            if name not in self._expected:
                raise CheckpointCorrupt(f"{self._store.url}/{name} is not in the manifest")
            size, sha256 = self._expected[name]
            if len(data) != size or hashlib.sha256(data).hexdigest() != sha256:
                raise CheckpointCorrupt(
                    f"{self._store.url}/{name} has {len(data)} bytes that differ from the "
                    f"manifest's ({size} bytes)"
                )
        return data


class _Hashing(io.RawIOBase):
    """A stream that counts and hashes what is written through it."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self.size = 0
        self.digest = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._out.write(view)
        self.digest.update(view)
        self.size += len(view)
        return len(view)

    def tell(self) -> int:
        return self.size
