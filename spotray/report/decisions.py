"""What was decided in a run, each with its reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from spotray.events import (
    BudgetReached,
    CheckpointCommitted,
    ClusterWentDown,
    DeadlineNear,
    Drained,
    DrainRefused,
    Event,
    FellBack,
    InstanceEnded,
    LaunchTried,
    LaunchWaited,
    MemberFencedOut,
    NodeReplaced,
    NodeUp,
    ReplacementAsked,
    ReplacementGivenUp,
    ResizeAgreed,
    SnapshotTaken,
    TrialHeldBack,
    WorkersHeld,
)
from spotray.ledger.describe import short
from spotray.report.tables import duration, usd


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One choice. ``about``: the part that made it: nodes, job, saving, cluster."""

    at_s: float  # Unix seconds
    about: str
    what: str
    why: str


def decisions(events: Iterable[Event]) -> list[Decision]:
    """All that a run's facts tell of, by time; what is done at every interval is left out."""
    told = sorted(events, key=lambda event: event.at_s)
    names = {e.node_id: e.name for e in told if isinstance(e, NodeUp) and e.name}
    return [
        Decision(at_s=event.at_s, about=about, what=what, why=why)
        for event in told
        for about, what, why in _of(event, names)
    ]


def _of(event: Event, names: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """About, what, why; nothing if the event is no decision."""
    match event:
        case LaunchTried():
            if event.refused:
                end = f"refused, {event.refused}" + (f" ({event.code})" if event.code else "")
            else:
                end = f"launched {', '.join(event.names)}"
            what = f"ask {event.market} for {event.wanted} {event.node_type}: {end}"
            yield "nodes", what, event.why
        case LaunchWaited():
            wait_s = duration(max(0.0, event.until_s - event.at_s))
            yield "nodes", f"wait {wait_s} with {event.wanted} {event.node_type}", event.why
        case ReplacementAsked():
            kind = ", spot only" if event.spot_only else ""
            yield "nodes", f"ask for a node in the place of {event.name}{kind}", event.why
        case ReplacementGivenUp():
            yield "nodes", f"keep {event.name}", event.why
        case NodeReplaced():
            yield "nodes", f"{event.name} has been replaced in {duration(event.seconds)}", ""
        case Drained():
            yield "nodes", f"drain {_name(event.node_id, names)}", event.why
        case DrainRefused():
            yield "nodes", f"Ray does not drain {_name(event.node_id, names)}", event.why
        case InstanceEnded():
            failed = f", which failed: {event.failed}" if event.failed else ""
            yield "nodes", f"end {event.name}{failed}", event.why
        case ResizeAgreed():
            yield "job", f"meet anew after step {event.step}", event.why
        case FellBack():
            yield "job", f"generation {event.generation} falls back to {event.to}", event.why
        case MemberFencedOut():
            yield "job", f"go on without the worker on {_name(event.node_id, names)}", event.why
        case TrialHeldBack():
            yield "job", f"do not begin trial {event.trial}", event.why
        case SnapshotTaken() if event.why != "interval":
            yield "saving", f"snapshot of step {event.step}", event.why
        case CheckpointCommitted() if event.why != "interval":
            yield "saving", f"checkpoint of step {event.step}", event.why
        case WorkersHeld():
            yield "cluster", f"hold {event.workers} workers", event.why
        case DeadlineNear():
            yield "cluster", "ask for on-demand before spot", event.why
        case BudgetReached():
            limit = f"{usd(event.spent_usd)} of {usd(event.max_cost_usd)} spent"
            yield "cluster", f"stop {event.job}", event.failed or limit
        case ClusterWentDown():
            head = ", with its head" if event.head else ""
            yield "cluster", f"take {len(event.names)} nodes down{head}", event.why


def _name(node_id: str, names: Mapping[str, str]) -> str:
    return names.get(node_id, short(node_id))
