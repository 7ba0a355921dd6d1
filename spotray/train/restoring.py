"""Finds a state to go on from in storage, and brings one worker's state to the others.

States of which no worker holds all are read by `spotray.train.sharded`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch

from spotray.checkpoint.manifest import Manifest
from spotray.errors import CheckpointCorrupt, CheckpointError
from spotray.train.capture import Captured, byte_index, byte_view
from spotray.train.world import World

if TYPE_CHECKING:
    from spotray.train.checkpointer import Checkpointer

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
            raise all_damaged(damaged)
        return None

    if newer_than < 0:
        return patient(search, pauses_s)
    try:
        return search()
    except OSError as exc:
        # A snapshot is at hand, and hardly ever older than a checkpoint.
        on_unreadable(f"checkpoints could not be read, the snapshot is taken: {exc}")
        return None


def all_damaged(names: Sequence[str]) -> CheckpointError:
    """What to do if no checkpoint of a job is sound."""
    return CheckpointError(
        f"all checkpoints of this job are damaged ({', '.join(names)}): bring one back from a "
        "backup, or give the job another name to start from step 0"
    )


def patient(read: Callable[[], T], pauses_s: Sequence[float] = _READ_PAUSES_S) -> T:
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
