"""The coordinator of a live job: the actor that also assembles its members."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import ray

from spotray.checkpoint.manifest import Manifest
from spotray.storage import Store
from spotray.train.assembly import Assembly
from spotray.train.config import SpotConfig
from spotray.train.coordinator import Coordinator
from spotray.train.copies import Copies, CopiesOf
from spotray.train.inbox import Inbox
from spotray.train.looks import Look
from spotray.train.membership import Membership, Roster, Timeouts
from spotray.train.messages import Answer, Ask, Assignment, Beat, Entry, View
from spotray.train.moves import Planner
from spotray.train.shelf import Shelf
from spotray.train.worker import shm_home

log = logging.getLogger(__name__)


class LiveCoordinator(Coordinator):
    """`Coordinator` of workers that come and go while the others step.

    `join` and `ask` block, so the actor needs some threads for each worker.

    Args:
        min_workers: Fewer do not step.
        max_workers: More are not let in.
        timeouts: When silence is a loss.
        adopts: An earlier actor's members may still step: not if they ended with it.
        run_id: The run's name in the nodes' memory.
        copies: Where copies of its snapshots go; None: to this actor's node, unless the
            workers are on it too.
    """

    _assembly: Assembly | None = None  # the base's thread may look before there is one

    def __init__(
        self,
        store: Store,
        spot: SpotConfig,
        worker_resources: dict[str, float],
        *,
        writes_nodes: bool,
        min_workers: int,
        max_workers: int,
        timeouts: Timeouts,
        run_id: str,
        adopts: bool = True,
        copies: Copies | None = None,
    ) -> None:
        self._run_id = run_id
        host = ray.util.get_node_ip_address()
        self._shelf: Shelf | None = None
        if copies is None:
            node_id = ray.get_runtime_context().get_node_id()
            self._shelf = Shelf(shm_home(), host=host, node_id=node_id)
            copies = Copies(self._shelf.address)
            if self._shelf.has(run_id):  # an earlier actor on this node took them
                copies.held(run_id, node_id)
        self._copies = copies
        super().__init__(store, spot, worker_resources, writes_nodes=writes_nodes)
        membership = Membership(
            min_workers=min_workers,
            max_workers=max_workers,
            timeouts=timeouts,
            generation=self._generation,
            max_idle_generations=spot.max_restarts_without_progress,
        )
        self._assembly = Assembly(
            membership,
            append=self._append,
            inbox=Inbox(
                self._append,
                marks=self._journal.marks,
                told_step=self._before.told_step,
                told_report=self._before.told_report,
            ),
            flush=self._journal.flush,
            on_formed=self._formed,
            host=host,
            planner=Planner(margin_s=spot.notice_margin_s, mtbp_s=spot.node_mtbp_s),
            max_workers=max_workers,
            progress=self._progress,
            adopts=adopts,
            copies=CopiesOf(copies, run_id),
        )

    # -- for the workers ---------------------------------------------------------

    def enter(self, member: str, node_id: str) -> Entry:
        return self._assembled.enter(member, node_id)

    def beat(self, member: str, beat: Beat) -> Answer:
        return self._assembled.beat(member, beat)

    def join(
        self, member: str, generation: int, why: str, has_state: bool, timeout_s: float
    ) -> Assignment | None:
        return self._assembled.join(member, generation, why, has_state, timeout_s)

    def tell(self, member: str, facts: Sequence[str], first_fact: int) -> int:
        return self._assembled.tell(member, facts, first_fact)

    def commit(self, member: str, folder: Store, manifest: Manifest) -> None:
        self._assembled.commit(member, folder, manifest)

    def finish(self, member: str, metrics: Mapping[str, Any], checkpoint: str | None) -> None:
        self._assembled.finish(member, metrics, checkpoint)

    def ask(self, member: str, ask: Ask, timeout_s: float) -> str | None:
        return self._assembled.ask(member, ask, timeout_s)

    def saved(self, member: str, step: int, url: str | None) -> None:
        self._assembled.saved(member, step, url)

    # -- for who decides on what the workers ask -----------------------------------

    def next_ask(self, timeout_s: float) -> Ask | None:
        return self._assembled.next_ask(timeout_s)

    def decide(self, step: int, kind: str) -> None:
        self._assembled.decide(step, kind)

    def wait_saved(self, timeout_s: float) -> tuple[int, str | None] | None:
        return self._assembled.wait_saved(timeout_s)

    def set_share(self, workers: int) -> None:
        self._assembled.set_share(workers)

    def stop(self, why: str) -> None:
        self._assembled.stop(why)

    # -- for the driver ----------------------------------------------------------

    def supervise(self, started: Mapping[str, str], gone: Mapping[str, str]) -> View:
        return self._assembled.sync(started, gone)

    def result(self) -> tuple[Mapping[str, Any], str | None] | None:
        return self._assembled.result

    def status(self) -> dict[str, Any]:
        with self._lock:
            self._progress = self._assembled.progress
        return super().status()

    def stop_live(self) -> None:
        """No live worker takes part any more; worker groups of Ray Train may follow."""
        self._assembled.close()
        with self._lock:
            self._progress = self._assembled.progress

    def close(self) -> None:
        self._assembled.close()
        if self._shelf is not None:
            self._shelf.close()
            if self._assembled.result is not None:
                self._shelf.forget(self._run_id)
        super().close()

    # -- inside ------------------------------------------------------------------

    @property
    def _assembled(self) -> Assembly:
        assert self._assembly is not None, "the constructor made it"
        return self._assembly

    def _formed(self, roster: Roster) -> None:
        with self._lock:
            self._generation = roster.generation
            self._group = roster.node_ids
            self._members |= set(roster.node_ids)

    def _looked(self, look: Look) -> None:
        if self._assembly is None:
            return
        with self._lock:
            alive, losses, up_s = set(self._alive), self._losses, self._node_up_s
        self._assembly.losses, self._assembly.node_up_s = losses, up_s
        if self._shelf is not None:
            self._copies.set_nodes(look.nodes, look.draining)
        draining = {n: d for n, d in look.draining.items() if n in alive}
        self._assembly.set_notices(draining)
