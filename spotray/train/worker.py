"""What runs in each Ray Train worker around the user's training loop."""

from __future__ import annotations

import inspect
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import ray
import ray.train
import ray.train.torch
import torch.distributed as dist
from ray.exceptions import RayError

from spotray.errors import JournalError
from spotray.ledger.journal import JournalWriter
from spotray.storage import Store
from spotray.train import session as session_module
from spotray.train.config import SpotConfig
from spotray.train.ray_internals import WorkerContext
from spotray.train.session import NoJournal, Progress, Session, StopRequest
from spotray.train.snapshot import SnapshotSlots
from spotray.train.vision_compat import mend_torchvision
from spotray.train.world import World

log = logging.getLogger(__name__)

_SYNC_EVERY_S = 0.3  # with the coordinator
_CALL_S = 10.0
SHM_DIR = "/dev/shm/spotray"  # unless SPOTRAY_SHM_DIR says otherwise


@dataclass(frozen=True)
class WorkerLoop:
    """The training function that Ray Train gets: the user's, inside of a session."""

    loop: Callable[..., Any]
    run_id: str
    store: Store
    spot: SpotConfig
    coordinator: Any  # handle of the Coordinator actor

    def __call__(self, config: dict[str, Any]) -> Any:
        entered_at_s = time.time()
        mend_torchvision()
        world, reached = self._form_world(entered_at_s)
        journal = (
            JournalWriter(
                self.store.child("journal"),
                writer=f"rank0-{world.generation:06d}-{os.getpid()}",
                # An object store takes a request for each flush.
                flush_interval_s=0.5 if self.store.can_append else 5.0,
            )
            if world.rank == 0
            else NoJournal()
        )
        link = RayLink(self.coordinator, world, self.store)
        session = Session(
            run_id=self.run_id,
            world=world,
            spot=self.spot,
            store=self.store,
            shm_dir=shm_home(),
            node_id=ray.get_runtime_context().get_node_id(),
            link=link,
            journal=journal,
            reached_step=reached,
        )
        session_module.enter(session)
        try:
            result = self.loop(config) if _takes_config(self.loop) else self.loop()
            if session.run is not None:
                session.run.finish()
            return result
        finally:
            link.close()
            session_module.enter(None)
            if isinstance(journal, JournalWriter):
                try:
                    journal.close()
                except JournalError as exc:  # must not hide how the loop ended
                    log.warning("facts of generation %d are lost: %s", world.generation, exc)

    def _form_world(self, entered_at_s: float) -> tuple[World, int]:
        """The workers of this group, under a new generation."""
        context = ray.train.get_context()
        device = ray.train.torch.get_device()
        if dist.is_initialized():
            world = World.from_process_group(device=device, local_rank=context.get_local_rank())
        else:
            world = World(device=device)
        mine = (
            ray.get_runtime_context().get_node_id(),
            psutil.Process().create_time(),
            entered_at_s,
        )
        node_ids, process_at_s, imported_at_s = zip(*world.gather_objects(mine), strict=True)
        begun = None
        if world.rank == 0:
            begun = ray.get(
                self.coordinator.begin.remote(
                    list(node_ids), max(process_at_s), max(imported_at_s)
                ),
                timeout=_CALL_S,
            )
        world.generation, reached = world.broadcast_object(begun, source=0)
        return world, reached


class RayLink:
    """`JobLink` over the coordinator actor and Ray Train; only rank 0 talks to the actor."""

    def __init__(self, coordinator: Any, world: World, store: Store) -> None:
        self._coordinator = coordinator
        self._world = world
        self._store = store
        self._context = WorkerContext()
        self._progress: Progress | None = None
        self._stop: StopRequest | None = None
        self._losses = (0, 0.0)
        self._closing = threading.Event()
        self._released = threading.Event()  # the coordinator took its request to stop back
        self._thread: threading.Thread | None = None
        if world.rank == 0:
            self._thread = threading.Thread(target=self._sync, name="coordinator", daemon=True)
            self._thread.start()

    def notice_deadline_s(self) -> float | None:
        notice = self._context.notice()
        if notice is None:
            return None
        return float("inf") if notice.deadline_s is None else notice.deadline_s

    def asks_to_stop(self) -> StopRequest | None:
        return self._stop

    def progress(self, progress: Progress) -> None:
        self._progress = progress

    def held(self, *, step: int, why: str) -> None:
        notice = self._context.notice()
        nodes = list(notice.node_ids) if notice is not None else []
        log.info("step %d: all workers stand still: %s", step, why)
        try:
            ray.get(
                self._coordinator.held.remote(self._world.generation, nodes, why),
                timeout=_CALL_S,
            )
        except RayError as exc:
            log.warning("the coordinator did not hear that the workers stand still: %s", exc)

    def wait_for_end(self, timeout_s: float) -> None:
        self._released.wait(timeout_s)
        self._stop = None

    def losses(self) -> tuple[int, float]:
        return self._losses

    def report(self, metrics: Mapping[str, Any], checkpoint: str | None) -> None:
        mode = ray.train.CheckpointUploadMode
        if checkpoint is None:
            # A report without a checkpoint waits for the controller's next poll in
            # SYNC mode; ASYNC does not, and there is nothing to upload.
            ray.train.report(dict(metrics), checkpoint_upload_mode=mode.ASYNC)
            return
        folder = Store.at(checkpoint, filesystem=None) if "://" in checkpoint else None
        root = folder.root if folder is not None else checkpoint
        pointer = ray.train.Checkpoint(root, filesystem=self._store.fs)
        ray.train.report(dict(metrics), checkpoint=pointer, checkpoint_upload_mode=mode.NO_UPLOAD)

    def close(self) -> None:
        """End the thread that talks to the coordinator."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(timeout=_CALL_S)

    def _sync(self) -> None:
        while not self._closing.wait(_SYNC_EVERY_S):
            if self._progress is None:
                continue
            notice = self._context.notice()
            told = (notice.deadline_s, list(notice.node_ids)) if notice is not None else None
            try:
                stop, lost, up_s = ray.get(
                    self._coordinator.sync.remote(self._world.generation, self._progress, told),
                    timeout=_CALL_S,
                )
            except RayError as exc:
                log.warning("the job's coordinator did not answer: %s", exc)
                continue
            self._losses = (lost, up_s)
            self._stop = stop
            if stop is None:
                self._released.set()
            else:
                self._released.clear()


def remove_job_memory(run_id: str) -> None:
    """Remove a job's snapshots from this node's memory; runs as a Ray task."""
    home = shm_home()
    SnapshotSlots(home / run_id).remove()
    for progress in home.glob(f"progress-{run_id}-*"):
        progress.unlink(missing_ok=True)


def shm_home() -> Path:
    """This node's memory-backed folder, where runs have theirs."""
    return Path(os.environ.get("SPOTRAY_SHM_DIR", SHM_DIR))


def _takes_config(loop: Callable[..., Any]) -> bool:
    return bool(inspect.signature(loop).parameters)
