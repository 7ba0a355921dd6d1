"""Finds a state to go on from in storage, and brings one worker's state to the others."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from spotray.checkpoint import manifest as manifests
from spotray.checkpoint.manifest import Manifest
from spotray.errors import CheckpointCorrupt, CheckpointError
from spotray.storage import Store
from spotray.train.capture import Captured, byte_index, byte_view
from spotray.train.checkpoint_files import read_checkpoint
from spotray.train.checkpointer import Checkpointer
from spotray.train.sharded import Layout
from spotray.train.world import World

log = logging.getLogger(__name__)

T = TypeVar("T")

_READ_PAUSES_S = (1.0, 4.0, 15.0, 40.0)  # between attempts to read checkpoints


@dataclass(frozen=True)
class Stored:
    """A checkpoint that was read."""

    step: int
    whence: str
    captured: Captured


def newest_stored(
    checkpoints: Checkpointer,
    *,
    newer_than: int,
    on_rejected: Callable[[str, str], None],
    on_found: Callable[[Manifest], None],
    on_unreadable: Callable[[str], None],
    pauses_s: Sequence[float] = _READ_PAUSES_S,
) -> Stored | None:
    """The newest sound checkpoint above a step; storage that fails is asked again.

    Args:
        checkpoints: Where they are.
        newer_than: Step of the snapshot at hand; negative if there is none.
        on_rejected: Called with name and reason for each damaged one.
        on_found: Called with the manifest of each that is tried.
        on_unreadable: Called with what to tell, if a snapshot has to do since storage fails.
        pauses_s: Seconds between attempts while storage does not answer.

    Raises:
        CheckpointError: there are some, and all are damaged, and there is no snapshot.
        OSError: storage did not answer, and there is no snapshot.
    """

    def search() -> Stored | None:
        damaged: list[str] = []
        for name, manifest in checkpoints.newest():
            on_found(manifest)
            if manifest.step <= newer_than:
                return None
            try:
                captured = checkpoints.read(name, manifest)
            except CheckpointCorrupt as exc:
                on_rejected(name, str(exc))
                damaged.append(name)
                continue
            return Stored(manifest.step, checkpoints.url(name), captured)
        if damaged and newer_than < 0:
            raise _all_damaged(damaged)
        return None

    if newer_than < 0:
        return _patient(search, pauses_s)
    try:
        return search()
    except OSError as exc:
        # A snapshot is at hand, and hardly ever older than a checkpoint.
        on_unreadable(f"checkpoints could not be read, the snapshot is taken: {exc}")
        return None


def newest_pieces(
    checkpoints: Checkpointer,
    world: World,
    layout: Layout,
    *,
    on_rejected: Callable[[str, str], None],
    on_found: Callable[[Manifest], None],
) -> Stored | None:
    """The newest checkpoint that is sound in what every worker reads of it; None if there is none.

    All ranks call it. Each reads its own pieces, and every byte that it reads is checked;
    together they read all of it.

    Args:
        checkpoints: Where they are.
        world: The workers.
        layout: How they are to be cut.
        on_rejected: Called on rank 0 with name and reason for each damaged one.
        on_found: Called with the manifest of each that is tried.

    Raises:
        CheckpointError: there are some, and all are damaged; or storage did not answer.
    """

    def together(read: Callable[[], Any] | None) -> tuple[Any, str]:
        """What this rank read, and why a rank found it damaged."""
        result, damage, failure = None, "", ""
        if read is not None:
            try:
                result = _patient(read)
            except CheckpointCorrupt as exc:
                damage = str(exc)
            except OSError as exc:
                failure = f"{type(exc).__name__}: {exc}"
        told = world.gather_objects((damage, failure))
        if failure := next((f for _, f in told if f), ""):
            raise CheckpointError(
                f"checkpoints could not be read ({failure}): look at the storage's access rights"
            )
        return result, next((d for d, _ in told if d), "")

    listed, _ = together((lambda: list(checkpoints.newest())) if world.rank == 0 else None)
    candidates: list[tuple[str, Manifest]] = world.broadcast_object(listed, source=0)
    for name, manifest in candidates:
        on_found(manifest)

        def read(name: str = name, manifest: Manifest = manifest) -> Captured:
            return checkpoints.read(name, manifest, layout)

        captured, damage = together(read)
        if not damage:
            return Stored(manifest.step, checkpoints.url(name), captured)
        if world.rank == 0:
            on_rejected(name, damage)
    if candidates:
        raise _all_damaged([name for name, _ in candidates])
    return None


def read_stored(world: World, url: str) -> Stored:
    """One checkpoint, read by rank 0, on all ranks; all of them call it.

    Raises:
        CheckpointCorrupt: it is damaged, or there is none.
        OSError: storage did not answer.
    """

    def read() -> Stored:
        folder = Store.at(url)
        manifest = manifests.read(folder)
        return Stored(manifest.step, url, read_checkpoint(folder, manifest))

    mine = _patient(read) if world.rank == 0 else None
    step = world.broadcast_object(mine.step if mine else 0, source=0)
    return Stored(step, url, send(world, mine.captured if mine else None, source=0))


def _all_damaged(names: Sequence[str]) -> CheckpointError:
    """What to do if no checkpoint of a job is sound."""
    return CheckpointError(
        f"all checkpoints of this job are damaged ({', '.join(names)}): bring one back from a "
        "backup, or give the job another name to start from step 0"
    )


def _patient(read: Callable[[], T], pauses_s: Sequence[float] = _READ_PAUSES_S) -> T:
    """``read()``, again after each pause while storage does not answer."""
    for pause_s in pauses_s:
        try:
            return read()
        except OSError as exc:
            log.warning("checkpoints could not be read, again in %.0f s: %s", pause_s, exc)
            time.sleep(pause_s)
    return read()


def send(world: World, mine: Captured | None, *, source: int) -> Captured:
    """The state that rank ``source`` holds, on all ranks; all of them call it."""
    if world.size == 1:
        assert mine is not None, "this worker is the source"
        return mine
    sending = world.rank == source
    head = None
    if sending:
        assert mine is not None, "this worker is the source"
        head = (mine.skeleton, *byte_index(mine))
    skeleton, index, size = world.broadcast_object(head, source=source)
    image = torch.empty(max(size, 1), dtype=torch.uint8)
    views = {name: byte_view(image, *place) for name, place in index.items()}
    if sending:
        assert mine is not None, "this worker is the source"
        for name, view in views.items():
            view.copy_(mine.tensors[name])
    world.broadcast_(image, source=source)
    return Captured(skeleton, views)
