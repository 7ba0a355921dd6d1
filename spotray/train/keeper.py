"""What a run goes on from, and when its workers save, stop or stand still.

All ranks do the same at the same step. Rank 0 alone wishes for something; its
wishes ride along with the step's gradient, so agreeing costs no message of its own.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import struct
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from typing import ClassVar

import torch

from spotray.checkpoint import manifest as manifests
from spotray.checkpoint.manifest import Manifest
from spotray.errors import CheckpointCorrupt, CheckpointError, JournalError
from spotray.events import ResizeAgreed, Restored, StepsDone, Warned
from spotray.train.capture import Captured, byte_index, byte_view, digest
from spotray.train.saving import Saver
from spotray.train.session import Progress, Session
from spotray.train.sharded import layout_of, read_newest, split_pieces
from spotray.train.state import TrainState
from spotray.train.world import World

log = logging.getLogger(__name__)

_JOURNAL_EVERY_S = 1.0  # steps are told in groups of about this time
_READ_PAUSES_S = (1.0, 4.0, 15.0, 40.0)  # between attempts to read checkpoints
_RECENT_STEPS = 256  # that a survivor can tell in place of a lost rank 0
_STAND_STILL_S = 60.0  # then nobody moved this worker group, and it goes on


@dataclass(frozen=True)
class Wish:
    """What rank 0 wants done after this step; 0 or 1 each."""

    snapshot: float = 0.0
    notice: float = 0.0  # a snapshot because of a notice
    checkpoint: float = 0.0
    stop: float = 0.0
    durable: float = 0.0  # with stop: the state must reach storage
    FIELDS: ClassVar[tuple[str, ...]] = ("snapshot", "notice", "checkpoint", "stop", "durable")

    @classmethod
    def from_riders(cls, riders: Sequence[float]) -> Wish:
        return cls(*riders)


@dataclass
class _Steps:
    """Steps that are done and not yet told to the journal."""

    first: int = 0
    samples: int = 0
    ended_at_s: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class _Ended:
    """One step that was done."""

    generation: int
    step: int
    samples: int
    began_at_s: float
    ended_at_s: float
    world_size: int
    loss: float | None

    def told(self) -> StepsDone:
        return StepsDone(
            at_s=self.ended_at_s,
            generation=self.generation,
            first_step=self.step,
            last_step=self.step,
            seconds=self.ended_at_s - self.began_at_s,
            samples=self.samples,
            world_size=self.world_size,
            loss=self.loss,
            ended_at_s=(self.ended_at_s,),
        )


class Keeper:
    """What one worker goes on from, what it does after each step, and the facts about steps.

    Args:
        session: The job around this worker; None outside of a trainer, where
            nothing is kept.
        world: The workers.
        state: What must survive.
    """

    def __init__(self, session: Session | None, world: World, state: TrainState) -> None:
        self._session = session
        self._world = world
        self._state = state
        self.samples = 0  # of the step under way, over all workers
        self.useful_workers = 0  # more have no shard in any step; 0: not known
        member = session.member if session is not None else None
        # Of live workers, one may be thrown out without knowing it.
        commit = member.commit if member is not None else manifests.write
        self.saver = Saver(session, world, state, commit=commit)
        self._progress: _ProgressFile | None = None
        if session is not None and session.shm_dir is not None:
            self._progress = self._progress_file(session)
        now = time.monotonic()
        self._notice_kept_s: float | None = None  # deadline of the notice that was acted on
        self._saved: tuple[Captured, str] | None = None  # the restored state, and whence
        self._entered_with: tuple[Captured, str] | None = None  # also if it was a fresh one
        self._postponed = Wish()
        self._steps = _Steps()
        self._recent: deque[_Ended] = deque(maxlen=_RECENT_STEPS)
        self._loss: float | None = None
        self._told_at = now
        self._told_any = False
        self._step_began_at = time.time()
        self._step_at = now
        self._stop_why = ""

    # -- going on --------------------------------------------------------------

    def restore(self) -> None:
        """Go on from the newest state that any worker's node, or storage, holds.

        All ranks call it. A run without any saved state starts from rank 0's.

        Raises:
            StateMismatch: the newest state belongs to another job.
        """
        started = time.perf_counter()
        captured = self._state.capture()
        if self._session is None:
            return
        self.saver.check_room(captured)
        slots = self.saver.slots
        found = slots.newest(self.saver.reject) if slots is not None else None
        reached = self._progress.read() if self._progress is not None else 0
        held = self._world.gather_objects((found.step if found else -1, reached))
        in_memory = max(step for step, _ in held)
        reached = max([self._session.reached_step, *(r for _, r in held)])
        if in_memory > 0:
            self.saver.hurry_checkpoint()  # unless storage holds one
        stored = self._newest_checkpoint(newer_than=in_memory)
        if stored is not None:
            step, whence, saved = stored
            source = "checkpoint"
        elif in_memory >= 0:
            holder = [s for s, _ in held].index(in_memory)
            mine = found.captured if found and found.step == in_memory else None
            saved = self._send(mine, source=holder)
            step, source, whence = in_memory, "snapshot", f"the snapshot of step {in_memory}"
        else:
            alike, pieces = split_pieces(captured)  # all workers drew the same numbers
            sent = self._send(alike, source=0)
            saved = Captured(sent.skeleton, {**sent.tensors, **pieces})
            step, source, whence = 0, "fresh", "rank 0's first state"
        self._state.restore(saved, whence=whence)
        self._saved = (saved, whence) if source != "fresh" else None
        self._entered_with = (saved, whence) if self._session.member is not None else None
        if self._progress is not None:
            self._progress.write(step)
        if source != "fresh" and any(s != step for s, _ in held):
            self.saver.hurry_snapshot()  # some node does not hold this state yet
        self._journal(
            Restored(
                at_s=time.time(),
                generation=self._world.generation,
                step=step,
                source=source,
                seconds=time.perf_counter() - started,
                reached_step=reached,
            )
        )
        self._step_began_at = time.time()

    def tell_rest(self) -> None:
        """Tell the steps so far: they belong to the generation that ends."""
        if self._recent:
            self._tell_steps(self._recent[-1].step, self._loss)

    def enter(self, world: World) -> None:
        """Go on among other workers, without a restart of this process."""
        told_before = self._world.rank == 0
        self._world = world
        if self._progress is not None and self._session is not None:
            self._progress = self._progress_file(self._session)
        self.saver.enter(world)
        self._postponed = Wish()
        self._told_any = False
        member = self._session.member if self._session is not None else None
        if member is None or member.assignment is None:
            return
        if world.rank == 0 and not told_before:
            # The one who told the steps is gone, perhaps before it told the last ones.
            self._steps = _Steps()
            for one in self._recent:
                if one.step > member.assignment.told_step:
                    self._journal(one.told())

    def heal(self, step: int) -> bool:
        """Make the state of all members that of the most advanced one; whether this one's changed.

        All ranks call it, in a new generation. Where members are at one step, their
        checksums say whether they are alike.

        Args:
            step: Optimizer steps done here.
        """
        assert self._session is not None and self._session.member is not None
        member = self._session.member
        assignment, roster = member.assignment, member.roster
        assert assignment is not None and roster is not None, "a generation was formed"
        started = time.perf_counter()
        is_heir = member.name in roster.heirs
        captured = self._state.capture()
        mine = (step, digest(captured)) if is_heir else None
        last = self._recent[-1] if self._recent else None
        told, ended = zip(*self._world.gather_objects((mine, last)), strict=True)
        most = max(one[0] for one in told if one is not None)
        counts = Counter(one[1] for one in told if one is not None and one[0] == most)
        if len(counts) > 1:
            what = (
                f"{len(counts)} different states of step {most} among the workers: something "
                "outside of run.prepare() changes one of them; the most common one is taken"
            )
            log.error("%s", what)
            self._journal(Warned(at_s=time.time(), what=what))
        right = (most, counts.most_common(1)[0][0])
        source = told.index(right)
        lacks = mine != right
        if any(one != right for one in told):
            saved = self._send(captured if self._world.rank == source else None, source=source)
            if lacks:
                whence = f"the state of step {most} of another worker"
                self._state.restore(saved, whence=whence)
                self._saved = (saved, whence)
        if self._progress is not None:
            self._progress.write(most)
        if lacks:
            self.saver.hurry_snapshot()
            theirs = ended[source]
            if theirs is not None and theirs.step == most > assignment.told_step:
                # Only members that did the step can tell of it, and rank 0 is none of them.
                self._recent.append(theirs)
                self._journal(theirs.told())
        self._journal(
            Restored(
                at_s=time.time(),
                generation=self._world.generation,
                step=most,
                source="peers" if any(one not in (None, right) for one in told) else "kept",
                seconds=time.perf_counter() - started,
                reached_step=max(most, assignment.reached_step),
                connected_at_s=member.connected_at_s,
            )
        )
        self._step_began_at = time.time()
        self._step_at = time.monotonic()
        return lacks

    def take_over(self) -> tuple[Captured, str] | None:
        """The state of the present generation, for a loop that is run again from its top."""
        return self._saved or self._entered_with

    def restore_from(self, saved: Captured, whence: str) -> None:
        """Go on from a state that is at hand; the other workers know nothing of it."""
        self._state.restore(saved, whence=whence)
        self._saved = (saved, whence)

    def restore_again(self) -> None:
        """Undo what the loop did since `restore`, for a state in the middle of an epoch.

        The code at the top of an epoch ran before that state was saved; what it did
        (a scheduler's step, say) is in it already.
        """
        if self._saved is not None:
            saved, whence = self._saved
            self._state.restore(saved, whence=whence)

    def forget_restored(self) -> None:
        """Free the restored state: the first step is about to begin."""
        self._saved = self._entered_with = None

    def _newest_checkpoint(self, *, newer_than: int) -> tuple[int, str, Captured] | None:
        """The newest sound checkpoint if it is newer than the snapshots; read by rank 0."""
        if self.saver.checkpoints is None:
            return None
        if self._state.is_sharded:
            return read_newest(
                self.saver.checkpoints,
                self._world,
                layout_of(self._state.parts, self._state.capture()),
                on_rejected=self.saver.reject,
                on_found=self._note_age,
                pauses_s=_READ_PAUSES_S,
            )
        read = self._search(newer_than) if self._world.rank == 0 else None
        head = self._world.broadcast_object(read[:2] if read else None, source=0)
        if head is None:
            return None
        return head[0], head[1], self._send(read[2] if read else None, source=0)

    def _search(self, newer_than: int) -> tuple[int, str, Captured] | None:
        """The newest sound checkpoint above a step; storage that fails is asked again."""
        for pause_s in _READ_PAUSES_S:
            try:
                return self._search_once(newer_than)
            except OSError as exc:
                if newer_than >= 0:
                    # A snapshot is at hand, and hardly ever older than a checkpoint.
                    what = f"checkpoints could not be read, the snapshot is taken: {exc}"
                    self._journal(Warned(at_s=time.time(), what=what))
                    return None
                log.warning("checkpoints could not be read, again in %.0f s: %s", pause_s, exc)
                time.sleep(pause_s)
        return self._search_once(newer_than)

    def _search_once(self, newer_than: int) -> tuple[int, str, Captured] | None:
        checkpoints = self.saver.checkpoints
        assert checkpoints is not None, "asked for by _newest_checkpoint"
        damaged: list[str] = []
        for name, manifest in checkpoints.newest():
            self._note_age(manifest)
            if manifest.step <= newer_than:
                return None
            try:
                captured = checkpoints.read(name, manifest)
            except CheckpointCorrupt as exc:
                self.saver.reject(name, str(exc))
                damaged.append(name)
                continue
            return manifest.step, checkpoints.url(name), captured
        if damaged and newer_than < 0:
            raise CheckpointError(
                f"all checkpoints of this job are damaged ({', '.join(damaged)}): bring one "
                "back from a backup, or give the job another name to start from step 0"
            )
        return None

    def _note_age(self, manifest: Manifest) -> None:
        """The next checkpoint is due as if this worker group had been here all along."""
        self.saver.checkpoint_aged(max(0.0, time.time() - manifest.created_at_s))

    def _send(self, mine: Captured | None, *, source: int) -> Captured:
        """The state that rank ``source`` holds, on all ranks."""
        if self._world.size == 1:
            assert mine is not None
            return mine
        sending = self._world.rank == source
        head = None
        if sending:
            assert mine is not None
            head = (mine.skeleton, *byte_index(mine))
        skeleton, index, size = self._world.broadcast_object(head, source=source)
        image = torch.empty(max(size, 1), dtype=torch.uint8)
        views = {name: byte_view(image, *place) for name, place in index.items()}
        if sending:
            assert mine is not None
            for name, view in views.items():
                view.copy_(mine.tensors[name])
        self._world.broadcast_(image, source=source)
        return Captured(skeleton, views)

    # -- keeping ---------------------------------------------------------------

    def wishes(self) -> list[float]:
        """What this worker wants done after the step under way; rank 0 speaks for all."""
        if self._session is None or self._world.rank != 0:
            return [0.0] * len(Wish.FIELDS)
        link = self._session.link
        stop = link.asks_to_stop() if link is not None else None
        deadline_s = link.notice_deadline_s() if link is not None else None
        noticed = deadline_s is not None and deadline_s != self._notice_kept_s
        if stop is not None:
            self._stop_why = stop.why
        return list(
            astuple(
                Wish(
                    snapshot=float(self.saver.wants_snapshot()),
                    notice=float(noticed),
                    checkpoint=float(self.saver.wants_checkpoint(noticed=noticed)),
                    stop=float(stop is not None),
                    durable=float(stop is not None and stop.durable),
                )
            )
        )

    def step_done(
        self, step: int, epoch: int, loss: float | None, wish: Wish, *, ends_epoch: bool = False
    ) -> None:
        """Record a finished step and do what rank 0 wished for. All ranks call it.

        Args:
            step: Optimizer steps done, this one included.
            epoch: Of this step.
            loss: Mean over the global batch.
            wish: As all ranks received it.
            ends_epoch: This was the epoch's last step. What is wished for then waits
                for `epoch_done`: a state saved here would come back to an epoch that
                has no batch left, which a loop may not expect. A loss that was
                announced does not wait, since the evaluation to come may be long.
        """
        if self._session is None:
            return
        if self._progress is not None:
            self._progress.write(step)
        self._loss = loss
        self._steps.first = self._steps.first or step
        self._steps.samples += self.samples
        now_s = time.time()
        if self._session.member is not None:
            began_s = self._recent[-1].ended_at_s if self._recent else self._step_began_at
            self._recent.append(
                _Ended(
                    self._world.generation,
                    step,
                    self.samples,
                    began_s,
                    now_s,
                    self._world.size,
                    loss,
                )
            )
        self._steps.ended_at_s.append(now_s)
        self.saver.collect()
        link = self._session.link
        now = time.monotonic()
        step_s, self._step_at = now - self._step_at, now
        if link is not None and (self._world.rank == 0 or self._session.member is not None):
            link.progress(
                Progress(
                    step=step,
                    epoch=epoch,
                    loss=loss,
                    step_s=step_s,
                    snapshot_s=self.saver.snapshot_cost_s,
                    checkpoint_s=self.saver.checkpoint_cost_s,
                    useful_workers=self.useful_workers,
                    # Live workers keep the state of one that leaves.
                    no_snapshots=self.saver.lacks_snapshots and self._session.member is None,
                )
            )
        if time.monotonic() - self._told_at >= _JOURNAL_EVERY_S or not self._told_any:
            # The first step of a worker group ends a recovery: it is told at once.
            self._tell_steps(step, loss)
        if wish.stop and self._session.member is not None:
            self._save_for_meeting(step, epoch, durable=bool(wish.durable))
        elif ends_epoch:
            self._postponed = wish
            if wish.stop or wish.notice:
                self.saver.snapshot(step, why="notice", wait=True)
                if self._state.is_sharded:
                    self.saver.checkpoint_now(step, epoch)
        else:
            self._fulfil(step, epoch, wish)

    def epoch_done(self, step: int, epoch: int) -> None:
        """After the loop's work at an epoch's end: do what was wished for at its last step.

        Args:
            step: Optimizer steps done.
            epoch: The next one.
        """
        wish, self._postponed = self._postponed, Wish()
        if self._session is not None:
            self._fulfil(step, epoch, wish)

    def final_checkpoint(self, step: int, epoch: int) -> str | None:
        """Commit the state at the end of training; its URL, or None without storage."""
        if self._session is None:
            return None
        self._tell_steps(step, self._loss)
        return self.saver.final_checkpoint(step, epoch)

    def remove_snapshots(self) -> None:
        """Give the node's memory back; the job is done."""
        self.saver.remove_snapshots()
        if self._progress is not None:
            self._progress.remove()
            with contextlib.suppress(OSError):  # not empty while another job is on this node
                self._progress.path.parent.rmdir()

    # -- inside ----------------------------------------------------------------

    def _progress_file(self, session: Session) -> _ProgressFile:
        assert session.shm_dir is not None, "asked for where there is one"
        name = f"progress-{session.run_id}-{self._world.local_rank}"
        return _ProgressFile(session.shm_dir / name)

    def _fulfil(self, step: int, epoch: int, wish: Wish) -> None:
        assert self._session is not None, "nobody wishes without a session"
        if wish.stop:
            self._tell_steps(step, self._loss)
            self._stand_still(step, epoch, durable=bool(wish.durable))
            return
        if wish.notice:
            if self._session.link is not None:
                self._notice_kept_s = self._session.link.notice_deadline_s()
            self.saver.snapshot(step, why="notice", wait=True)
        elif wish.snapshot:
            self.saver.snapshot(step, why="interval", wait=False)
        if wish.checkpoint:
            self.saver.start_checkpoint(step, epoch, hurry=bool(wish.notice))

    def _save_for_meeting(self, step: int, epoch: int, *, durable: bool) -> None:
        """All members are about to meet again; with ``durable``, maybe nobody comes back."""
        self._tell_steps(step, self._loss)
        self._journal(
            ResizeAgreed(
                at_s=time.time(),
                generation=self._world.generation,
                step=step,
                why=self._stop_why,
            )
        )
        if durable:
            self.saver.snapshot(step, why="resize", wait=True)
            if not all(self._world.gather_objects(self.saver.checkpoint_now(step, epoch))):
                what = f"step {step} could not be saved before all nodes are taken"
                self._journal(Warned(at_s=time.time(), what=what))

    def _stand_still(self, step: int, epoch: int, *, durable: bool) -> None:
        """All ranks are here after the same step: save it, say so, wait to be replaced."""
        assert self._session is not None, "nobody wishes without a session"
        held = self.saver.snapshot(step, why="resize", wait=True)
        # Nobody may be replaced before everybody's snapshot is committed.
        if durable or not all(self._world.gather_objects(held)):
            stored = self.saver.checkpoint_now(step, epoch)
            if not all(self._world.gather_objects(stored)):
                # Going on saves what the next try, or the next snapshot, can save.
                what = f"step {step} could not be saved: the workers do not leave yet"
                self._journal(Warned(at_s=time.time(), what=what))
                return
        why = self._stop_why
        self._journal(
            ResizeAgreed(at_s=time.time(), generation=self._world.generation, step=step, why=why)
        )
        self._flush()
        link = self._session.link
        if link is not None and self._world.rank == 0:
            link.held(step=step, why=why)
            link.wait_for_end(_STAND_STILL_S)
        # The others wait here, for the end of their processes or for rank 0.
        self._world.gather_objects(None)
        log.warning("this worker group was not replaced: it goes on after step %d", step)

    def _tell_steps(self, step: int, loss: float | None) -> None:
        """Journal the steps since the last time."""
        steps, self._steps = self._steps, _Steps()
        self._told_at = time.monotonic()
        self._told_any = True
        if not steps.ended_at_s:
            return
        began, self._step_began_at = self._step_began_at, steps.ended_at_s[-1]
        self._journal(
            StepsDone(
                at_s=steps.ended_at_s[-1],
                generation=self._world.generation,
                first_step=steps.first,
                last_step=step,
                seconds=steps.ended_at_s[-1] - began,
                samples=steps.samples,
                world_size=self._world.size,
                loss=loss,
                ended_at_s=tuple(steps.ended_at_s),
            )
        )

    def _flush(self) -> None:
        """Wait until the facts are in storage; training does not end for want of them."""
        assert self._session is not None, "nobody tells without a session"
        try:
            self._session.journal.flush()
        except JournalError as exc:
            log.warning("facts are not in the journal yet: %s", exc)

    def _journal(self, event: Restored | StepsDone | ResizeAgreed | Warned) -> None:
        if self._session is not None:
            self._session.journal.append(event)


class _ProgressFile:
    """The last finished step, where the node's next process (and the lab) can read it.

    Eight bytes, little-endian, mapped: a step costs one store to memory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a+b") as file:
            file.truncate(8)
            self._map = mmap.mmap(file.fileno(), 8)

    def read(self) -> int:
        """The last finished step of this or an earlier process on this node; 0 at first."""
        return int(struct.unpack("<q", self._map[:8])[0])

    def write(self, step: int) -> None:
        self._map[:8] = struct.pack("<q", step)

    def remove(self) -> None:
        self._map.close()
        self.path.unlink(missing_ok=True)


assert tuple(f.name for f in fields(Wish)) == Wish.FIELDS, "riders follow the order of the fields"
