"""An event in a few words, for logs and live views."""

from __future__ import annotations

import dataclasses

from spotray.events import (
    BudgetReached,
    CapacityChanged,
    CheckpointCommitted,
    CheckpointRejected,
    ClusterWentDown,
    DeadlineNear,
    DiskDeleted,
    DiskMounted,
    Drained,
    EpochAudited,
    Event,
    FaultInjected,
    FellBack,
    InstanceEnded,
    InstanceVanished,
    JobEnded,
    JobStarted,
    LaunchTried,
    LaunchWaited,
    MemberFencedOut,
    MemberReady,
    NodeDown,
    NodeReady,
    NodeReplaced,
    NodeUp,
    NoticeCancelled,
    NoticeReceived,
    PriceChanged,
    RebalanceHint,
    ReplacementAsked,
    ReplacementGivenUp,
    Reported,
    ResizeAgreed,
    Restored,
    SnapshotTaken,
    SpotObserved,
    StepsDone,
    TrainingDone,
    TrialHeldBack,
    Unknown,
    Warned,
    WorkerGroupLost,
    WorkerGroupStarted,
    WorkersHeld,
)

_SHOWN_CHARS = 100
_KNOWN = ("epoch", "step", "loss")  # stand beside every report's own metrics


def describe(event: Event) -> str:
    """One line about an event, without its time.

    >>> describe(NodeDown(at_s=5.0, node_id="0123456789abcdef", cause="preemption"))
    'node 01234567 down: preemption, without notice'
    """
    text = " ".join(_words(event).split())
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 3] + "..."


def short(node_id: str) -> str:
    """Enough of a node id to tell it from others."""
    return node_id[:8]


def _words(event: Event) -> str:
    match event:
        case NodeUp():
            return f"node {event.name or short(event.node_id)} up in {event.market or '?'}"
        case NodeDown():
            heard = "after" if event.noticed else "without"
            loss = f", {heard} notice" if event.cause == "preemption" else ""
            return f"node {short(event.node_id)} down: {event.cause}{loss}"
        case NoticeReceived():
            left = "no deadline"
            if event.deadline_s is not None:
                left = f"{event.deadline_s - event.at_s:.0f} s left"
            return f"notice for node {short(event.node_id)}: {event.cause}, {left}"
        case NoticeCancelled():
            return f"the notice for node {short(event.node_id)} was taken back"
        case RebalanceHint():
            return f"node {short(event.node_id)} is at a higher risk"
        case FaultInjected():
            return f"the lab injects: {event.fault} {event.detail or short(event.node_id)}"
        case CapacityChanged():
            return f"{event.market} holds {event.capacity} nodes"
        case PriceChanged():
            return f"{event.market} costs ${event.usd_per_hour} per hour"
        case NodeReady():
            return f"node {short(event.node_id)} joined Ray"
        case EpochAudited():
            once = "exactly once" if event.exactly_once else f"{event.fewest} to {event.most} times"
            return f"epoch {event.epoch}: each of {event.samples} samples used {once}"
        case Reported():
            told = ", ".join(f"{k} {v}" for k, v in event.metrics.items() if k not in _KNOWN)
            return f"epoch {event.epoch}, step {event.step}: {told}"
        case Drained():
            return f"node {short(event.node_id)} drains"
        case LaunchTried():
            got = f"refused ({event.refused} {event.code})" if event.refused else "launched"
            count = f"{len(event.names)} of {event.wanted}"
            return f"{count} {event.node_type} {got} in {event.market}: {event.why}"
        case LaunchWaited():
            left_s = event.until_s - event.at_s
            return f"no {event.node_type} for {left_s:.0f} s: {event.why}"
        case InstanceVanished():
            how = "was taken" if event.preempted else "ended"
            return f"{event.name} in {event.market} {how} after {event.lived_s:.0f} s"
        case SpotObserved():
            odds = f"refused ({event.refused})" if event.refused else f"{100 * event.likely:.0f} %"
            return f"{event.nodes} spot nodes in {event.zone}: {odds}"
        case DiskMounted():
            found = "as another node left it" if event.warm else "empty"
            return f"{event.name} has disk {event.disk} ({event.size_gib} GiB), {found}"
        case DiskDeleted():
            return f"disk {event.disk} in {event.zone} deleted: {event.why}"
        case ReplacementAsked():
            return f"one more {event.node_type} is asked for: {event.why}"
        case ReplacementGivenUp():
            return f"{event.name} stays: {event.why}"
        case NodeReplaced():
            return f"{event.name} was replaced in {event.seconds:.0f} s"
        case InstanceEnded():
            return f"{event.name} is ended: {event.failed or event.why}"
        case WorkersHeld():
            left_s = event.until_s - event.at_s
            return f"{event.workers} workers are asked for, for {left_s:.0f} s: {event.why}"
        case DeadlineNear():
            return event.why
        case BudgetReached():
            how = f"goes on ({event.failed})" if event.failed else "is stopped"
            spent = f"${event.spent_usd:.2f} of ${event.max_cost_usd:.2f} are spent"
            return f"job {event.job} {how}: {spent}"
        case ClusterWentDown():
            what = "all nodes" if event.head else f"{len(event.names)} workers"
            return f"{what} go down: {event.why}"
        case JobStarted():
            return f"job {event.job} started"
        case JobEnded():
            return f"job {event.job} {event.status}{': ' if event.why else ''}{event.why}"
        case TrainingDone():
            return f"training done after {event.step} steps"
        case WorkerGroupStarted():
            how = ", live" if event.live else ""
            return f"{event.world_size} workers met (generation {event.generation}{how})"
        case WorkerGroupLost():
            return f"worker group {event.generation} lost: {event.cause} {event.why}"
        case MemberReady():
            node = short(event.node_id)
            return f"a worker on node {node} is ready to join after {event.seconds:.1f} s"
        case MemberFencedOut():
            node = short(event.node_id)
            return f"generation {event.generation} goes on without node {node}: {event.why}"
        case FellBack():
            return f"generation {event.generation} fell back ({event.to}): {event.why}"
        case ResizeAgreed():
            return f"resize after step {event.step}: {event.why}"
        case Restored():
            return f"restored step {event.step} from {event.source} in {event.seconds:.1f} s"
        case StepsDone():
            loss = "" if event.loss is None else f", loss {event.loss:.4g}"
            return f"step {event.last_step} done{loss}"
        case SnapshotTaken():
            return f"snapshot of step {event.step} ({event.why})"
        case CheckpointCommitted():
            return f"checkpoint of step {event.step} committed in {event.seconds:.1f} s"
        case CheckpointRejected():
            return f"left out {event.path}: {event.why}"
        case TrialHeldBack():
            return f"trial {event.trial} does not begin: {event.why}"
        case Warned():
            return event.what
        case Unknown():
            return f"{event.kind} {dict(event.fields)}"
    fields = {
        field.name: getattr(event, field.name)
        for field in dataclasses.fields(event)
        if field.name != "at_s"
    }
    words = ", ".join(
        f"{name} {value}" for name, value in fields.items() if value not in ("", None)
    )
    return f"{type(event).__name__} {words}"
