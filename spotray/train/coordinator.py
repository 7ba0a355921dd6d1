"""The job's coordinator: one small actor beside the driver that sees the whole job.

It numbers the generations, tells the workers when to stand still, asks Ray to let a
leaving node go, and keeps the facts that no worker can be trusted to live long
enough to tell.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from spotray.cloud.provider import MAINTENANCE, PREEMPTION
from spotray.cluster.drain import drain_node
from spotray.cluster.node_prices import market_by_labels, priced
from spotray.errors import JournalError, SpotrayError
from spotray.events import (
    Event,
    NodeDown,
    NodeReady,
    NodeUp,
    Reported,
    StepsDone,
    Warned,
    WorkerGroupLost,
    WorkerGroupStarted,
)
from spotray.ledger.journal import JournalWriter, read_journal
from spotray.market.prices import PriceTable
from spotray.storage import Store
from spotray.train.config import SpotConfig
from spotray.train.leaving import time_to_leave
from spotray.train.looks import Look, look_at_nodes
from spotray.train.ray_internals import usable_nodes
from spotray.train.session import Progress, StopRequest

log = logging.getLogger(__name__)

Leaving = tuple[float | None, list[str]]  # deadline (Unix seconds) and ids of leaving nodes

_LOOK_EVERY_S = 0.5  # at Ray's nodes
_SETTLED_S = 2.0  # a node that joined Ray later than that is not yet in all of Ray's views
_MARKET_LABEL = "ray.io/market-type"
_PREEMPTED = 3  # Ray's NodeDeathInfo: AUTOSCALER_DRAIN_PREEMPTED
_EXPECTED = (1, 4)  # EXPECTED_TERMINATION, AUTOSCALER_DRAIN_IDLE


class Coordinator:
    """Runs as an actor; every method returns at once.

    Args:
        store: The job's folder in storage.
        spot: The job's settings.
        worker_resources: What one worker needs of a node.
        writes_nodes: Whether the facts about nodes are this one's to write; else
            the cluster has a journal of its own.
    """

    def __init__(
        self,
        store: Store,
        spot: SpotConfig,
        worker_resources: dict[str, float],
        *,
        writes_nodes: bool,
    ) -> None:
        self._spot = spot
        self._worker_resources = worker_resources
        self._writes_nodes = writes_nodes
        self._started_at_s = time.time()
        self._journal = JournalWriter(
            store.child("journal"),
            writer=f"coordinator-{int(self._started_at_s * 1000)}",
            # The facts of live workers go through here; an object store takes a request each.
            flush_interval_s=0.5 if store.can_append else 2.0,
        )
        self._lock = threading.Lock()
        # Not 0 where a job is resumed, or where this actor was started anew.
        self._before = before = _newest(store)
        self._generation, self._group = before.generation, before.node_ids
        self._made_steps = False  # in the current worker group
        self._placed_at_s: float | None = None  # the next group's workers have their nodes
        self._progress = Progress(step=0, epoch=0, loss=None)
        self._proposed = 0
        self._held = False
        self._leaving = False  # a node of the worker group is under notice
        self._members: set[str] = set()  # nodes that ever took part
        self._node_up_s = 0.0  # of members of worker groups, in all
        self._losses = 0
        self._alive: dict[str, Mapping[str, Any]] = {}
        self._seen_at: dict[str, float] = {}  # node id -> since when it is alive, monotonic
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="nodes", daemon=True)
        self._watcher.start()

    # -- for the workers -------------------------------------------------------

    def begin(
        self,
        node_ids: list[str],
        process_at_s: float | None = None,
        imported_at_s: float | None = None,
    ) -> tuple[int, int]:
        """A worker group formed; its generation, and the last step that the job had reached.

        Args:
            node_ids: In the order of ranks.
            process_at_s: When the last worker's process began, Unix seconds.
            imported_at_s: When the last worker entered its training function, Unix seconds.
        """
        with self._lock:
            self._generation += 1
            self._group = tuple(node_ids)
            self._members |= set(node_ids)
            self._held = self._leaving = False
            self._proposed = 0
            self._append(
                WorkerGroupStarted(
                    at_s=time.time(),
                    generation=self._generation,
                    world_size=len(node_ids),
                    node_ids=tuple(node_ids),
                    placed_at_s=self._placed_at_s,
                    process_at_s=process_at_s,
                    imported_at_s=imported_at_s,
                )
            )
            self._placed_at_s = None
            generation, reached = self._generation, self._progress.step
        try:
            self._journal.flush(timeout_s=2.0)  # what this actor needs if it starts anew
        except JournalError as exc:
            log.warning("generation %d is not in the journal yet: %s", generation, exc)
        return generation, reached

    def sync(
        self, generation: int, progress: Progress, notice: Leaving | None
    ) -> tuple[StopRequest | None, int, float]:
        """Rank 0 tells how far it is; the answer tells what to do.

        Args:
            generation: Of the sender; an older one is told nothing.
            progress: At least one step was done.
            notice: Deadline (Unix seconds) and nodes of a coming preemption.

        Returns:
            A stop request or None, nodes lost so far, and node-seconds so far.
        """
        with self._lock:
            if generation != self._generation:
                return None, self._losses, self._node_up_s
            self._progress = progress
            self._made_steps = True
            self._leaving = notice is not None
            stop = None
            if notice is not None:
                deadline_s, leaving = notice
                stop = time_to_leave(
                    deadline_s=deadline_s,
                    leaving=leaving,
                    group=self._group,
                    progress=progress,
                    room=self._room_beside(leaving),
                    margin_s=self._spot.notice_margin_s,
                    now_s=time.time(),
                )
            if stop is None and self._proposed > len(self._group):
                # In storage, since Ray may start the next group on other nodes than these.
                stop = StopRequest(f"room for {self._proposed} workers", durable=True)
            return stop, self._losses, self._node_up_s

    def held(self, generation: int, notice_nodes: list[str], why: str) -> None:
        """All workers of a generation stand still: let the leaving nodes go now."""
        with self._lock:
            if generation != self._generation:
                return
            self._held = True
        address = ray.get_runtime_context().gcs_address
        for node_id in notice_nodes:
            try:
                # Ray Train moves at the drain's deadline; an earlier one moves it now.
                drain_node(address, node_id, deadline_s=time.time() + 0.2, why=why)
            except SpotrayError as exc:
                log.warning("node %s was not drained early: %s", node_id, exc)
                self._append(Warned(at_s=time.time(), what=f"early drain refused: {exc}"))

    # -- for the policies in Ray Train's controller -------------------------------

    def propose(self, workers: int) -> bool:
        """There is room for so many workers; whether the current ones stand still for it."""
        with self._lock:
            self._proposed = workers
            if workers <= len(self._group) and not self._leaving:
                self._held = False  # the room is gone: `sync` lets the workers go on
            return self._held

    def members(self) -> list[str]:
        """Nodes of the current worker group."""
        with self._lock:
            return sorted(set(self._group))

    def placed(self, at_s: float) -> None:
        """The next worker group has its nodes since then, Unix seconds."""
        with self._lock:
            self._placed_at_s = at_s

    def group_lost(self, cause: str, why: str) -> bool:
        """The controller gave the worker group up; whether that one had done any step."""
        with self._lock:
            self._append(
                WorkerGroupLost(at_s=time.time(), generation=self._generation, cause=cause, why=why)
            )
            made_steps, self._made_steps = self._made_steps, False
            return made_steps

    # -- for the driver ----------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """How far the job is, where, whose it is, and what it may take (Unix seconds, USD)."""
        with self._lock:
            return {
                "generation": self._generation,
                "world_size": len(self._group),
                "step": self._progress.step,
                "epoch": self._progress.epoch,
                "loss": self._progress.loss,
                "node_ids": sorted(set(self._group)),
                "deadline_s": self._spot.deadline_s,
                "max_cost_usd": self._spot.max_cost_usd,
                "is_watched": self._spot.is_watched,
                "began_s": self._started_at_s,
                "driver": ray.get_runtime_context().get_job_id() if ray.is_initialized() else "",
            }

    def left_behind(self) -> list[str]:
        """Nodes that may still hold snapshots: alive, and not in the current worker group.

        A machine whose Ray was started anew has another id than it took part under.
        """
        with self._lock:
            if self._members == set(self._group):
                return []
            fit = [n for n, node in self._alive.items() if node["Resources"].get("CPU")]
            return sorted(set(fit) - set(self._group))

    def close(self) -> None:
        """Write what is left of the journal."""
        self._closing.set()
        self._watcher.join(timeout=5)
        self._journal.close()

    # -- inside --------------------------------------------------------------------

    def _room_beside(self, leaving: list[str]) -> int:
        """Workers that the nodes could hold that stay, if this job had them all."""
        room = 0
        usable = usable_nodes(probe=False) - set(leaving)
        joined_by = time.monotonic() - _SETTLED_S
        for node_id, node in self._alive.items():
            if node_id in usable and self._seen_at[node_id] <= joined_by:
                fits = [
                    node["Resources"].get(name, 0.0) // amount
                    for name, amount in self._worker_resources.items()
                    if amount > 0
                ]
                room += int(min(fits, default=0))
        return room

    def _watch(self) -> None:
        """Follow Ray's list of nodes, until closed."""
        while not self._closing.wait(_LOOK_EVERY_S):
            try:
                look = look_at_nodes()
            except Exception:  # the loop must live; the next look may do better
                log.exception("Ray's list of nodes could not be read")
                continue
            with self._lock:
                self._compare(look.nodes)
            self._looked(look)

    def _looked(self, look: Look) -> None:
        """Ray's nodes were looked at; for who coordinates more."""

    def _compare(self, nodes: Sequence[Mapping[str, Any]]) -> None:
        now_s = time.time()
        alive = {n["NodeID"]: n for n in nodes if n["Alive"]}
        if not self._alive and alive:
            self._tell_what_is_missing(alive.values())
        self._node_up_s += _LOOK_EVERY_S * len(set(self._group) & alive.keys())
        for node_id in alive.keys() - self._alive.keys():
            self._seen_at[node_id] = time.monotonic()
            if self._writes_nodes:
                self._append(node_up(alive[node_id], now_s))
                self._append(NodeReady(at_s=now_s, node_id=node_id))
        for node in nodes:
            node_id = node["NodeID"]
            if node_id in self._alive and node_id not in alive:
                cause, noticed = death_of(node)
                if cause != "shutdown" and node_id in self._group:
                    self._losses += 1
                if self._writes_nodes:
                    self._append(
                        NodeDown(at_s=now_s, node_id=node_id, cause=cause, noticed=noticed)
                    )
        self._alive = alive

    def _tell_what_is_missing(self, nodes: Iterable[Mapping[str, Any]]) -> None:
        """Say once what this cluster does not offer, and what follows."""
        missing = []
        if not any(_MARKET_LABEL in (node.get("Labels") or {}) for node in nodes):
            missing.append(
                f"no node has the label {_MARKET_LABEL}: spot is not told from on-demand"
            )
        if self._writes_nodes:
            missing.append(
                "no cluster journal (SPOTRAY_JOURNAL, SpotConfig.cluster_journal): prices are "
                "unknown, and only drained nodes count as noticed"
            )
        for what in missing:
            log.warning("%s", what)
            self._append(Warned(at_s=time.time(), what=what))

    def _append(self, event: Event) -> None:
        self._journal.append(event)


@dataclass(frozen=True, kw_only=True)
class _Before:
    """What a job's journal says of the newest worker group."""

    generation: int = 0
    node_ids: tuple[str, ...] = ()
    told_step: int = 0  # its last one
    told_report: tuple[int, int] = (-1, 0)  # step of the job's last one, and how many of it


def _newest(store: Store) -> _Before:
    facts = list(read_journal(store.child("journal")))
    starts = [e for e in facts if isinstance(e, WorkerGroupStarted)]
    newest = max(starts, key=lambda e: e.generation, default=None)
    if newest is None:
        return _Before()
    steps = [e for e in facts if isinstance(e, StepsDone) and e.generation == newest.generation]
    reported = [e.step for e in facts if isinstance(e, Reported)]
    last = max(reported, default=-1)
    return _Before(
        generation=newest.generation,
        node_ids=newest.node_ids,
        told_step=max((e.last_step for e in steps), default=0),
        told_report=(last, reported.count(last)),
    )


def node_up(node: Mapping[str, Any], now_s: float) -> NodeUp:
    """A node that Ray knows, as a fact."""
    labels = node.get("Labels") or {}
    is_head = any(name.startswith("node:__internal_head__") for name in node["Resources"])
    market, added = market_by_labels(labels, node["Resources"])
    up = NodeUp(
        at_s=now_s,
        node_id=node["NodeID"],
        role="head" if is_head else "worker",
        market="" if market is None else str(market),
        spot=labels.get(_MARKET_LABEL) == "spot",
    )
    return up if market is None else priced(up, _price_table(), added=added)


@functools.cache
def _price_table() -> PriceTable:
    return PriceTable.bundled()


def death_of(node: Mapping[str, Any]) -> tuple[str, bool]:
    """Cause of a node's end as Ray has it, and whether it was announced."""
    reason = node.get("DeathReason")
    if reason == _PREEMPTED:
        # Ray has one word for all that a cloud takes; the agent's is in the message.
        said = str(node.get("DeathReasonMessage") or "")
        return (MAINTENANCE if f"{MAINTENANCE} notice" in said else PREEMPTION), True
    if reason in _EXPECTED:
        return "shutdown", True
    is_spot = (node.get("Labels") or {}).get(_MARKET_LABEL) == "spot"
    return ("preemption" if is_spot else "failure"), False
