"""The worker groups of a job and the steps that each of them did, put together from facts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from spotray.events import (
    Event,
    JobStarted,
    ResizeAgreed,
    Restored,
    StepsDone,
    WorkerGroupLost,
    WorkerGroupStarted,
)

_GroupFact = WorkerGroupStarted | WorkerGroupLost | Restored | ResizeAgreed | StepsDone


@dataclass(kw_only=True)
class StepRun:
    """One execution of one step. ``survives``: no later restore went back behind it."""

    step: int
    start_s: float  # Unix seconds
    end_s: float
    survives: bool = True


@dataclass(kw_only=True)
class Group:
    """One worker group and what is known about it."""

    life: int  # how many `JobStarted` came before it
    generation: int
    started_s: float  # Unix seconds
    world_size: int = 0
    node_ids: tuple[str, ...] = ()
    started: WorkerGroupStarted | None = None
    restored: Restored | None = None
    agreed: ResizeAgreed | None = None  # how it ended, if all ranks agreed to
    lost: WorkerGroupLost | None = None  # how it ended, as the first knew who gave it up
    steps: list[StepRun] = field(default_factory=list)  # by end

    @property
    def live(self) -> bool:
        """Whether its members kept the processes that they had in the group before."""
        if self.started is not None:
            return self.started.live
        return self.restored is not None and self.restored.source in ("peers", "kept")

    @property
    def reached_step(self) -> int:
        """How far this group came, as far as the journal knows."""
        steps = [run.step for run in self.steps]
        if self.agreed is not None:
            steps.append(self.agreed.step)
        if self.restored is not None:
            steps.append(self.restored.step)
        return max(steps, default=0)

    @property
    def restored_step(self) -> int | None:
        """Optimizer steps in the state that it began with; None if nothing tells."""
        if self.restored is not None:
            return self.restored.step
        return self.steps[0].step - 1 if self.steps else None

    @property
    def last_step_s(self) -> float | None:
        """When its last step ended; None if it did none."""
        return self.steps[-1].end_s if self.steps else None


def groups(events: Iterable[Event]) -> list[Group]:
    """The worker groups of a job, in the order in which they met.

    Generations are counted anew when a driver starts again, so a fact belongs to the
    group of its generation since the last `JobStarted`. A group whose start was not
    seen is made up from its other facts.
    """
    facts = sorted(
        (event for event in events if isinstance(event, _GroupFact | JobStarted)),
        key=lambda event: (event.at_s, type(event).__name__),
    )
    by_key: dict[tuple[int, int], Group] = {}
    batches: dict[tuple[int, int], list[StepsDone]] = {}
    life = 0
    for event in facts:
        if isinstance(event, JobStarted):
            life += 1
            continue
        key = (life, event.generation)
        group = by_key.setdefault(
            key, Group(life=life, generation=event.generation, started_s=_first_sign_s(event))
        )
        if isinstance(event, WorkerGroupStarted):
            group.started = event
            group.started_s = event.at_s
            group.world_size = event.world_size
            group.node_ids = event.node_ids
        elif isinstance(event, WorkerGroupLost):
            group.lost = _first_known(group.lost, event)
        elif isinstance(event, Restored):
            group.restored = event
        elif isinstance(event, ResizeAgreed):
            group.agreed = event
        else:
            group.world_size = group.world_size or event.world_size
            batches.setdefault(key, []).append(event)
    for key, done in batches.items():
        by_key[key].steps = _step_runs(done)
    # By generation, not by time: a late line of an old group must not look like a new one.
    ordered = [by_key[key] for key in sorted(by_key)]
    _mark_survivors(ordered)
    return ordered


def _first_known(known: WorkerGroupLost | None, later: WorkerGroupLost) -> WorkerGroupLost:
    """A loss that several tell of counts from the first; who was lost may be known later."""
    if known is None:
        return later
    return replace(known, lost_node_ids=known.lost_node_ids or later.lost_node_ids)


def _first_sign_s(event: Event) -> float:
    return event.at_s - event.seconds if isinstance(event, StepsDone) else event.at_s


def _step_runs(batches: Iterable[StepsDone]) -> list[StepRun]:
    """Each step from the end of the one before; the first takes the mean of its batch."""
    ended: dict[int, tuple[float, float]] = {}  # step -> (end, mean duration in its batch)
    for batch in batches:
        count = batch.last_step - batch.first_step + 1
        if count < 1:
            continue
        mean_s = batch.seconds / count
        ends = batch.ended_at_s
        if len(ends) != count:
            ends = tuple(batch.at_s - mean_s * (count - 1 - i) for i in range(count))
        for step, end_s in enumerate(ends, start=batch.first_step):
            ended.setdefault(step, (end_s, mean_s))
    runs: list[StepRun] = []
    for step, (end_s, mean_s) in sorted(ended.items(), key=lambda item: (item[1][0], item[0])):
        start_s = runs[-1].end_s if runs else end_s - mean_s
        runs.append(StepRun(step=step, start_s=start_s, end_s=end_s))
    return runs


def _mark_survivors(ordered: Iterable[Group]) -> None:
    standing: dict[int, StepRun] = {}
    for group in ordered:
        restored = group.restored_step
        if restored is not None:
            for step in [step for step in standing if step > restored]:
                standing.pop(step).survives = False
        for run in group.steps:
            if (earlier := standing.get(run.step)) is not None:
                earlier.survives = False
            standing[run.step] = run
