"""The facts about steps: which were done, how long they took, how far this node came."""

from __future__ import annotations

import contextlib
import mmap
import struct
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from spotray.events import StepsDone
from spotray.train.session import Session
from spotray.train.world import World

_TELL_EVERY_S = 1.0  # steps are told in groups of about this time
_KEPT_STEPS = 256  # that a survivor can tell in place of a lost rank 0


@dataclass(frozen=True)
class StepRecord:
    """One step that was done."""

    generation: int
    step: int
    samples: int
    began_at_s: float
    ended_at_s: float
    world_size: int
    loss: float | None

    def told(self) -> StepsDone:
        """The step as a fact."""
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


class StepLog:
    """The steps that this worker did, told to the journal in groups.

    A live worker also remembers the last ones: rank 0 may be lost before it told them.

    Args:
        session: The job around this worker; None outside of a trainer, where
            nobody is told.
        world: The workers.
        now_s: Training time, for the groups and for how long a step takes.
    """

    def __init__(
        self,
        session: Session | None,
        world: World,
        *,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._world = world
        self._now_s = now_s
        self._progress = self._open_progress()
        self._remembers = session is not None and session.member is not None
        self._recent: deque[StepRecord] = deque(maxlen=_KEPT_STEPS)
        self._untold = _Group()
        self._began_at_s = time.time()  # of the first step that is not told
        self._told_any = False  # among the present workers
        self._told_at = self._step_at = now_s()

    # -- how far ---------------------------------------------------------------

    @property
    def reached(self) -> int:
        """The last step that this or an earlier process did on this node; 0 at first."""
        return self._progress.read() if self._progress is not None else 0

    @property
    def last(self) -> StepRecord | None:
        """The last step that this worker remembers."""
        return self._recent[-1] if self._recent else None

    def stand_at(self, step: int) -> None:
        """The state here is now the one after ``step``."""
        if self._progress is not None:
            self._progress.write(step)

    def begin(self) -> None:
        """The workers' state is ready: the next step's time begins."""
        self._began_at_s = time.time()
        self._step_at = self._now_s()

    def done(self, step: int, *, samples: int, loss: float | None) -> float:
        """Note a step that was done just now; the seconds that it took.

        Args:
            step: Its number.
            samples: Of all workers.
            loss: Mean over the global batch.
        """
        self.stand_at(step)
        ended_at_s = time.time()
        if self._remembers:
            began_at_s = self._began_at_s
            if self.last is not None:
                began_at_s = max(began_at_s, self.last.ended_at_s)
            world = self._world
            self._recent.append(
                StepRecord(
                    world.generation, step, samples, began_at_s, ended_at_s, world.size, loss
                )
            )
        group = self._untold
        group.first = group.first or step
        group.last, group.loss = step, loss
        group.samples += samples
        group.ended_at_s.append(ended_at_s)
        now = self._now_s()
        step_s, self._step_at = now - self._step_at, now
        return step_s

    # -- telling ---------------------------------------------------------------

    def tell_if_due(self) -> None:
        """Tell the steps so far, in groups of about a second."""
        # The first step of a worker group ends a recovery: it is told at once.
        if not self._told_any or self._now_s() - self._told_at >= _TELL_EVERY_S:
            self.tell()

    def tell(self) -> None:
        """Tell the steps since the last time."""
        group, self._untold = self._untold, _Group()
        self._told_at = self._now_s()
        self._told_any = True
        if not group.ended_at_s:
            return
        began_at_s, self._began_at_s = self._began_at_s, group.ended_at_s[-1]
        self._journal(
            StepsDone(
                at_s=group.ended_at_s[-1],
                generation=self._world.generation,
                first_step=group.first,
                last_step=group.last,
                seconds=group.ended_at_s[-1] - began_at_s,
                samples=group.samples,
                world_size=self._world.size,
                loss=group.loss,
                ended_at_s=tuple(group.ended_at_s),
            )
        )

    def tell_for_others(self, record: StepRecord) -> None:
        """Tell a step that only other workers did; this one was behind."""
        self._recent.append(record)
        self._journal(record.told())

    def enter(self, world: World, *, told_step: int | None = None) -> None:
        """Go on among other workers; what was done among the old ones is told before.

        Args:
            world: The workers.
            told_step: The last step that the job's journal holds; None if nobody knows.
        """
        is_new_teller = world.rank == 0 and self._world.rank != 0
        self._world = world
        self._progress = self._open_progress()
        self._told_any = False
        if is_new_teller and told_step is not None:
            # The one who told the steps is gone, perhaps before it told the last ones.
            self._untold = _Group()
            for one in self._recent:
                if one.step > told_step:
                    self._journal(one.told())

    def remove(self) -> None:
        """Leave no trace on the node; the job is done."""
        if self._progress is not None:
            self._progress.remove()
            with contextlib.suppress(OSError):  # not empty while another job is on this node
                self._progress.path.parent.rmdir()

    # -- inside ----------------------------------------------------------------

    def _open_progress(self) -> _ProgressFile | None:
        session = self._session
        if session is None or session.shm_dir is None:
            return None
        name = f"progress-{session.run_id}-{self._world.local_rank}"
        return _ProgressFile(session.shm_dir / name)

    def _journal(self, event: StepsDone) -> None:
        if self._session is not None:
            self._session.journal.append(event)


@dataclass
class _Group:
    """Steps that are done and not yet told."""

    first: int = 0
    last: int = 0
    samples: int = 0
    loss: float | None = None
    ended_at_s: list[float] = field(default_factory=list)


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
