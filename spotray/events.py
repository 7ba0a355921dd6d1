"""What happened: one frozen record per fact, and its form as one line of JSON.

Cost, goodput, savings and every report are folds over these records, so a field
belongs here only if somebody saw it happen. All times are Unix seconds of the
machine that saw the fact; durations end in ``_s``.

A reader meets journals of newer versions: an unknown field is ignored, an unknown
event is kept as `Unknown`.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spotray.errors import JournalError


@dataclass(frozen=True, kw_only=True)
class Event:
    """Base of all facts. ``at_s``: when it happened, Unix seconds."""

    at_s: float


# -- nodes -------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class NodeUp(Event):
    """A node began to run, and its billing with it."""

    node_id: str  # Ray's node id, hex
    name: str = ""  # instance id or the lab's name
    node_type: str = ""  # its entry in the cluster's YAML
    role: str = "worker"  # "head" or "worker"
    market: str = ""  # "aws/us-east-1a/g5.xlarge/spot"; empty if nobody knows
    spot: bool = False
    usd_per_hour: float | None = None  # price at the start; None if unknown
    on_demand_usd_per_hour: float | None = None  # the same type, on demand
    price_from: str = ""  # where prices that nobody was billed were read; empty: from the market


@dataclass(frozen=True, kw_only=True)
class NodeReady(Event):
    """A node joined Ray and can take a worker."""

    node_id: str


@dataclass(frozen=True, kw_only=True)
class NodeDown(Event):
    """A node stopped running. ``cause``: preemption, maintenance, failure or shutdown."""

    node_id: str
    cause: str
    noticed: bool = False  # whether a notice was heard before


@dataclass(frozen=True, kw_only=True)
class PriceChanged(Event):
    """A market's price changed for the nodes that run in it."""

    market: str
    usd_per_hour: float


@dataclass(frozen=True, kw_only=True)
class CapacityChanged(Event):
    """How many nodes a market would hold, as far as it is known (lab, traces)."""

    market: str
    capacity: int


@dataclass(frozen=True, kw_only=True)
class NoticeReceived(Event):
    """The cloud announced that it will take a node. ``cause``: preemption or maintenance."""

    node_id: str
    deadline_s: float | None  # Unix seconds; None if the cloud named none
    cause: str = "preemption"
    source: str = ""  # "aws/instance-action"


@dataclass(frozen=True, kw_only=True)
class NoticeCancelled(Event):
    """The cloud took a notice back."""

    node_id: str


@dataclass(frozen=True, kw_only=True)
class RebalanceHint(Event):
    """The cloud says that the risk is higher now; it names no deadline."""

    node_id: str


@dataclass(frozen=True, kw_only=True)
class Drained(Event):
    """Ray was asked to drain a node, and agreed."""

    node_id: str
    deadline_s: float
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class DrainRefused(Event):
    """Ray was asked to drain a node, and did not agree."""

    node_id: str
    why: str


@dataclass(frozen=True, kw_only=True)
class FaultInjected(Event):
    """The lab did something bad on purpose, at ``at_s``, as it really happened."""

    fault: str  # "notice", "kill", "freeze", "thaw", "cancel", "capacity", ...
    node_id: str = ""
    detail: str = ""


# -- launches ----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LaunchTried(Event):
    """The cloud was asked once for nodes in one market.

    ``refused``: empty if it gave any; else capacity, quota, not-offered, not-permitted,
    throttled, config or unknown, with the cloud's own word in ``code``.
    """

    market: str
    node_type: str  # its entry in the cluster's YAML
    wanted: int
    names: tuple[str, ...] = ()  # instance ids of what was launched
    refused: str = ""
    code: str = ""
    why: str = ""  # this market was chosen
    seconds: float = 0.0  # that the call took


@dataclass(frozen=True, kw_only=True)
class LaunchWaited(Event):
    """No market was worth asking; said once until the reason changes."""

    node_type: str
    wanted: int
    until_s: float  # look again then, Unix seconds
    why: str


@dataclass(frozen=True, kw_only=True)
class InstanceVanished(Event):
    """A worker's machine left the cloud's list, and nobody here had ended it."""

    name: str  # instance id; Ray's node id is not known there
    market: str
    preempted: bool  # the cloud took it, as far as can be told
    lived_s: float
    why: str = ""  # the cloud's words


@dataclass(frozen=True, kw_only=True)
class DiskMounted(Event):
    """A worker got its data disk, and can use it."""

    name: str  # instance id
    disk: str
    zone: str
    size_gib: int
    warm: bool  # with what an earlier node left on it
    seconds: float = 0.0  # from the first look for a disk until then
    usd_per_month: float | None = None  # at list price; None if unknown
    why: str = ""  # this one, and which others wait in vain


@dataclass(frozen=True, kw_only=True)
class DiskDeleted(Event):
    """A data disk that no node had was deleted."""

    disk: str
    zone: str
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class SpotObserved(Event):
    """A cloud was asked how spot stands in a zone; nothing was launched for it."""

    cloud: str
    region: str
    zone: str
    instance_types: tuple[str, ...]  # any of them will do
    nodes: int
    every_s: float  # from one look to the next, seconds
    likely: float  # to get so many, 0..1, as the cloud guesses
    preempted_frac: float | None = None  # of spot nodes that stopped lately; None: not told
    usd_per_hour: float | None = None  # of the cheapest of the types on spot; None: not told
    refused: str = ""  # what a launch would be refused for: capacity, quota or not-offered


# -- the controller on the head ----------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ReplacementAsked(Event):
    """One more worker was asked for, to take the place of ``node_id``."""

    node_id: str  # Ray's node id of the old one, hex
    name: str  # its instance id
    node_type: str
    until_s: float  # given up then, Unix seconds
    spot_only: bool  # nobody launches on-demand meanwhile
    why: str


@dataclass(frozen=True, kw_only=True)
class ReplacementGivenUp(Event):
    """No worker is asked for any more, and the old one stays."""

    node_id: str
    name: str
    node_type: str
    why: str


@dataclass(frozen=True, kw_only=True)
class NodeReplaced(Event):
    """The old worker is gone, and a new one has its place."""

    node_id: str  # of the old one
    name: str
    node_type: str
    seconds: float  # since the new one was asked for


@dataclass(frozen=True, kw_only=True)
class InstanceEnded(Event):
    """The cloud was asked to end an instance. ``failed``: its words if it did not."""

    name: str
    why: str
    failed: str = ""


@dataclass(frozen=True, kw_only=True)
class WorkersHeld(Event):
    """So many workers are asked for, for some were taken."""

    workers: int
    until_s: float
    why: str


@dataclass(frozen=True, kw_only=True)
class DeadlineNear(Event):
    """On-demand is asked before spot until then, for a job's deadline; a time over: no more."""

    until_s: float
    why: str


@dataclass(frozen=True, kw_only=True)
class BudgetReached(Event):
    """A job's cluster has cost what the job allows. ``failed``: why it was not stopped."""

    job: str
    spent_usd: float  # at the prices that are known, since the job began
    max_cost_usd: float
    failed: str = ""


@dataclass(frozen=True, kw_only=True)
class ClusterWentDown(Event):
    """A cluster that nobody used was taken down. ``head``: with its head."""

    names: tuple[str, ...]  # instance ids
    head: bool
    why: str


# -- jobs --------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class JobStarted(Event):
    """A driver called ``fit()``; a job that is resumed has several of these."""

    job: str
    run_id: str
    global_batch_size: int | None = None  # samples per step; None until a worker said so
    min_workers: int = 1
    max_workers: int = 1
    cluster_journal: str = ""  # where the facts about the nodes are
    labels: Mapping[str, str] = field(default_factory=dict)  # the user's own


@dataclass(frozen=True, kw_only=True)
class JobEnded(Event):
    """``fit()`` came back, or a sweep's trial ended.

    ``status``: finished, failed or interrupted; of a trial also stopped (its scheduler's
    decision) or paused (it goes on later).
    """

    job: str
    status: str
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class TrainingDone(Event):
    """The training loop ran to its end."""

    step: int  # optimizer steps in all
    weights_sha256: str = ""
    metrics: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class WorkerGroupStarted(Event):
    """Workers met and formed a world. ``node_ids`` in the order of ranks.

    Where workers were started for it, the marks tell how far the last of them was
    at a time, Unix seconds; None if nobody told.
    """

    generation: int
    world_size: int
    node_ids: tuple[str, ...] = ()
    live: bool = False  # the members kept their processes
    placed_at_s: float | None = None  # had its node
    process_at_s: float | None = None  # its process began
    imported_at_s: float | None = None  # entered the training function


@dataclass(frozen=True, kw_only=True)
class WorkerGroupLost(Event):
    """A worker group was given up, or lost a member. ``cause``: preemption, loss or failure.

    ``at_s``: when somebody first knew.
    """

    generation: int
    cause: str
    why: str = ""
    lost_node_ids: tuple[str, ...] = ()  # as far as they are known


@dataclass(frozen=True, kw_only=True)
class MemberReady(Event):
    """A newcomer has imported, loaded and warmed up, and waits to be let in."""

    node_id: str
    seconds: float  # since its process began


@dataclass(frozen=True, kw_only=True)
class MemberFencedOut(Event):
    """A worker was thrown out of its generation, though it may be alive."""

    generation: int
    node_id: str
    why: str


@dataclass(frozen=True, kw_only=True)
class FellBack(Event):
    """Live recovery cannot go on at once.

    ``to``: restart (Ray Train's worker groups), snapshot (nobody is left; the newest saved
    state), or waiting (too few are left, with their state).
    """

    generation: int
    why: str
    to: str


@dataclass(frozen=True, kw_only=True)
class ResizeAgreed(Event):
    """All ranks stopped at one step so that the worker group can be formed anew."""

    generation: int
    step: int
    why: str


@dataclass(frozen=True, kw_only=True)
class Restored(Event):
    """A worker group got its state.

    ``source``: fresh, snapshot, checkpoint, or other job, from whose checkpoint this one
    begins; of a live group peers (from the member that was furthest) or kept (every
    member had it already).
    """

    generation: int
    step: int  # optimizer steps in the restored state
    source: str
    seconds: float = 0.0
    reached_step: int | None = None  # the furthest that any survivor had come
    connected_at_s: float | None = None  # the process group was up, Unix seconds


@dataclass(frozen=True, kw_only=True)
class StepsDone(Event):
    """Steps ``first_step`` to ``last_step`` (both included, from 1) were done."""

    generation: int
    first_step: int
    last_step: int
    seconds: float  # wall time over these steps
    samples: int
    world_size: int
    loss: float | None = None  # mean over the last step's global batch
    ended_at_s: tuple[float, ...] = ()  # Unix seconds, one per step


@dataclass(frozen=True, kw_only=True)
class Reported(Event):
    """The user's own metrics, as given to ``run.report``."""

    step: int
    epoch: int
    metrics: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class EpochAudited(Event):
    """The uses of every sample in one epoch were counted (``SpotConfig.audit_samples``)."""

    epoch: int
    samples: int  # in the dataset
    exactly_once: bool  # every sample that the epoch should use was used once, in steps that count
    most: int = 1  # most uses of one sample
    fewest: int = 1


@dataclass(frozen=True, kw_only=True)
class SnapshotTaken(Event):
    """Host memory of every node holds the state after ``step``."""

    generation: int
    step: int
    seconds: float  # time that training stood still
    size_bytes: int
    why: str = "interval"  # interval, notice, resize


@dataclass(frozen=True, kw_only=True)
class CheckpointCommitted(Event):
    """Storage holds the state after ``step``, complete and with checksums."""

    step: int
    path: str
    seconds: float  # from its start to its commit
    blocked_s: float  # time that training stood still
    size_bytes: int
    why: str = "interval"  # interval, end


@dataclass(frozen=True, kw_only=True)
class CheckpointRejected(Event):
    """A checkpoint or snapshot was found damaged or incomplete and left out."""

    path: str
    why: str


@dataclass(frozen=True, kw_only=True)
class TrialHeldBack(Event):
    """A trial of a sweep never began, since the budget did not allow it."""

    trial: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Warned(Event):
    """Something was missing or done without; said once."""

    what: str


@dataclass(frozen=True, kw_only=True)
class Unknown(Event):
    """An event of a newer version, kept as it was."""

    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)


_KINDS: dict[str, type[Event]] = {
    cls.__name__: cls for cls in Event.__subclasses__() if cls is not Unknown
}
_HINTS: dict[type[Event], dict[str, Any]] = {}  # resolved once per kind


def encode(event: Event) -> str:
    """One line of JSON, without the line's end.

    >>> encode(NodeDown(at_s=5.0, node_id="n1", cause="failure"))
    '{"kind": "NodeDown", "at_s": 5.0, "node_id": "n1", "cause": "failure", "noticed": false}'
    """
    if isinstance(event, Unknown):
        return json.dumps({"kind": event.kind, "at_s": event.at_s, **event.fields})
    fields = {f.name: getattr(event, f.name) for f in dataclasses.fields(event)}
    return json.dumps({"kind": type(event).__name__, **fields})


def decode(line: str) -> Event:
    """The event of one line of JSON.

    Raises:
        JournalError: the line is no event: not JSON, no time, or a field that
            the event needs is missing or of another type.
    """
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise JournalError(f"not an event: {line[:80]!r}: {str(exc)[:80]}") from exc
    if not isinstance(raw, dict) or not isinstance(raw.get("kind"), str):
        raise JournalError(f"not an event (no kind): {line[:80]!r}")
    kind = raw.pop("kind")
    at_s = raw.get("at_s")
    if isinstance(at_s, bool) or not isinstance(at_s, int | float) or not _is_finite(at_s):
        raise JournalError(f"not an event (no time): {line[:80]!r}")
    cls = _KINDS.get(kind)
    if cls is None:
        raw.pop("at_s")
        return Unknown(at_s=float(at_s), kind=kind, fields=raw)
    known = {f.name: f for f in dataclasses.fields(cls)}
    values = {name: value for name, value in raw.items() if name in known}
    hints = _HINTS.get(cls) or _HINTS.setdefault(cls, typing.get_type_hints(cls))
    for name, value in values.items():
        values[name] = _checked(kind, name, value, hints[name])
    try:
        return cls(**values)
    except TypeError as exc:
        raise JournalError(f"not a {kind}: {exc}: {line[:80]!r}") from exc


def _checked(kind: str, name: str, value: Any, hint: Any) -> Any:
    """``value`` in its declared type: JSON knows no tuples, and writes 1.0 as it likes."""
    origin = typing.get_origin(hint)
    if origin is tuple and isinstance(value, list):
        item = typing.get_args(hint)[0]
        return tuple(_checked(kind, name, one, item) for one in value)
    if origin is Mapping and isinstance(value, dict):
        return value
    options = typing.get_args(hint) if origin is types.UnionType else (hint,)
    if isinstance(value, bool) or value is None or isinstance(value, str):
        if type(value) in options:
            return value
    elif type(value) in options:
        return value
    elif isinstance(value, int) and float in options and _is_finite(value):
        return float(value)
    raise JournalError(f"not a {kind}: {name} is {str(value)[:80]!r}")


def _is_finite(number: float) -> bool:
    """Whether a float can hold it: JSON's integers have no largest one."""
    return abs(number) <= sys.float_info.max
