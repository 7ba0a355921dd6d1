"""The sweep's coordinator: one actor beside the driver, in which every trial's job is hosted.

Tune has a small process for each trial; it asks here for reports and checkpoints. The
trials' workers call here too, each for its own job. So a trial costs one small process
and its workers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError
from ray.train.v2.api.config import ScalingConfig  # ray.train's own, as type checkers see it
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from spotray.errors import JournalError, MetricMissing, NotLive, SpotrayError
from spotray.events import JobEnded, JobStarted, TrialHeldBack
from spotray.ledger.journal import JournalWriter, has_journal
from spotray.ledger.rundir import JOURNAL
from spotray.storage import Store
from spotray.train.copies import Copies
from spotray.train.looks import look_at_nodes
from spotray.train.shelf import Shelf
from spotray.train.trainer import run_id_of
from spotray.train.worker import SHM_DIR, shm_home
from spotray.tune.gate import Gate, GatedSeat
from spotray.tune.hosted import INTERRUPTED, PAUSED, STOPPED, Hosted, Seat
from spotray.tune.lives import JobPlan, TrialLife
from spotray.tune.memory import forget_runs, held_runs
from spotray.tune.messages import Ended, Pointer, Report
from spotray.tune.nodes import NodeFacts, RayNodes, possible_workers
from spotray.tune.pool import LOOK_S, Pool
from spotray.tune.progress import JournalStatus
from spotray.tune.runs import TRIALS, RunFolder, open_run

log = logging.getLogger(__name__)

NODES = ("spotray", "nodes")  # journal about nodes, below the sweep's folder
_END_S = 30.0  # for a trial that is stopped
_FORGET_EVERY_S = 10.0
_PAUSE_S = 5.0  # a paused trial keeps its workers so long, unless another one waits for some
_LEDGER_S = 1.0  # between two looks at what the sweep cost
_HELD_S = 15.0  # for a task on each node, when a sweep is restored
_SWEEP_S = 20.0  # for a task on each node, at the end


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """What a sweep's coordinator is given."""

    name: str
    home: Store  # the sweep's folder
    job: JobPlan
    scaling_config: ScalingConfig
    needs: Mapping[str, str]  # metrics that every report must have -> who wants them
    writes_nodes: bool  # nobody else writes facts about nodes


@dataclass
class _Entry:
    """A trial that runs, or ran."""

    token: str  # of the Tune process that may ask
    hosted: Hosted
    run_id: str
    paused_at: float | None = None  # monotonic; its workers wait for it to go on
    is_final: bool = False  # nobody will go on with it
    is_forgotten: bool = False  # by the nodes' memory


class SweepCoordinator:
    """Runs as an actor, with a thread for each worker and trial and some more."""

    def __init__(self, plan: SweepPlan) -> None:
        self._plan = plan
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}  # by trial
        self._by_run: dict[str, Hosted] = {}
        self._seen: dict[str, tuple[str, int]] = {}  # trial -> run and its reports that Tune has
        self._fatal = ""
        self._to_forget: list[str] = []
        self._forgot_at = time.monotonic()
        self._journal = JournalWriter(
            plan.home.child(*JOURNAL), writer=f"sweep-{time.time_ns() // 10**6}"
        )
        self._journal.append(
            JobStarted(
                at_s=time.time(),
                job=plan.name,
                run_id="",
                min_workers=plan.job.least,
                max_workers=plan.job.most,
                cluster_journal=plan.job.cluster_journal,
                labels=dict(plan.job.spot.labels),
            )
        )
        self._facts = NodeFacts(plan.home.child(*NODES)) if plan.writes_nodes else None
        self._possible = possible_workers(plan.job.needs) or 0
        self._nodes = RayNodes(plan.scaling_config, name=plan.name)
        self._shelf = Shelf(
            shm_home(),
            host=ray.util.get_node_ip_address(),
            node_id=ray.get_runtime_context().get_node_id(),
        )
        self._copies = Copies(self._shelf.address)
        self._held_before = self._held_on_nodes()  # run id -> nodes, the newest first
        self._pool = Pool(self._nodes, least=plan.job.least, most=plan.job.most)
        self._gate: Gate | None = None
        if (max_cost_usd := plan.job.spot.max_cost_usd) is not None:
            state = JournalStatus(plan.home.url, every_s=_LEDGER_S)
            room = self.trials_that_fit
            self._gate = Gate(state, max_cost_usd=max_cost_usd, room=room)
        self._closing = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="sweep", daemon=True)
        self._ticker.start()

    # -- for workers -----------------------------------------------------------------

    def call(self, key: str, method: str, *args: Any) -> Any:
        """What a worker asks of its job's coordinator; ``key``: its run."""
        hosted = self._by_run.get(key)
        if hosted is None:
            raise SpotrayError(f"no run {key} is trained in this sweep")
        return hosted.call(method, args)

    # -- for a trial's Tune process ------------------------------------------------------

    def begin(
        self, trial: str, token: str, config: dict[str, Any], pointer: dict[str, Any] | None
    ) -> None:
        """A trial begins, or goes on.

        Args:
            trial: Its id.
            token: Of the process that asks; an older one of the same trial is told no more.
            config: Hyperparameters.
            pointer: Where it stood when Tune last kept a checkpoint of it, or whom it clones.

        Raises:
            ConfigError: its folder is damaged.
            SpotrayError: what ran of it before does not end.
        """
        at = Pointer.from_dict(pointer) if pointer is not None else None
        run = open_run(self._plan.home, trial, config, at)
        with self._lock:
            seen_run, seen = self._seen.get(trial, ("", 0))
            seen = seen if seen_run == run.name else run.base
            before = self._entries.get(trial)
            if before is not None:
                before.token, before.paused_at = token, None
        if before is not None:
            is_other = before.hosted.run.name != run.name
            if not is_other and before.hosted.take_over(seen):
                return
            before.hosted.stop("the trial goes on from elsewhere", status=STOPPED)
            if not before.hosted.join(_END_S):
                raise SpotrayError(f"trial {trial} did not end within {_END_S:.0f} s")
            if is_other:
                self._forget(before)
        run_id = run_id_of(run.store)
        hosted = self._host(run, run_id, seen=seen)
        with self._lock:
            self._entries[trial] = _Entry(token, hosted, run_id)
            self._by_run[run.name] = hosted

    def next(self, trial: str, token: str, timeout_s: float) -> Report | Ended | None:
        """A trial's next report, or its end; None: ask again."""
        entry = self._entry(trial, token)
        if entry is None:
            return Ended(why="another process has this trial")
        try:
            return entry.hosted.next(timeout_s)
        except (MetricMissing, NotLive) as exc:
            self._fatal = str(exc)
            raise

    def save(self, trial: str, token: str, timeout_s: float) -> dict[str, Any] | None:
        """A pointer to a durable checkpoint of where the trial is; None: ask again."""
        entry = self._entry(trial, token)
        if entry is None:
            raise SpotrayError(f"another process has trial {trial}")
        pointer = entry.hosted.save(timeout_s)
        return pointer.to_dict() if pointer is not None else None

    def leave(self, trial: str, token: str) -> None:
        """A trial's Tune process ends, or turns to another trial."""
        entry = self._entry(trial, token)
        if entry is not None and entry.paused_at is None:
            # Tune ended it; that it did so because all ends is told by `close`, or by nobody.
            entry.hosted.stop("Tune ended it", status=STOPPED)

    # -- for the cluster's controller -----------------------------------------------------

    def status(self) -> dict[str, dict[str, Any]]:
        """How far each run is that has workers, and where; by the runs' names."""
        with self._lock:
            hosted = [entry.hosted for entry in self._entries.values()]
        told = {one.run.name: one.status() for one in hosted}
        return {name: status for name, status in told.items() if status is not None}

    # -- for the driver ------------------------------------------------------------------

    def seen(self, trial: str, run: str, iteration: int) -> None:
        """Tune has reports of a run up to this one; told before the trial goes on."""
        with self._lock:
            self._seen[trial] = (run, iteration)

    def trials_that_fit(self, more: bool = False) -> int:
        """Trials for which there is room, or will be when the autoscaler has done its part.

        Args:
            more: There are trials that did not begin: the autoscaler is asked for room for
                one, if it did not tell how many it may launch.
        """
        job = self._plan.job
        self._pool.ask_for_more(job.most if more and not self._possible else 0)
        return max(self._pool.slots(), self._possible) // job.least

    def pause(self, trial: str) -> None:
        """Tune lets a trial pause, perhaps only for a moment: its workers stay a while."""
        with self._lock:
            entry = self._entries.get(trial)
            if entry is not None:
                entry.paused_at = time.monotonic()

    def waits(self) -> bool:
        """Whether a trial waits for workers that others have; one that pauses does not."""
        with self._lock:
            paused = {t for t, entry in self._entries.items() if entry.paused_at is not None}
        return self._pool.is_short(besides=paused)

    def stop(self, trial: str, why: str, is_final: bool) -> dict[str, Any]:
        """Tune ends a trial; the result of the end of training if it came to it."""
        with self._lock:
            entry = self._entries.get(trial)
        if entry is None:
            return {}
        entry.is_final |= is_final
        entry.hosted.stop(why, status=STOPPED if is_final else INTERRUPTED)
        return entry.hosted.final()

    def running(self) -> list[str]:
        """Trials that were begun and did not end."""
        with self._lock:
            entries = dict(self._entries)
        return [trial for trial, entry in entries.items() if not entry.hosted.is_over]

    def fatal(self) -> str:
        """Why no trial can go on; empty if they can."""
        return self._fatal

    def close(self, status: str, why: str = "") -> None:
        """Stop what runs, and write what is left.

        Args:
            status: How the sweep ended: finished, failed or interrupted.
            why: The reason.
        """
        with self._lock:
            entries = list(self._entries.values())
        for entry in entries:
            # Of a sweep that came to its end, those that are left were stopped just now.
            over = STOPPED if status == "finished" else INTERRUPTED
            entry.hosted.stop("the sweep ends", status=over)
        until = time.monotonic() + _END_S
        for entry in entries:
            entry.hosted.join(max(0.0, until - time.monotonic()))
        self._closing.set()
        self._ticker.join(timeout=_END_S)
        if status == "finished":
            for entry in entries:
                self._forget(entry)
            self._forget_now(wait_s=_SWEEP_S)
        self._pool.close()
        self._nodes.close()
        self._shelf.close()
        self._journal.append(
            JobEnded(at_s=time.time(), job=self._plan.name, status=status, why=why)
        )
        for journal in (self._facts, self._journal):
            try:
                if journal is not None:
                    journal.close()
            except JournalError as exc:  # must not hide how the sweep ended
                log.warning("facts of sweep %s are lost: %s", self._plan.name, exc)

    # -- inside ---------------------------------------------------------------------------

    def _held_on_nodes(self) -> dict[str, list[str]]:
        """Where an earlier driver's runs have their newest state in memory."""
        if not self._plan.home.folders(TRIALS):
            return {}
        look = ray.remote(num_cpus=0, max_retries=0)(held_runs)
        node_ids = [*self._nodes.with_memory(), self._shelf.address.node_id]
        refs = {
            look.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)
            ).remote(SHM_DIR): node_id
            for node_id in dict.fromkeys(node_ids)
        }
        found: dict[str, list[tuple[int, str]]] = {}
        done, _ = ray.wait(list(refs), num_returns=len(refs), timeout=_HELD_S)
        for ref in done:
            try:
                held: dict[str, int] = ray.get(ref)
            except RayError as exc:
                log.warning("what node %s holds is unknown: %s", refs[ref][:8], exc)
                continue
            for run_id, step in held.items():
                found.setdefault(run_id, []).append((step, refs[ref]))
        return {
            run_id: [node_id for _, node_id in sorted(all_of_it, reverse=True)]
            for run_id, all_of_it in found.items()
        }

    def _host(self, run: RunFolder, run_id: str, *, seen: int) -> Hosted:
        sweep = ray.get_runtime_context().current_actor
        prefers = self._held_before.pop(run_id, ())
        workers = self._pool.join(run.trial, prefers=prefers)
        if prefers:
            self._copies.held(run_id, prefers[0])
        hosted: Hosted
        seat: Seat = workers

        def hold_back(why: str) -> None:
            self._journal.append(TrialHeldBack(at_s=time.time(), trial=run.trial, why=why))
            hosted.stop(f"the budget: {why}", status=STOPPED)

        if self._gate is not None:
            seat = GatedSeat(
                workers,
                self._gate,
                run.trial,
                has_begun=has_journal(run.store.child(JOURNAL[-1])) or run.begins_from is not None,
                stop=hold_back,
            )

        def begin() -> TrialLife:
            return TrialLife(
                self._plan.job,
                run,
                run_id=run_id,
                workers=workers,
                sweep=sweep,
                copies=self._copies,
            )

        hosted = Hosted(run, seen=seen, begin=begin, seat=seat, needs=self._plan.needs)
        workers.on_limit(hosted.limit)
        hosted.start()
        return hosted

    def _entry(self, trial: str, token: str) -> _Entry | None:
        with self._lock:
            entry = self._entries.get(trial)
            return entry if entry is not None and entry.token == token else None

    def _tick(self) -> None:
        while not self._closing.is_set():
            try:
                if self._facts is not None:
                    self._facts.look()
                self._pool.look()
                look = look_at_nodes()
                self._copies.set_nodes(look.nodes, look.draining)
                self._release_the_paused()
                self._forget_the_ended()
            except Exception:  # the loop must live; the next look may do better
                log.exception("the sweep could not look at its nodes")
            self._closing.wait(LOOK_S)

    def _release_the_paused(self) -> None:
        waits = self.waits()
        with self._lock:  # one that goes on just now is taken over before, or begins anew
            for entry in self._entries.values():
                since = entry.paused_at
                if since is not None and (waits or time.monotonic() - since > _PAUSE_S):
                    entry.hosted.stop("the scheduler lets it pause", status=PAUSED)

    def _forget_the_ended(self) -> None:
        with self._lock:
            entries = list(self._entries.values())
        for entry in entries:
            if entry.hosted.is_over and (entry.is_final or entry.hosted.is_through):
                self._forget(entry)
        if time.monotonic() - self._forgot_at > _FORGET_EVERY_S:
            self._forget_now(wait_s=0.0)

    def _forget(self, entry: _Entry) -> None:
        with self._lock:
            if not entry.is_forgotten:
                entry.is_forgotten = True
                self._to_forget.append(entry.run_id)

    def _forget_now(self, *, wait_s: float) -> None:
        """Give back the memory of runs that nobody will go on with, on all nodes."""
        with self._lock:
            run_ids, self._to_forget = self._to_forget, []
        self._forgot_at = time.monotonic()
        for run_id in run_ids:
            self._copies.forget(run_id)
            self._shelf.forget(run_id)
        if not run_ids:
            return
        remove = ray.remote(num_cpus=0, max_retries=0)(forget_runs)
        refs = [
            remove.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)
            ).remote(run_ids, SHM_DIR)
            for node_id in self._nodes.with_memory()
        ]
        if not wait_s:
            return
        try:
            ray.get(refs, timeout=wait_s)
        except RayError as exc:
            log.warning("snapshots of ended trials may be left on some nodes: %s", exc)
