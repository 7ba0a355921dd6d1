"""What the workers of a live job, its assembly and its driver tell each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spotray.train.membership import Directive, Roster
from spotray.train.session import Progress
from spotray.train.shelf import Address


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What a worker learns as it enters."""

    warm_up: bool  # others step already: get ready beside them
    epoch: int  # where they are, about
    step: int
    out: str = ""  # why there is no place for it any more


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What a worker that joined learns: its generation, or that there is none for it."""

    roster: Roster | None
    store_host: str = ""
    store_port: int = 0
    told_step: int = 0  # steps up to this one are in the journal
    told_report: tuple[int, int] = (-1, 0)  # step of the last report there, and how many of it
    reached_step: int = 0  # steps up to this one were done at least once
    asked_step: int = -1  # a decision about this one is still to come
    broke_at_s: float | None = None  # the generation before, Unix seconds; None: as agreed
    copy_at: Address | None = None  # where a copy of the newest snapshot may be
    out: str = ""  # why it is not wanted
    done: bool = False  # with out: the job has its result


@dataclass(frozen=True, kw_only=True)
class Beat:
    """What a worker tells with each sign of life."""

    node_id: str
    made_steps: bool
    roster: Roster | None  # its generation, so that the assembly can start anew
    progress: Progress | None  # rank 0's
    facts: tuple[str, ...] = ()  # encoded events
    first_fact: int = 0  # number of the first of them, counted by the sender
    shelf: Address | None = None  # of this process
    copied_to: Address | None = None  # rank 0's: where a copy of its newest snapshot is


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a worker learns with each sign of life."""

    directive: Directive
    facts_kept: int  # facts below this number are safe
    losses: int  # nodes lost so far
    node_up_s: float
    copy_to: Address | None = None  # where copies of this member's snapshots should go


@dataclass(frozen=True, kw_only=True)
class View:
    """What the job's driver sees."""

    generation: int
    members: tuple[str, ...]
    known: tuple[str, ...]  # every worker that may take part
    entered: tuple[str, ...]  # those of them whose process runs
    let_go: tuple[str, ...]  # workers that were told to leave, and will
    leaving_nodes: tuple[str, ...]
    useful_workers: int  # more have nothing to do
    done: bool
    gave_up: str
    waiting_for: int  # workers that are missing before anybody steps
    least: int  # workers, of which fewer do not step


GO_ON, SAVE, STOP = "go_on", "save", "stop"  # what is decided about a question
MEET = "meet"  # no decision: the workers changed, ask again after meeting


@dataclass(frozen=True, kw_only=True)
class Ask:
    """The workers stand between two steps, and ask whether to go on."""

    step: int  # optimizer steps done
    epoch: int  # the next one
    reports: tuple[Mapping[str, Any], ...]  # since the last time, the oldest first
