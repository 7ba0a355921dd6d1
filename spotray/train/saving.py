"""Saves the state of a run: snapshots in node memory, checkpoints in storage, each when due.

What to go on from after a loss is not decided here but in `spotray.train.keeper`.
"""

from __future__ import annotations

import logging
import time

from spotray.checkpoint.interval import checkpoint_interval_s
from spotray.errors import ConfigError
from spotray.events import CheckpointCommitted, CheckpointRejected, SnapshotTaken, Warned
from spotray.train.capture import Captured, byte_index
from spotray.train.checkpointer import Checkpointer, Committed
from spotray.train.session import Session
from spotray.train.snapshot import SnapshotSlots
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
    """

    def __init__(self, session: Session | None, world: World, state: TrainState) -> None:
        self._session = session
        self._world = world
        self._state = state
        self.slots: SnapshotSlots | None = None  # None: no snapshots on this node
        self.checkpoints: Checkpointer | None = None  # None: no storage
        if session is not None and session.shm_dir is not None:
            self.slots = SnapshotSlots(session.shm_dir / session.run_id)
        self.checkpoints = self._checkpointer()
        now = time.monotonic()
        self._snapshot_at = now
        self.snapshot_cost_s = 0.0  # of the last one
        self._room_checked = False
        self._checkpoint_at = now
        self._checkpoint: Committed | None = None

    def enter(self, world: World) -> None:
        """Go on among other workers, without a restart of this process.

        A checkpoint under way belongs to the old workers: it is given up, and nobody
        hears of it. The snapshots stay, though another process may now write them.
        """
        moved = world.local_rank != self._world.local_rank
        self._world = world
        if self.checkpoints is not None:
            self.checkpoints.abandon()
            self.checkpoints = self._checkpointer()
        if self.slots is not None and moved:
            self.slots.reopen()

    # -- when ------------------------------------------------------------------

    @property
    def checkpoint_cost_s(self) -> float:
        """Seconds from start to commit of the last checkpoint; 0 before the first."""
        return self._checkpoint.seconds if self._checkpoint else 0.0

    def wants_snapshot(self) -> bool:
        """Whether the time since the last snapshot is over."""
        return time.monotonic() - self._snapshot_at >= self.snapshot_interval_s()

    def wants_checkpoint(self) -> bool:
        """Whether the time since the last checkpoint is over, and none is being written."""
        return (
            self.checkpoints is not None
            and not self.checkpoints.is_busy
            and time.monotonic() - self._checkpoint_at >= self.checkpoint_interval_s()
        )

    def hurry_snapshot(self) -> None:
        """Take the next snapshot at once: some node does not hold this state yet."""
        self._snapshot_at = float("-inf")

    def hurry_checkpoint(self) -> None:
        """Start the next checkpoint at once, unless `checkpoint_aged` says otherwise."""
        self._checkpoint_at = float("-inf")

    def checkpoint_aged(self, age_s: float) -> None:
        """Storage holds a checkpoint of that age: the next one is due as if it were ours."""
        self._checkpoint_at = time.monotonic() - age_s

    def snapshot_interval_s(self) -> float:
        """Time between two snapshots; infinite where there are none."""
        if self.slots is None or self._session is None:
            return float("inf")
        spot = self._session.spot
        return max(spot.snapshot_interval_s, self.snapshot_cost_s / spot.snapshot_cost_frac)

    def checkpoint_interval_s(self) -> float:
        """Training time between two checkpoint starts."""
        assert self._session is not None, "no session, no storage"
        spot = self._session.spot
        if spot.checkpoint_interval_s is not None:
            return spot.checkpoint_interval_s
        if self._checkpoint is None:
            return spot.checkpoint_min_interval_s
        lost, up_s = self._session.link.losses() if self._session.link is not None else (0, 0.0)
        # The first guess counts as one preemption seen after that time.
        mtbp_s = (spot.node_mtbp_s + up_s) / (1 + lost) / self._world.size
        best = checkpoint_interval_s(write_s=max(self._checkpoint.blocked_s, 1e-3), mtbp_s=mtbp_s)
        return max(best, spot.checkpoint_min_interval_s, 2 * self._checkpoint.seconds)

    # -- snapshots -------------------------------------------------------------

    def check_room(self, captured: Captured) -> None:
        """Whether two snapshots fit into this node's memory; without room there are none.

        A job that starts is refused; one that runs goes on without snapshots on the
        node, since the next node may have the room.
        """
        if self.slots is None:
            return
        try:
            self.slots.check_room(byte_index(captured)[1])
        except ConfigError as exc:
            if self._world.generation <= 1:
                raise
            log.warning("no snapshots on this node: %s", exc)
            self._warn(f"no snapshots on a node: {exc}")
            self.slots = None

    def snapshot(self, step: int, *, why: str, wait: bool) -> bool:
        """Take a snapshot; whether this node holds it (with ``wait``: committed)."""
        self._snapshot_at = time.monotonic()
        if self._session is None or self.slots is None:
            return False
        if self._world.local_rank != 0:
            return True  # the node's first worker speaks for the node
        started = time.perf_counter()
        captured = self._state.capture()
        try:
            if not self._room_checked:
                # Optimizers make their state at their first step: only now is it known.
                self.check_room(captured)
                self._room_checked = True
            if self.slots is None:
                return False
            self.slots.write(captured, step=step)
        except OSError as exc:
            log.error("snapshot of step %d failed: %s", step, exc)
            self._warn(f"snapshot of step {step} failed: {exc}")
            return False
        blocked_s = time.perf_counter() - started
        held = self.slots.wait() if wait else True
        # The checksum runs beside training, but on the same cores.
        self.snapshot_cost_s = blocked_s + self.slots.seal_s
        self._session.journal.append(
            SnapshotTaken(
                at_s=time.time(),
                generation=self._world.generation,
                step=step,
                seconds=time.perf_counter() - started,
                size_bytes=captured.size_bytes,
                why=why,
            )
        )
        return held

    def remove_snapshots(self) -> None:
        """Give the node's memory back; the job is done."""
        if self.slots is not None and self._world.local_rank == 0:
            self.slots.remove()

    # -- checkpoints -----------------------------------------------------------

    def start_checkpoint(self, step: int, epoch: int, *, final: bool = False) -> None:
        """Begin to write a checkpoint beside training, if there is storage."""
        self._checkpoint_at = time.monotonic()
        if self.checkpoints is not None:
            self.checkpoints.start(self._state.capture(), step=step, epoch=epoch, final=final)

    def collect(self) -> bool:
        """Journal what became of the last checkpoint; whether one was committed."""
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
        self.start_checkpoint(step, epoch)
        self.checkpoints.wait()
        return self.collect()

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

    def _checkpointer(self) -> Checkpointer | None:
        session = self._session
        if session is None or session.store is None:
            return None
        return Checkpointer(
            session.store.child("checkpoints"),
            self._world,
            run_id=session.run_id,
            keep=session.spot.keep_checkpoints,
            on_rejected=self.reject,
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

    def _warn(self, what: str) -> None:
        if self._session is not None:
            self._session.journal.append(Warned(at_s=time.time(), what=what))
