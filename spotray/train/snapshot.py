"""Snapshots: the state in the node's own memory, where it outlives the worker's process.

Two slots are written in turn. A slot is a data file in a memory-backed folder
(``/dev/shm``) and a small file that makes it valid (its own checksum, then JSON): it is
removed before the data changes and written, by rename, when all the bytes and their
checksum are there. So one slot is valid at any moment, wherever a process is killed.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spotray.errors import CheckpointCorrupt
from spotray.train.capture import Captured, byte_index, byte_view
from spotray.train.hostcopy import HostCopy, lock_pages, unlock_pages

log = logging.getLogger(__name__)

_BLOCK_BYTES = 1 << 16


@dataclass(frozen=True)
class Found:
    """A valid snapshot on this node."""

    step: int  # optimizer steps in it
    slot: int
    captured: Captured


class SnapshotSlots:
    """The two slots of one run on this node. One process of the node writes them.

    ``on_sealed`` is called with each snapshot that was committed: the bytes of the file that
    makes it valid, and its own, which stay until the next but one is written.
    """

    def __init__(self, folder: Path) -> None:
        """``folder``: the run's own folder in memory-backed storage; made if missing."""
        self.folder = folder
        self._images: list[torch.Tensor | None] = [None, None]
        self._locked = [False, False]  # whether a GPU may copy into the image by itself
        self._next = 0
        self.on_sealed: Callable[[bytes, memoryview], None] | None = None
        self._sealing: threading.Thread | None = None
        self._is_sealed = False
        self.seal_s = 0.0  # CPU time of the last checksum and commit, beside training
        self.stalled_s = 0.0  # time that a GPU's training stood still for the last copy

    @property
    def is_sealing(self) -> bool:
        """Whether the last snapshot is still to be committed."""
        return self._sealing is not None and self._sealing.is_alive()

    def lacking_room(self, size_bytes: int) -> str:
        """Why two snapshots of that size do not fit, and what to do; empty if they do."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self.folder).free + sum(
                f.stat().st_size for f in self.folder.glob("slot-*.bin")
            )
        except OSError as exc:
            return f"{self.folder} cannot be used ({exc}): set SPOTRAY_SHM_DIR to another folder"
        if 2 * size_bytes <= free:
            return ""
        return (
            f"{self.folder} has {free / 2**20:.0f} MiB, two snapshots of this job need "
            f"{2 * size_bytes / 2**20:.0f} MiB: enlarge it (docker run --shm-size, "
            "mount -o remount,size=...) or set SPOTRAY_SHM_DIR to a larger folder"
        )

    def write(self, captured: Captured, *, step: int) -> None:
        """Copy the state; its checksum and commit go on beside training (`wait`).

        Raises:
            OSError: the memory-backed folder is full or gone.
        """
        self.wait()
        slot = self._next
        self._meta(slot).unlink(missing_ok=True)
        index, size = byte_index(captured)
        image = self._image(slot, size)
        if not self._locked[slot] and any(t.is_cuda for t in captured.tensors.values()):
            self._locked[slot] = lock_pages(image)
        copy = HostCopy(
            (byte_view(image, *index[name]), tensor) for name, tensor in captured.tensors.items()
        )
        meta = {
            "step": step,
            "size_bytes": size,
            "index": index,
            "skeleton": captured.skeleton,
        }
        self._is_sealed = False
        self._sealing = threading.Thread(
            target=self._seal, args=(slot, image, copy, meta), name="snapshot-seal", daemon=True
        )
        self._sealing.start()
        self._next = 1 - slot

    def wait(self) -> bool:
        """Return when the last snapshot is committed; whether it could be."""
        if self._sealing is not None:
            self._sealing.join()
            self._sealing = None
        return self._is_sealed

    def newest(self, on_rejected: Any = None) -> Found | None:
        """The newest valid snapshot; damaged ones are told to ``on_rejected(path, why)``."""
        found: list[Found] = []
        for slot in (0, 1):
            try:
                one = self._read(slot)
            except (CheckpointCorrupt, OSError) as exc:
                log.warning("snapshot %s left out: %s", self._meta(slot), exc)
                if on_rejected is not None:
                    on_rejected(str(self._meta(slot)), str(exc))
                continue
            if one is not None:
                found.append(one)
        best = max(found, key=lambda f: f.step, default=None)
        if best is not None:
            self._next = 1 - best.slot  # never overwrite the newest one
        return best

    def reopen(self) -> None:
        """Another process wrote, or will write: map the files anew, spare the newest one."""
        self.wait()
        self._unmap(0)
        self._unmap(1)
        self.newest()

    def remove(self) -> None:
        """Delete the run's folder on this node."""
        self.wait()
        self._unmap(0)
        self._unmap(1)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _meta(self, slot: int) -> Path:
        return self.folder / f"slot-{slot}.json"

    def _image(self, slot: int, size: int) -> torch.Tensor:
        """The slot's bytes as a shared mapping, shape ``(size,)``; kept mapped between writes."""
        image = self._images[slot]
        if image is None or image.numel() != size:
            self.folder.mkdir(parents=True, exist_ok=True)
            path = self.folder / f"slot-{slot}.bin"
            self._unmap(slot)  # if the next lines fail, the old mapping leads nowhere
            path.unlink(missing_ok=True)
            with open(path, "wb") as file:
                # Reserve for real: a sparse file in a full /dev/shm would end
                # the process with SIGBUS at the first write instead of an error.
                os.posix_fallocate(file.fileno(), 0, max(size, 1))
            image = _mapped(path, size)
            self._images[slot] = image
        return image

    def _unmap(self, slot: int) -> None:
        image, self._images[slot] = self._images[slot], None
        if image is not None and self._locked[slot]:
            unlock_pages(image)
        self._locked[slot] = False

    def _seal(self, slot: int, image: torch.Tensor, copy: HostCopy, meta: dict[str, Any]) -> None:
        started = time.thread_time()
        temporary = self.folder / f".slot-{slot}.json"
        try:
            self.stalled_s = copy.wait()
            text = json.dumps({**meta, "checksum": _checksum(image)})
            whole = f"{zlib.crc32(text.encode()):08x}\n{text}".encode()
            temporary.write_bytes(whole)
            temporary.rename(self._meta(slot))
            self._is_sealed = True
            if self.on_sealed is not None:
                self.on_sealed(whole, image.numpy().data)
        except (OSError, RuntimeError) as exc:  # the latter is torch's, of a GPU that failed
            self._unmap(slot)  # the folder may be gone, and the data with it
            log.error("snapshot of step %d not committed: %s", meta["step"], exc)
        self.seal_s = time.thread_time() - started

    def _read(self, slot: int) -> Found | None:
        path = self._meta(slot)
        if not path.exists():
            return None
        try:
            own_crc32, _, text = path.read_text().partition("\n")
            if own_crc32 != f"{zlib.crc32(text.encode()):08x}":  # as text: a letter's case counts
                raise CheckpointCorrupt("its own checksum disagrees")
            meta = json.loads(text)
            step, size, index = int(meta["step"]), int(meta["size_bytes"]), meta["index"]
            skeleton, checksum = str(meta["skeleton"]), int(meta["checksum"])
            data = self.folder / f"slot-{slot}.bin"
            if data.stat().st_size < size:
                raise CheckpointCorrupt(f"{data.name} has {data.stat().st_size} of {size} bytes")
            image = _mapped(data, size)
            tensors = {
                str(name): byte_view(image, int(at), str(dtype), [int(n) for n in shape])
                for name, (at, dtype, shape) in index.items()
            }
        except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as exc:
            raise CheckpointCorrupt(f"unreadable: {exc!r}") from exc
        if _checksum(image) != checksum:
            raise CheckpointCorrupt("the checksum of its data disagrees")
        return Found(step, slot, Captured(skeleton, tensors))


def _mapped(path: Path, size: int) -> torch.Tensor:
    if size == 0:
        return torch.empty(0, dtype=torch.uint8)
    return torch.from_file(str(path), shared=True, size=size, dtype=torch.uint8)


def _checksum(image: torch.Tensor) -> int:
    """CRC-32 over the sums of all blocks: a third of the time of one over all bytes.

    A flipped bit changes its block's sum; a block that is lost or in another's place
    changes the CRC. numpy lets other threads run meanwhile, and takes one core alone.
    """
    data = image.numpy()
    whole = len(data) - len(data) % _BLOCK_BYTES
    words = data[:whole].view(np.uint64).reshape(-1, _BLOCK_BYTES // 8)
    return zlib.crc32(data[whole:].data, zlib.crc32(np.add.reduce(words, axis=1).data))
