"""What a run goes on from, and when its workers save, stop or stand still.

All ranks do the same at the same step. Rank 0 alone wishes for something; its
wishes ride along with the step's gradient, so agreeing costs no message of its own.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from spotray.checkpoint import manifest as manifests
from spotray.checkpoint.manifest import Manifest
from spotray.errors import JournalError
from spotray.events import ResizeAgreed, Restored, Warned
from spotray.train.capture import Captured, digest
from spotray.train.hyperparameters import own_hyperparameters
from spotray.train.restoring import Stored, newest_pieces, newest_stored, read_stored, send
from spotray.train.riders import Wish
from spotray.train.saving import Saver
from spotray.train.session import Progress, Session
from spotray.train.sharded import layout_of, split_pieces
from spotray.train.state import TrainState
from spotray.train.steps import StepLog
from spotray.train.world import World

log = logging.getLogger(__name__)

Metrics = Mapping[str, Any]

_STAND_STILL_S = 60.0  # then nobody moved this worker group, and it goes on


class Keeper:
    """What one worker goes on from, and what it does after each step.

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
        self._steps = StepLog(session, world)
        self._notice_kept_s: float | None = None  # deadline of the notice that was acted on
        self._saved: tuple[Captured, str] | None = None  # the restored state, and whence
        self._entered_with: tuple[Captured, str] | None = None  # also if it was a fresh one
        self._postponed = Wish()
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
        found = self.saver.newest_snapshot()
        held = self._world.gather_objects((found.step if found else -1, self._steps.reached))
        in_memory = max(step for step, _ in held)
        reached = max([self._session.reached_step, *(r for _, r in held)])
        if in_memory > 0:
            self.saver.hurry_checkpoint()  # unless storage holds one
        stored = self._newest_checkpoint(newer_than=in_memory)
        if stored is not None:
            step, source, whence = stored.step, "checkpoint", stored.whence
            saved = stored.captured
        elif in_memory >= 0:
            holder = [s for s, _ in held].index(in_memory)
            mine = found.captured if found and found.step == in_memory else None
            saved = send(self._world, mine, source=holder)
            step, source, whence = in_memory, "snapshot", f"the snapshot of step {in_memory}"
        elif self._session.resume_from_checkpoint is not None:
            step, source, whence, saved = self._begin_from(self._session.resume_from_checkpoint)
        else:
            alike, pieces = split_pieces(captured)  # all workers drew the same numbers
            sent = send(self._world, alike, source=0)
            saved = Captured(sent.skeleton, {**sent.tensors, **pieces})
            step, source, whence = 0, "fresh", "rank 0's first state"
        if source != "other job":
            self._state.restore(saved, whence=whence)
        self._saved = (saved, whence) if source != "fresh" else None
        self._entered_with = (saved, whence) if self._session.member is not None else None
        self._steps.stand_at(step)
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
        self._steps.begin()

    def _begin_from(self, url: str) -> tuple[int, str, str, Captured]:
        """Load another job's checkpoint, but keep what this loop set in its optimizers."""
        stored = read_stored(self._world, url)
        put_back = own_hyperparameters(self._state.parts.values())
        self._state.restore(stored.captured, whence=url)
        put_back()
        now = self._state.capture()
        saved = Captured(now.skeleton, {name: t.clone() for name, t in now.tensors.items()})
        return stored.step, "other job", url, saved

    def tell_rest(self) -> None:
        """Tell the steps so far: they belong to the generation that ends."""
        self._steps.tell()

    def enter(self, world: World) -> None:
        """Go on among other workers, without a restart of this process."""
        self._world = world
        member = self._session.member if self._session is not None else None
        assignment = member.assignment if member is not None else None
        self._steps.enter(world, told_step=assignment.told_step if assignment else None)
        self.saver.enter(world)
        self._postponed = Wish()

    def heal(
        self, step: int, *, asks: Sequence[Metrics] | None = None
    ) -> tuple[bool, Sequence[Metrics] | None]:
        """Make the state of all members that of the most advanced one.

        All ranks call it, in a new generation. Where members are at one step, their
        checksums say whether they are alike.

        Args:
            step: Optimizer steps done here.
            asks: If this worker waits for the decision whether to go on: what it reported.

        Returns:
            Whether this worker's state changed; and, if any member waits for a decision, what
            it reported.
        """
        assert self._session is not None and self._session.member is not None
        member = self._session.member
        assignment, roster = member.assignment, member.roster
        assert assignment is not None and roster is not None, "a generation was formed"
        started = time.perf_counter()
        is_heir = member.name in roster.heirs
        captured = self._state.capture()
        mine = (step, digest(captured)) if is_heir else None
        gathered = self._world.gather_objects((mine, self._steps.last, asks))
        told, ended, asked = zip(*gathered, strict=True)
        most = max(one[0] for one in told if one is not None)
        counts = Counter(one[1] for one in told if one is not None and one[0] == most)
        if len(counts) > 1:
            what = (
                f"{len(counts)} different states of step {most} among the workers: something "
                "outside of run.prepare() changes one of them; the most common one is taken"
            )
            log.error("%s", what)
            self._warn(what)
        right = (most, counts.most_common(1)[0][0])
        source = told.index(right)
        lacks = mine != right
        if any(one != right for one in told):
            is_source = self._world.rank == source
            saved = send(self._world, captured if is_source else None, source=source)
            if lacks:
                whence = f"the state of step {most} of another worker"
                self._state.restore(saved, whence=whence)
                self._saved = (saved, whence)
        self._steps.stand_at(most)
        if lacks:
            self.saver.hurry_snapshot()
            theirs = ended[source]
            if theirs is not None and theirs.step == most > assignment.told_step:
                # Only members that did the step can tell of it, and rank 0 is none of them.
                self._steps.tell_for_others(theirs)
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
        self._steps.begin()
        return lacks, next((one for one in asked if one is not None), None)

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

    def _newest_checkpoint(self, *, newer_than: int) -> Stored | None:
        """The newest sound checkpoint if it is newer than the snapshots; all ranks call it."""
        checkpoints = self.saver.checkpoints
        if checkpoints is None:
            return None
        if self._state.is_sharded:
            return newest_pieces(
                checkpoints,
                self._world,
                layout_of(self._state.parts, self._state.capture()),
                on_rejected=self.saver.reject,
                on_found=self._note_age,
            )
        read = None
        if self._world.rank == 0:
            read = newest_stored(
                checkpoints,
                newer_than=newer_than,
                on_rejected=self.saver.reject,
                on_found=self._note_age,
                on_unreadable=self._warn,
            )
        found = (read.step, read.whence) if read is not None else None
        head = self._world.broadcast_object(found, source=0)
        if head is None:
            return None
        step, whence = head
        mine = read.captured if read is not None else None
        return Stored(step, whence, send(self._world, mine, source=0))

    def _note_age(self, manifest: Manifest) -> None:
        """The next checkpoint is due as if this worker group had been here all along."""
        self.saver.checkpoint_aged(max(0.0, time.time() - manifest.created_at_s))

    # -- keeping ---------------------------------------------------------------

    def wish(self) -> Wish:
        """What this worker wants done after the step under way; rank 0 speaks for all."""
        if self._session is None or self._world.rank != 0:
            return Wish()
        link = self._session.link
        stop = link.asks_to_stop() if link is not None else None
        deadline_s = link.notice_deadline_s() if link is not None else None
        noticed = deadline_s is not None and deadline_s != self._notice_kept_s
        if stop is not None:
            self._stop_why = stop.why
        return Wish(
            snapshot=float(self.saver.wants_snapshot()),
            notice=float(noticed),
            checkpoint=float(self.saver.wants_checkpoint(noticed=noticed)),
            stop=float(stop is not None),
            durable=float(stop is not None and stop.durable),
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
        step_s = self._steps.done(step, samples=self.samples, loss=loss)
        self.saver.collect()
        link = self._session.link
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
        self._steps.tell_if_due()
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
        self._steps.tell()
        return self.saver.final_checkpoint(step, epoch)

    def remove_snapshots(self) -> None:
        """Give the node's memory back; the job is done."""
        self.saver.remove_snapshots()
        self._steps.remove()

    # -- inside ----------------------------------------------------------------

    def _fulfil(self, step: int, epoch: int, wish: Wish) -> None:
        assert self._session is not None, "nobody wishes without a session"
        if wish.stop:
            self._steps.tell()
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
        self._steps.tell()
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
                self._warn(what)

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
                self._warn(what)
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

    def _flush(self) -> None:
        """Wait until the facts are in storage; training does not end for want of them."""
        assert self._session is not None, "nobody tells without a session"
        try:
            self._session.journal.flush()
        except JournalError as exc:
            log.warning("facts are not in the journal yet: %s", exc)

    def _warn(self, what: str) -> None:
        self._journal(Warned(at_s=time.time(), what=what))

    def _journal(self, event: Restored | ResizeAgreed | Warned) -> None:
        if self._session is not None:
            self._session.journal.append(event)
