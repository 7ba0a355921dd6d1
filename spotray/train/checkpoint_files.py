"""A checkpoint's files: torch's own format over a `Store`, hashed on the way out, checked on
the way in, and no faster than allowed.
"""

from __future__ import annotations

import hashlib
import io
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO

import pyarrow as pa
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemBase, FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from spotray.checkpoint import manifest as manifests
from spotray.checkpoint.manifest import Manifest
from spotray.errors import CheckpointCorrupt, FencedOut, one_line
from spotray.storage import Store
from spotray.train.capture import Captured
from spotray.train.sharded import Layout

SKELETON = "~skeleton"  # the skeleton's bytes travel as one more tensor
_PIECE_BYTES = 1 << 20  # what goes out at once under a limit
_LONGEST_WAIT_S = 86400.0  # that a limit leads to; threading knows no longer ones than ages


def read_checkpoint(
    folder: Store, manifest: Manifest | None = None, layout: Layout | None = None
) -> Captured:
    """The state in a checkpoint's folder, every byte that is read checked against its manifest.

    Args:
        folder: The checkpoint.
        manifest: Of it, if it was read before.
        layout: Of the tensors of which only this worker's piece is wanted.

    Raises:
        CheckpointCorrupt: no manifest, or a file is missing or differs from it.
        OSError: storage did not answer; the checkpoint may be sound.
    """
    manifest = manifest or manifests.read(folder)
    reader = FileSystemReader("")
    reader.fs = FilesOnStore(folder, expected=manifest.files)  # type: ignore[assignment]
    reader.path = ""
    try:
        metadata = reader.read_metadata()
        tensors: dict[str, Any] = {}
        for name, item in metadata.state_dict_metadata.items():
            if not isinstance(item, TensorStorageMetadata):
                raise CheckpointCorrupt(f"{folder.url}: {name} is no tensor")
            dtype = item.properties.dtype
            piece = layout(name, item.size, dtype) if layout is not None else None
            tensors[name] = torch.empty(item.size, dtype=dtype) if piece is None else piece
        dcp.load(tensors, storage_reader=reader, no_dist=True)
        skeleton = bytes(tensors.pop(SKELETON).numpy()).decode()
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
        why = cause(exc)
        if isinstance(why, OSError) and not isinstance(why, FileNotFoundError):
            raise why from exc
        raise CheckpointCorrupt(f"{folder.url} cannot be read: {reason(exc)}") from exc
    return Captured(skeleton, tensors)


def cause(exc: BaseException) -> BaseException:
    """What happened on the first rank that failed, if torch wrapped it; else ``exc``."""
    if isinstance(exc, CheckpointException) and exc.failures:
        return cause(next(iter(exc.failures.values()))[0])
    return exc


def reason(exc: BaseException) -> str:
    """An error's own words on one line; torch wraps each rank's into one with all tracebacks."""
    if isinstance(exc, CheckpointException) and exc.failures:
        rank, (cause, _) = next(iter(exc.failures.items()))
        return f"rank {rank}: {reason(cause)}"
    return one_line(exc, 300)


class Pace:
    """Holds a stream to some bytes a second, and ends it when its checkpoint is given up."""

    def __init__(self, bytes_per_s: float | None = None) -> None:
        self._bytes_per_s = bytes_per_s
        self._no_more_waiting = threading.Event()
        self._is_given_up = False
        self._began = time.monotonic()
        self._bytes = 0

    def lift(self) -> None:
        """No limit any more: somebody waits for the end."""
        self._no_more_waiting.set()

    def give_up(self) -> None:
        """Let the next piece raise `FencedOut`."""
        self._is_given_up = True
        self._no_more_waiting.set()

    def pieces(self, data: memoryview) -> Iterator[memoryview]:
        """The data in pieces; each comes when those before it are paid for in time."""
        at_once = len(data) if self._bytes_per_s is None else _PIECE_BYTES
        for start in range(0, len(data), max(at_once, 1)):
            piece = data[start : start + at_once]
            if self._bytes_per_s is not None:
                due = self._began + self._bytes / self._bytes_per_s
                self._no_more_waiting.wait(min(max(due - time.monotonic(), 0.0), _LONGEST_WAIT_S))
            if self._is_given_up:
                raise FencedOut("the workers that began it are no longer together")
            self._bytes += len(piece)
            yield piece


class FilesOnStore(FileSystemBase):
    """torch's file protocol over a `Store`; hashes what goes out, checks what comes in."""

    def __init__(
        self,
        store: Store,
        *,
        expected: Mapping[str, tuple[int, str]] | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._store = store
        self._expected = expected
        self._pace = pace or Pace()
        self.written: dict[str, tuple[int, str]] = {}  # name -> size in bytes, SHA-256

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        name = os.fspath(path)
        if mode == "rb":
            yield io.BytesIO(self._checked(name))
            return
        with self._store.open_output(name) as out:
            stream = _Hashing(out, self._pace)
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

    def __init__(self, out: BinaryIO, pace: Pace) -> None:
        self._out = out
        self._pace = pace
        self.size = 0
        self.digest = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for piece in self._pace.pieces(view):
            self._out.write(piece)
            self.digest.update(piece)
        self.size += len(view)
        return len(view)

    def tell(self) -> int:
        return self.size
