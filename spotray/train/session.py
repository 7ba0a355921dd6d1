"""What a worker knows about the job around it; `Run` reads it, the trainer fills it in.

Outside of a trainer there is no session: `Run` is then a plain single-process run,
so that a training script can be tried without Ray.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from spotray.events import Event
from spotray.storage import Store
from spotray.train.config import SpotConfig
from spotray.train.world import World

if TYPE_CHECKING:
    from spotray.train.capture import Captured
    from spotray.train.member import Member


@dataclass(frozen=True)
class StopRequest:
    """The coordinator wants all workers to stand still after the next step."""

    why: str
    durable: bool  # no node will be left: the state must reach storage first


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a worker group is, and how long things take there (seconds)."""

    step: int
    epoch: int
    loss: float | None
    step_s: float = 0.0
    snapshot_s: float = 0.0
    checkpoint_s: float = 0.0  # 0: none was written yet
    useful_workers: int = 0  # more have no shard in any step; 0: not known
    no_snapshots: bool = False  # a state is safe only once it is in storage


class JobLink(Protocol):
    """The way from a worker to the job's coordinator and to Ray."""

    def notice_deadline_s(self) -> float | None:
        """Deadline of a notice for a node of this worker group, Unix seconds; None if none."""
        ...

    def asks_to_stop(self) -> StopRequest | None:
        """What the coordinator wants, as far as this worker heard. Never blocks."""
        ...

    def progress(self, progress: Progress) -> None:
        """Tell how far this worker group is. Never blocks."""
        ...

    def held(self, *, step: int, why: str) -> None:
        """Tell that all workers stand still after ``step``. Blocks until told."""
        ...

    def wait_for_end(self, timeout_s: float) -> None:
        """Stand still until this process is ended; back when released, or after the time."""
        ...

    def losses(self) -> tuple[int, float]:
        """Nodes lost so far, and seconds that workers have been up in all."""
        ...

    def report(self, metrics: Mapping[str, Any], checkpoint: str | None) -> None:
        """Hand metrics, and the path of a committed checkpoint, to Ray Train."""
        ...


class Journal(Protocol):
    """Where facts go: a `spotray.ledger.journal.JournalWriter`, or nowhere."""

    def append(self, event: Event) -> None: ...

    def flush(self) -> None: ...


class NoJournal:
    """Ranks other than 0 and runs outside of a job write no facts."""

    def append(self, event: Event) -> None:
        del event

    def flush(self) -> None:
        return


@dataclass(kw_only=True)
class Session:
    """One worker's view of its job."""

    run_id: str
    world: World
    spot: SpotConfig
    store: Store | None  # the job's folder in storage; None: no checkpoints
    shm_dir: Path | None  # this node's memory-backed folder; None: no snapshots
    node_id: str
    link: JobLink | None
    journal: Journal
    reached_step: int = 0  # how far the job had come, as far as its coordinator knows
    run: Any = None  # the `Run` that the training loop made
    asks: bool = False  # after reports, somebody decides whether to go on
    resume_from_checkpoint: str | None = None  # URL; where no state of this job was saved
    # With live recovery; None: a lost peer ends this process, and another takes over.
    member: Member | None = None
    warm_up_from: tuple[int, int] | None = None  # epoch and step where the others are, about
    handed_over: tuple[Captured, str] | None = None  # the state to go on from, and whence


class LiveUnsupported(BaseException):
    """Live recovery cannot serve this loop; carries why. The job falls back to restarts.

    Not an Exception: a training loop that catches those must not hide it.
    """


_current: Session | None = None


def current() -> Session | None:
    """The session of this worker, or None outside of a trainer."""
    return _current


def enter(session: Session | None) -> None:
    """Make ``session`` the one of this process; one worker runs one job."""
    global _current
    _current = session
