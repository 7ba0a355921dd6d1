"""What the controller may do; each with its reason in one line, for the journal and the log."""

from __future__ import annotations

from dataclasses import dataclass

from spotray.controller.view import State


@dataclass(frozen=True, kw_only=True)
class Ask:
    """Ask for one more worker of a pool. ``spot_only``: nobody launches on-demand meanwhile."""

    pool: str
    until_s: float
    spot_only: bool
    why: str


@dataclass(frozen=True, kw_only=True)
class AllowOnDemand:
    """The market has answered: others may have on-demand nodes again."""

    pool: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Withdraw:
    """Ask for no more workers than the applications do."""

    pool: str
    why: str
    in_vain: bool  # no node came of it


@dataclass(frozen=True, kw_only=True)
class Leave:
    """Tell a node to be gone by ``deadline_s``."""

    node_id: str
    name: str
    deadline_s: float
    why: str


@dataclass(frozen=True, kw_only=True)
class End:
    """Have the cloud end a node that did not leave."""

    node_id: str
    name: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Replaced:
    """An old node is gone, and a new one has its place: only to be told."""

    node_id: str
    name: str
    pool: str
    seconds: float  # since it was asked for


@dataclass(frozen=True, kw_only=True)
class HoldWorkers:
    """Ask that so many workers be there, until ``until_s``."""

    workers: int
    until_s: float
    why: str


@dataclass(frozen=True, kw_only=True)
class Hurry:
    """A job's deadline is near: on-demand comes first until then; a time that is over ends it."""

    until_s: float
    why: str


Action = Hurry | Ask | AllowOnDemand | Withdraw | Leave | End | Replaced | HoldWorkers


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One decision: what to do now, and what to remember. ``waits_for``: why nothing begins."""

    actions: tuple[Action, ...] = ()
    state: State
    waits_for: str = ""
