"""Saves the state of a run: snapshots in node memory, checkpoints in storage, each when due.

How often is for `spotray.train.pace` to say; what to go on from after a loss is not decided
here but in `spotray.train.keeper`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from spotray.checkpoint import manifest as manifests
from spotray.errors import FencedOut, WorldBroken
from spotray.events import CheckpointCommitted, CheckpointRejected, SnapshotTaken, Warned
from spotray.train.capture import Captured, byte_index
from spotray.train.checkpointer import Checkpointer, Commit, Committed
from spotray.train.pace import Pace
from spotray.train.session import Session
from spotray.train.sharded import NO_SNAPSHOTS
from spotray.train.shelf import COPIES, Copier, fetch_copy
from spotray.train.snapshot import Found, SnapshotSlots
from spotray.train.state import TrainState
from spotray.train.world import World

log = logging.getLogger(__name__)


class Saver:
    """Snapshots and checkpoints of one worker, their intervals, and the facts about them.

    Args:
        session: The job around this worker; None outside of a trainer, where
            nothing is saved.
        world: The workers.
        state: What must survive.
        commit: Makes a written checkpoint valid, or raises `FencedOut`.
        now_s: Training time, for the intervals.
    """

    def __init__(
        self,
        session: Session | None,
        world: World,
        state: TrainState,
        *,
        commit: Commit = manifests.write,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._world = world
        self._state = state
        self._commit = commit
        self._now_s = now_s
        self.slots: SnapshotSlots | None = None  # None: no snapshots on this node
        self.checkpoints: Checkpointer | None = None  # None: no storage
        if session is not None and session.shm_dir is not None and not state.is_sharded:
            self.slots = SnapshotSlots(session.shm_dir / session.run_id)
        self.copier = self._copier()
        self.checkpoints = self._checkpointer()
        now = self._now_s()
        self._size_bytes = 0  # of the state, as far as known
        self._is_measured = False  # with what optimizers add at their first step
        self._lacking = ""  # why this node takes no snapshots now
        self._snapshot_at = now
        self._snapshot_blocked_s: float | None = None  # for the last one
        self._checkpoint_at = now
        self._checkpoint: Committed | None = None
        self._metrics: dict[str, float] = {}  # the newest that were reported
        self._metric_missed = False
        if state.is_sharded and self.checkpoints is not None:
            self._lacking = NO_SNAPSHOTS  # the run says so
        elif session is not None and self.slots is None:
            self._lacks_room(
                NO_SNAPSHOTS
                if state.is_sharded
                else "there is no memory-backed folder on this node"
            )

    def enter(self, world: World) -> None:
        """Go on among other workers, without a restart of this process.

        A checkpoint under way belongs to the old workers: it is given up, and nobody
        hears of it. The snapshots stay, though another process may now write them.
        """
        moved = world.local_rank != self._world.local_rank
        self._world = world
        if self.copier is not None and moved:
            self.copier.stop()
        if self.checkpoints is not None:
            if self.checkpoints.is_busy:
                self.hurry_checkpoint()  # losses that come often must not outrun every one
            self.checkpoints.abandon()
            self.checkpoints = self._checkpointer()
        if self.slots is not None and moved:
            self.slots.wait()
            if world.local_rank == 0:
                self.slots.reopen()

    # -- when ------------------------------------------------------------------

    @property
    def snapshot_cost_s(self) -> float:
        """What the last snapshot cost training; 0 before the first."""
        if self._snapshot_blocked_s is None or self.slots is None:
            return 0.0
        beside_s = self.slots.seal_s if self._on_cpu else 0.0
        if self.copier is not None and self._on_cpu:
            beside_s += self.copier.cpu_s
        return self._snapshot_blocked_s + self.slots.stalled_s + beside_s

    @property
    def checkpoint_cost_s(self) -> float:
        """Seconds from start to commit of the last checkpoint; 0 before the first."""
        return self._checkpoint.seconds if self._checkpoint else 0.0

    @property
    def lacks_snapshots(self) -> bool:
        """Whether a state is safe only once it is in storage."""
        return bool(self._lacking)

    def wants_snapshot(self) -> bool:
        """Whether the time since the last snapshot is over, and that one is committed.

        One that is needed on another node too is done only when it is there.
        """
        if self.slots is None or self.slots.is_sealing:
            return False
        if self.copier is not None:
            if self.copier.is_busy:
                return False
            if self.copier.wants_one():
                return True
        return self._now_s() - self._snapshot_at >= self.snapshot_interval_s()

    def wants_checkpoint(self, *, noticed: bool = False) -> bool:
        """Whether the time since the last checkpoint is over, and none is being written.

        Args:
            noticed: A notice has just come. Without snapshots it asks for a checkpoint
                too. Before the first one, nobody knows how long it takes: then the
                workers stop at once, and write one when they do.
        """
        if self.checkpoints is None or self.checkpoints.is_busy:
            return False
        if noticed and self._lacking and self._checkpoint is not None:
            return True
        return self._now_s() - self._checkpoint_at >= self.checkpoint_interval_s()

    def hurry_snapshot(self) -> None:
        """Take the next snapshot at once: some node does not hold this state yet."""
        self._snapshot_at = float("-inf")

    def hurry_checkpoint(self) -> None:
        """Start the next checkpoint at once, unless `checkpoint_aged` says otherwise."""
        self._checkpoint_at = float("-inf")

    def checkpoint_aged(self, age_s: float) -> None:
        """Storage holds a checkpoint of that age: the next one is due as if it were ours."""
        self._checkpoint_at = self._now_s() - age_s

    def snapshot_interval_s(self) -> float:
        """Time between two snapshots; infinite where there are none."""
        return self._pace().snapshot_interval_s() if self.slots is not None else float("inf")

    def checkpoint_interval_s(self) -> float:
        """Training time between two checkpoint starts."""
        return self._pace().checkpoint_interval_s()

    def _pace(self) -> Pace:
        session = self._session
        assert session is not None, "no session, nothing to save"
        return Pace(
            spot=session.spot,
            workers=self._world.size,
            on_cpu=self._on_cpu,
            size_bytes=self._size_bytes,
            has_storage=self.checkpoints is not None,
            storage_alone=self.lacks_snapshots,
            losses=session.link.losses() if session.link is not None else (0, 0.0),
            snapshot_cost_s=self.snapshot_cost_s,
            checkpoint=self._checkpoint,
        )

    @property
    def _on_cpu(self) -> bool:
        return self._world.device.type == "cpu"

    # -- snapshots -------------------------------------------------------------

    def check_room(self, captured: Captured) -> bool:
        """Note the state's size; whether two snapshots of it fit into this node's memory.

        Without room, storage alone is used until there is some: that is told once.
        """
        self._size_bytes = byte_index(captured)[1]
        if self.slots is None:
            return False
        if self._world.local_rank == 0 and (lacking := self.slots.lacking_room(self._size_bytes)):
            self._lacks_room(lacking)
            return False
        return True

    def snapshot(self, step: int, *, why: str, wait: bool) -> bool:
        """Take a snapshot; whether this node holds it (with ``wait``: committed)."""
        self._snapshot_at = self._now_s()
        if self._session is None or self.slots is None:
            return False
        if self._world.local_rank != 0:
            return True  # the node's first worker speaks for the node
        began = time.perf_counter()
        captured = self._state.capture()
        if not self.check_room(captured):
            return False
        try:
            if self.copier is not None:
                self.copier.stop()  # of an older one, in the way only if this one is in a hurry
            self.slots.write(captured, step=step)
        except OSError as exc:
            self._lacks_room(f"the snapshot of step {step} failed: {exc}")
            return False
        if self._lacking:
            log.info("snapshots are taken on this node again")
            self._lacking = ""
        self._snapshot_blocked_s = time.perf_counter() - began
        held = self.slots.wait() if wait else True
        self._session.journal.append(
            SnapshotTaken(
                at_s=time.time(),
                generation=self._world.generation,
                step=step,
                seconds=time.perf_counter() - began,
                size_bytes=captured.size_bytes,
                why=why,
            )
        )
        return held

    def newest_snapshot(self) -> Found | None:
        """The newest one that this node holds, or that another one holds as a copy."""
        if self.slots is None or self._session is None:
            return None
        found = [self.slots.newest(self.reject)]
        found.append(SnapshotSlots(self.slots.folder / COPIES).newest(self.reject))
        member = self._session.member
        assignment = member.assignment if member is not None else None
        if assignment is not None and assignment.copy_at is not None and self._world.rank == 0:
            newest = max((one.step for one in found if one is not None), default=-1)
            brought = SnapshotSlots(self.slots.folder / "brought")
            try:
                if fetch_copy(
                    assignment.copy_at, self._session.run_id, brought.folder, newer_than=newest
                ):
                    found.append(brought.newest(self.reject))
            except (OSError, ValueError) as exc:
                self._warn(f"a copy of a snapshot on another node could not be read: {exc}")
                log.warning("a copy of a snapshot on another node could not be read: %s", exc)
            brought.remove()  # what was found stays mapped
        return max((one for one in found if one is not None), key=lambda f: f.step, default=None)

    def remove_snapshots(self) -> None:
        """Give the node's memory back; the job is done."""
        if self.copier is not None:
            self.copier.stop()
        if self.slots is not None and self._world.local_rank == 0:
            self.slots.remove()

    # -- checkpoints -----------------------------------------------------------

    def reported(self, metrics: Mapping[str, Any]) -> None:
        """Note what was reported: the next checkpoints count with it when the best is kept."""
        self._metrics = {
            name: float(value)
            for name, value in metrics.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        best = self._session.spot.keep_best if self._session is not None else None
        if best is not None and best[0] not in self._metrics and not self._metric_missed:
            self._metric_missed = True
            log.warning(
                "keep_best goes by %r, which was not reported; there are: %s",
                best[0],
                ", ".join(sorted(self._metrics)) or "none",
            )

    def start_checkpoint(
        self,
        step: int,
        epoch: int,
        *,
        final: bool = False,
        hurry: bool = False,
        asked_for: bool = False,
    ) -> None:
        """Begin to write a checkpoint beside training, if there is storage."""
        self._checkpoint_at = self._now_s()
        if self.checkpoints is not None:
            began = time.perf_counter()
            self.checkpoints.start(
                self._state.capture(),
                step=step,
                epoch=epoch,
                final=final,
                hurry=hurry,
                asked_for=asked_for,
                metrics=self._metrics,
                began=began,
            )

    def collect(self) -> bool:
        """Journal what became of the last checkpoint; whether one was committed.

        Called after each step; the first time it measures the state, which optimizers
        complete at their first step.
        """
        if not self._is_measured and self._session is not None:
            self._is_measured = True
            self.check_room(self._state.capture())
        if self.checkpoints is None:
            return False
        outcome = self.checkpoints.outcome()
        if isinstance(outcome, Exception):
            self._warn(f"a checkpoint failed: {outcome}")
        elif outcome is not None:
            self._committed(outcome, why="interval")
            return True
        return False

    def checkpoint_now(self, step: int, epoch: int) -> bool:
        """Write a checkpoint and wait for it; whether it was committed."""
        if self.checkpoints is None:
            return False
        self.collect()
        self.start_checkpoint(step, epoch, hurry=True)
        self.checkpoints.wait()
        return self.collect()

    def checkpoint_asked_for(self, step: int, epoch: int) -> str | None:
        """Write a checkpoint that stays, and wait for it; its URL, or None if that failed.

        Raises:
            WorldBroken: a worker was lost meanwhile.
        """
        if self.checkpoints is None:
            return None
        self.checkpoints.wait()
        self.collect()
        self.start_checkpoint(step, epoch, hurry=True, asked_for=True)
        self.checkpoints.wait()
        outcome = self.checkpoints.outcome()
        if isinstance(outcome, WorldBroken | FencedOut):
            raise WorldBroken(str(outcome))
        if isinstance(outcome, Exception):
            self._warn(f"a checkpoint that was asked for failed: {outcome}")
            return None
        self._committed(outcome, why="asked for")
        assert outcome is not None, "it was waited for"
        return self.checkpoints.url(outcome.name)

    def final_checkpoint(self, step: int, epoch: int) -> str | None:
        """Commit the state at the end of training; its URL, or None without storage.

        Raises:
            CheckpointError: it could not be written.
        """
        if self.checkpoints is None:
            return None
        self.checkpoints.wait()
        self.collect()
        if self._checkpoint is None or self._checkpoint.step != step or not self._checkpoint.final:
            self.start_checkpoint(step, epoch, final=True)
            self.checkpoints.wait()
            outcome = self.checkpoints.outcome()
            if isinstance(outcome, Exception):
                raise outcome
            self._committed(outcome, why="end")
        assert self._checkpoint is not None
        return self.checkpoints.url(self._checkpoint.name)

    def reject(self, path: str, why: str) -> None:
        """Tell that a snapshot or checkpoint is damaged or unfinished."""
        log.warning("%s is left out: %s", path, why)
        if self._session is not None:
            self._session.journal.append(CheckpointRejected(at_s=time.time(), path=path, why=why))

    # -- inside ----------------------------------------------------------------

    def _copier(self) -> Copier | None:
        session = self._session
        member = session.member if session is not None else None
        if session is None or member is None or self.slots is None:
            return None
        copier = Copier(session.run_id, lambda: member.copy_to, member.copied)
        self.slots.on_sealed = copier.start
        return copier

    def _checkpointer(self) -> Checkpointer | None:
        session = self._session
        if session is None or session.store is None:
            return None
        return Checkpointer(
            session.store.child("checkpoints"),
            self._world,
            run_id=session.run_id,
            keep=session.spot.retention,
            on_rejected=self.reject,
            commit=self._commit,
            bytes_per_s=session.spot.checkpoint_bytes_per_s,
        )

    def _committed(self, done: Committed | None, *, why: str) -> None:
        assert done is not None and self.checkpoints is not None and self._session is not None
        self._checkpoint = done
        self._session.journal.append(
            CheckpointCommitted(
                at_s=time.time(),
                step=done.step,
                path=self.checkpoints.url(done.name),
                seconds=done.seconds,
                blocked_s=done.blocked_s,
                size_bytes=done.size_bytes,
                why=why,
            )
        )

    def _lacks_room(self, why: str) -> None:
        """This node takes no snapshots for now; said once."""
        if not self._lacking:
            instead = "the state goes to storage alone"
            if self.checkpoints is None:
                instead = "there is no storage either, so nothing is saved: a loss costs all steps"
            what = f"no snapshots on this node, {instead}: {why}"
            log.warning("%s", what)
            self._warn(what)
        self._lacking = why

    def _warn(self, what: str) -> None:
        if self._session is not None:
            self._session.journal.append(Warned(at_s=time.time(), what=what))
