"""A start of a trial's job: what `ElasticTrainer` is for one training, inside of the sweep."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ray.train.v2.api.exceptions import WorkerGroupError  # ray.train's own, for type checkers

from spotray.errors import JournalError, NotLive, SpotrayError
from spotray.events import JobEnded, JobStarted
from spotray.ledger.journal import JournalWriter
from spotray.ledger.rundir import JOURNAL
from spotray.train.config import SpotConfig
from spotray.train.copies import Copies
from spotray.train.live import GaveWay, LiveTraining, Stopped
from spotray.train.live_coordinator import LiveCoordinator
from spotray.train.live_worker import LiveJob
from spotray.train.membership import Timeouts
from spotray.train.messages import Ask
from spotray.train.placing import Workers
from spotray.tune.hosted import INTERRUPTED, Finished
from spotray.tune.runs import RunFolder

log = logging.getLogger(__name__)

# What workers call; anything else is not theirs.
FOR_WORKERS = frozenset({"enter", "beat", "join", "tell", "commit", "finish", "ask", "saved"})


@dataclass(frozen=True, kw_only=True)
class JobPlan:
    """What all jobs of a sweep have in common."""

    loop: Callable[..., Any]
    spot: SpotConfig
    least: int  # workers
    most: int
    needs: dict[str, float]  # of a worker, by Ray's names
    cluster_journal: str  # URL


class TrialLife:
    """`Life` on Ray: a coordinator in this process, and workers that call it through the sweep.

    Args:
        plan: The sweep's.
        run: Where the job keeps its files.
        run_id: Its name in the nodes' memory.
        workers: Where its workers come from.
        sweep: Handle of the actor that this is in.
        copies: Where copies of snapshots go; the trials of a sweep keep them for each other.
    """

    def __init__(
        self,
        plan: JobPlan,
        run: RunFolder,
        *,
        run_id: str,
        workers: Workers,
        sweep: Any,
        copies: Copies,
    ) -> None:
        self._run = run
        self._journal = JournalWriter(
            run.store.child(JOURNAL[-1]), writer=f"driver-{time.time_ns() // 10**6}"
        )
        self._journal.append(
            JobStarted(
                at_s=time.time(),
                job=run.name,
                run_id=run_id,
                min_workers=plan.least,
                max_workers=plan.most,
                cluster_journal=plan.cluster_journal,
                labels=dict(plan.spot.labels),
            )
        )
        self.coordinator = LiveCoordinator(
            run.store,
            plan.spot,
            dict(plan.needs),
            writes_nodes=False,
            min_workers=plan.least,
            max_workers=plan.most,
            timeouts=Timeouts(heartbeat_s=plan.spot.heartbeat_timeout_s),
            run_id=run_id,
            adopts=False,  # workers end with the life, or the sweep's actor, that they are of
            copies=copies,
        )
        job = LiveJob(
            loop=plan.loop,
            config=dict(run.config),
            run_id=run_id,
            store=run.store,
            spot=plan.spot,
            coordinator=sweep,
            key=run.name,
            asks=True,
            resume_from_checkpoint=run.begins_from,
        )
        self._stop_status = INTERRUPTED
        # A bug of the user's is Tune's to count.
        self._training = LiveTraining(
            job, supervisor=self.coordinator, workers=workers, max_failures=0
        )

    def run(self) -> Finished | None:
        status, why = "failed", ""
        try:
            ended = self._training.run()
            if isinstance(ended, Stopped):
                status, why = self._stop_status, ended.why
                return None
            if isinstance(ended, GaveWay):
                raise _no_live(ended)
            status = "finished"
            metrics, checkpoint = ended
            return Finished(metrics=dict(metrics), checkpoint=checkpoint)
        except WorkerGroupError as exc:
            why = str(exc)[-300:]
            raise _own(exc) from exc
        except SpotrayError as exc:
            why = str(exc)
            raise
        finally:
            self._close(status, why)

    def stop(self, why: str, status: str) -> None:
        self._stop_status = status
        self._training.stop(why)

    def call(self, method: str, args: tuple[Any, ...]) -> Any:
        if method not in FOR_WORKERS:
            raise ValueError(f"workers do not call {method!r}")
        return getattr(self.coordinator, method)(*args)

    def status(self) -> dict[str, Any]:
        return self.coordinator.status()

    def set_share(self, workers: int) -> None:
        self.coordinator.set_share(workers)

    def next_ask(self, timeout_s: float) -> Ask | None:
        return self.coordinator.next_ask(timeout_s)

    def decide(self, step: int, kind: str) -> None:
        self.coordinator.decide(step, kind)

    def wait_saved(self, timeout_s: float) -> tuple[int, str | None] | None:
        return self.coordinator.wait_saved(timeout_s)

    # -- inside -------------------------------------------------------------------------

    def _close(self, status: str, why: str) -> None:
        self._journal.append(JobEnded(at_s=time.time(), job=self._run.name, status=status, why=why))
        for journal in (self.coordinator, self._journal):
            try:
                journal.close()
            except JournalError as exc:  # must not hide how the trial ended
                log.warning("facts of %s are lost: %s", self._run.name, exc)


def _no_live(ended: GaveWay) -> SpotrayError:
    if not ended.is_unsupported:
        return SpotrayError(f"live recovery gave up: {ended.why}")
    return NotLive(
        f"SpotTuner needs live recovery, which cannot serve this training loop: {ended.why}; "
        "ElasticTrainer(recovery='restart') trains one configuration of it"
    )


def _own(failed: WorkerGroupError) -> Exception:
    """The training loop's error, such that a process without torch can read it.

    Of Python's own classes it keeps the class, so that a user's ``except`` still fits.
    """
    for error in failed.worker_failures.values():
        cause = getattr(error, "cause", error)
        kind = type(cause)
        if kind.__module__ == "builtins" and issubclass(kind, Exception):
            try:
                return kind(f"{cause}\n\n{error}")
            except TypeError:  # a class that wants other arguments
                log.debug("%s is told in words", kind)
        return RuntimeError(f"the training loop failed: {kind.__name__}: {cause}\n\n{error}")
    return RuntimeError(f"the training loop failed:\n{failed}")
