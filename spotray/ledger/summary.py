"""A run at a glance: where it stands, its nodes, its time and its money."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from spotray.events import (
    CheckpointCommitted,
    CheckpointRejected,
    Drained,
    Event,
    JobEnded,
    JobStarted,
    NodeDown,
    NodeReady,
    NodeUp,
    NoticeCancelled,
    NoticeReceived,
    PriceChanged,
    Reported,
    SnapshotTaken,
    StepsDone,
    TrainingDone,
    Warned,
    WorkerGroupStarted,
)
from spotray.ledger.cost import CostSummary, cost
from spotray.ledger.describe import describe
from spotray.ledger.goodput import Goodput, goodput
from spotray.ledger.history import groups
from spotray.ledger.recovery import RecoverySummary, summarize_recoveries
from spotray.ledger.rundir import RunEvents

_T = TypeVar("_T", bound=Event)


@dataclass(frozen=True, kw_only=True)
class NodeStatus:
    """One node, as it was last heard of."""

    node_id: str
    name: str = ""
    market: str = ""
    role: str = "worker"
    spot: bool = False
    usd_per_hour: float | None = None
    state: str = "up"  # up, ready, noticed, draining, preempted, failed, shut down
    since_s: float = 0.0  # of the state, Unix seconds
    has_worker: bool = False  # takes part in the current worker group


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """Everything that ``spotray status`` shows."""

    run_dir: str
    job: str = ""
    run_id: str = ""
    state: str = "no job"  # no job, running, finished, failed, interrupted
    why: str = ""  # of a job that failed
    started_at_s: float | None = None  # Unix seconds
    until_s: float = 0.0  # up to when this summary knows, Unix seconds
    step: int = 0  # of the current worker group
    epoch: int | None = None
    loss: float | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    world_size: int = 0
    min_workers: int = 0
    max_workers: int = 0
    generation: int = 0
    checkpoint_step: int | None = None  # the newest committed one
    snapshot_step: int | None = None
    last_event: str = ""
    nodes: tuple[NodeStatus, ...] = ()
    goodput: Goodput
    cost: CostSummary
    recovery: RecoverySummary
    warnings: tuple[str, ...] = ()  # what the job did without, what was damaged
    damaged_lines: int = 0  # of journals


def summarize(run: RunEvents, *, until_s: float | None = None) -> RunSummary:
    """Fold a run's facts into what is worth a look.

    Args:
        until_s: how far a job that runs has come, Unix seconds; default: its last event.
    """
    events = [event for event in run.events if until_s is None or event.at_s <= until_s]
    history = groups(events)
    current = history[-1] if history else None
    started = [event for event in events if isinstance(event, JobStarted)]
    losses = [e.loss for e in events if isinstance(e, StepsDone) and e.loss is not None]
    reported = _last(events, Reported)
    done = _last(events, TrainingDone)
    checkpoint, snapshot = _last(events, CheckpointCommitted), _last(events, SnapshotTaken)
    state, why = job_state(events)
    return RunSummary(
        run_dir=run.run_dir,
        job=started[-1].job if started else "",
        run_id=started[-1].run_id if started else "",
        state=state,
        why=why,
        started_at_s=started[0].at_s if started else None,
        until_s=until_s if until_s is not None else (events[-1].at_s if events else 0.0),
        step=next((g.reached_step for g in reversed(history) if g.steps or g.restored), 0),
        epoch=reported.epoch if reported else None,
        loss=losses[-1] if losses else None,
        metrics=done.metrics if done else (reported.metrics if reported else {}),
        world_size=current.world_size if current else 0,
        min_workers=started[-1].min_workers if started else 0,
        max_workers=started[-1].max_workers if started else 0,
        generation=current.generation if current else 0,
        checkpoint_step=checkpoint.step if checkpoint else None,
        snapshot_step=snapshot.step if snapshot else None,
        last_event=describe(events[-1]) if events else "",
        nodes=node_statuses(events),
        goodput=goodput(events, until_s=until_s),
        cost=cost(events, until_s=until_s),
        recovery=summarize_recoveries(events),
        warnings=(*run.missing, *warnings_in(events)),
        damaged_lines=run.damaged_lines,
    )


def node_statuses(events: Sequence[Event]) -> tuple[NodeStatus, ...]:
    """Each node that came up, by when it did, in its last known state."""
    nodes: dict[str, NodeStatus] = {}
    members: tuple[str, ...] = ()
    for event in sorted(events, key=lambda event: event.at_s):
        if isinstance(event, NodeUp):
            known = nodes.get(event.node_id, NodeStatus(node_id=event.node_id, since_s=event.at_s))
            nodes[event.node_id] = dataclasses.replace(
                known,
                name=event.name or known.name,
                market=event.market or known.market,
                role=event.role,
                spot=event.spot or known.spot,
                usd_per_hour=event.usd_per_hour
                if known.usd_per_hour is None
                else known.usd_per_hour,
            )
        elif isinstance(event, PriceChanged):
            for node in nodes.values():
                if node.market == event.market:
                    nodes[node.node_id] = dataclasses.replace(node, usd_per_hour=event.usd_per_hour)
        elif isinstance(event, WorkerGroupStarted):
            members = event.node_ids
        elif (
            (state := _node_state(event)) is not None
            and (known_node := nodes.get(getattr(event, "node_id", ""))) is not None
            and known_node.state not in _FINAL_STATES
        ):
            nodes[known_node.node_id] = dataclasses.replace(
                known_node, state=state, since_s=event.at_s
            )
    return tuple(
        dataclasses.replace(
            node, has_worker=node.node_id in members and node.state not in _FINAL_STATES
        )
        for node in nodes.values()
    )


_FINAL = {
    "preemption": "preempted",
    "maintenance": "maintained",
    "failure": "failed",
    "shutdown": "shut down",
}
_FINAL_STATES = frozenset(_FINAL.values())


def _node_state(event: Event) -> str | None:
    if isinstance(event, NodeDown):
        return _FINAL.get(event.cause, event.cause)
    if isinstance(event, NodeReady | NoticeCancelled):
        return "ready"
    if isinstance(event, NoticeReceived):
        return "noticed"
    return "draining" if isinstance(event, Drained) else None


def job_state(events: Sequence[Event]) -> tuple[str, str]:
    """A job's last known state, and why it is in it; events by time."""
    for event in reversed(events):
        if isinstance(event, JobEnded):
            return event.status, event.why
        if isinstance(event, JobStarted):
            return "running", ""
    return "no job", ""


def warnings_in(events: Iterable[Event]) -> list[str]:
    """What a job did without, and what was damaged; each once."""
    said = []
    for event in events:
        if isinstance(event, Warned):
            said.append(event.what)
        elif isinstance(event, CheckpointRejected):
            said.append(f"left out {event.path}: {event.why}")
    return list(dict.fromkeys(said))


def _last(events: Sequence[Event], kind: type[_T]) -> _T | None:
    return next((event for event in reversed(events) if isinstance(event, kind)), None)
