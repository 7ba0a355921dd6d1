"""One trial while it trains: its reports in their turn, and what Tune decides about it.

Tune knows a trial by its reports. A run that is started again does steps once more, and
reports them again: here every step is reported once, with the number that it would have
had undisturbed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from spotray.errors import CheckpointError, MetricMissing, SpotrayError
from spotray.train.messages import GO_ON, SAVE, Ask
from spotray.tune.messages import Ended, Pointer, Report, digest_of
from spotray.tune.runs import RunFolder, Told

log = logging.getLogger(__name__)

_SLICE_S = 0.5  # of a wait for the workers, after which one looks whether the job still goes on
_PARKED = "its workers are needed elsewhere"
# How a life that is not through is told: somebody may go on, Tune ended it, or lets it pause.
INTERRUPTED, STOPPED, PAUSED = "interrupted", "stopped", "paused"


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The training loop came to its end."""

    metrics: Mapping[str, Any]
    checkpoint: str | None


class Life(Protocol):
    """One start of a run's job, with workers."""

    def run(self) -> Finished | None:
        """Train; None: it was stopped. Raises what the training loop raised."""
        ...

    def stop(self, why: str, status: str) -> None:
        """Let `run` come back soon; from any thread. ``status``: how that is told."""
        ...

    def call(self, method: str, args: tuple[Any, ...]) -> Any:
        """What a worker asks of its job's coordinator."""
        ...

    def status(self) -> dict[str, Any]:
        """How far the job is, and on which nodes."""
        ...

    def set_share(self, workers: int) -> None: ...

    def next_ask(self, timeout_s: float) -> Ask | None: ...

    def decide(self, step: int, kind: str) -> None: ...

    def wait_saved(self, timeout_s: float) -> tuple[int, str | None] | None: ...


class Seat(Protocol):
    """A trial's place among those that share the workers."""

    def wait(self, timeout_s: float) -> bool:
        """Whether there is room for the least number of workers; waits for it."""
        ...

    def leave(self) -> None:
        """It needs no workers any more."""
        ...


class Hosted:
    """A trial's run, trained in a thread of its own, until it ends or is stopped.

    Args:
        run: Its folder.
        seen: Reports of it that Tune has, by their number; later ones are given (again).
        begin: Starts the run's job; called again after it had to give up its workers.
        seat: Its place among the trials.
        needs: Metrics that every report must have, and who wants them.
    """

    def __init__(
        self,
        run: RunFolder,
        *,
        seen: int,
        begin: Callable[[], Life],
        seat: Seat,
        needs: Mapping[str, str],
    ) -> None:
        self.run = run
        self._digest = digest_of(run.config)
        self._begin, self._seat, self._needs = begin, seat, needs
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        self._numbers: dict[int, int] = {}  # reported step -> number of the report
        self._reports: list[Report] = []
        self._waiting: deque[Report] = deque()  # of these, not given to Tune yet
        self._given_step = run.begins_at
        self._ask: Ask | None = None  # the workers wait for an answer to it
        self._saving = False  # they were told to save, and are at it
        self._life: Life | None = None
        self._latest: Life | None = None  # the same, also after its end: workers say goodbye
        self._stop_why, self._stop_status = "", INTERRUPTED
        self._parked = False
        self._end: Finished | Ended | Exception | None = None
        self._seen = seen
        told = run.told()
        self._take_told(told)
        if told.final is not None:
            # Its end is known, though perhaps not to Tune: the driver died just then.
            self._end = Finished(metrics=told.final, checkpoint=told.checkpoint)

    def start(self) -> None:
        """Begin to train, if it is not through already."""
        if self._end is not None:
            self._seat.leave()
            return
        self._thread = threading.Thread(
            target=self._work, name=f"trial-{self.run.name}", daemon=True
        )
        self._thread.start()

    # -- for Tune's process of this trial --------------------------------------------

    def next(self, timeout_s: float) -> Report | Ended | None:
        """The next report, or the end; None if there is neither in time.

        Asking for the next one after the last means: the workers may go on.

        Raises:
            ConfigError: a report lacks a metric, or live recovery cannot serve the loop.
            Exception: the training loop failed.
        """
        until = time.monotonic() + timeout_s
        while True:
            with self._changed:
                if self._waiting:
                    return self._give()
                if self._end is not None:
                    return self._ended()
                if self._ask is not None:
                    self._answer(GO_ON)
            left_s = until - time.monotonic()
            if left_s <= 0:
                return None
            self._listen(min(left_s, _SLICE_S))

    def save(self, timeout_s: float) -> Pointer | None:
        """A durable checkpoint of the step that was reported last, at the earliest; None: not yet.

        Raises:
            CheckpointError: it could not be written.
            Exception: the training loop failed.
        """
        until = time.monotonic() + timeout_s
        while True:
            with self._changed:
                if self._end is not None:
                    return self._final_pointer()
                if self._ask is not None and not self._saving:
                    self._saving = self._ask.step >= self._given_step
                    self._answer(SAVE if self._saving else GO_ON)
                life, is_saving = self._life, self._saving
            left_s = until - time.monotonic()
            if left_s <= 0:
                return None
            wait_s = min(left_s, _SLICE_S)
            if life is None or not is_saving:
                self._listen(wait_s)
            elif (saved := life.wait_saved(wait_s)) is not None:
                return self._pointer(*saved)

    def final(self) -> dict[str, Any]:
        """Result of the end of training, on top of the last report; empty if it is not through."""
        with self._changed:
            if not isinstance(self._end, Finished):
                return {}
            last = self._reports[-1].to_result() if self._reports else {}
            return {**last, **self._end.metrics}

    # -- for the sweep ----------------------------------------------------------------

    def status(self) -> dict[str, Any] | None:
        """How far its job is, and on which nodes; None: it has no workers now."""
        with self._changed:
            life = self._life
        return life.status() if life is not None else None

    def stop(self, why: str, *, status: str = INTERRUPTED) -> None:
        """End it soon, without a result; from any thread.

        Args:
            why: Nobody goes on with it now.
            status: How its end is told among the facts.
        """
        with self._changed:
            if not self._stop_why:
                self._stop_why, self._stop_status = why, status
            why, status = self._stop_why, self._stop_status  # the first reason is the reason
            life = self._life
            self._changed.notify_all()
        if life is not None:
            life.stop(why, status)

    def limit(self, workers: int) -> None:
        """Let go of workers beyond these; 0: of all, until there is room again."""
        with self._changed:
            life = self._life
            if workers == 0:
                self._parked = True
        if life is None:
            return
        if workers:
            life.set_share(workers)
        else:
            life.stop(_PARKED, INTERRUPTED)

    def take_over(self, seen: int) -> bool:
        """Another Tune process goes on with it, which has so many reports; False: too late.

        The workers notice nothing of it.
        """
        with self._changed:
            if self._stop_why or self._end is not None:
                return False
            self._seen = seen
            self._waiting = deque(one for one in self._reports if one.iteration > seen)
            return True

    def call(self, method: str, args: tuple[Any, ...]) -> Any:
        """What one of its workers asks of its job's coordinator."""
        latest = self._latest
        if latest is None:
            raise SpotrayError(f"run {self.run.name} has no workers")
        return latest.call(method, args)

    @property
    def is_over(self) -> bool:
        """Whether nothing of it runs any more."""
        with self._changed:
            return self._end is not None

    @property
    def is_through(self) -> bool:
        """Whether the training loop came to its end."""
        with self._changed:
            return isinstance(self._end, Finished)

    def join(self, timeout_s: float) -> bool:
        """Wait until nothing of it runs any more."""
        with self._changed:
            return self._changed.wait_for(lambda: self._end is not None, timeout_s)

    # -- the thread -------------------------------------------------------------------

    def _work(self) -> None:
        end: Finished | Ended | Exception
        try:
            end = self._train()
            if isinstance(end, Finished):
                self._take_last_reports()
        except Exception as exc:  # Tune's process of the trial raises it
            end = exc
        self._seat.leave()
        with self._changed:
            self._end = end
            self._changed.notify_all()

    def _train(self) -> Finished | Ended:
        while True:
            while not self._seat.wait(_SLICE_S):
                if self._stop_why:
                    return Ended(why=self._stop_why)
            life = self._begin()
            with self._changed:
                self._life = self._latest = life
                self._ask, self._saving, self._parked = None, False, False
                stop_why, status = self._stop_why, self._stop_status
                self._changed.notify_all()
            if stop_why:
                life.stop(stop_why, status)
            try:
                finished = life.run()
            finally:
                with self._changed:
                    self._life = None
            if finished is not None:
                return finished
            with self._changed:
                if self._stop_why or not self._parked:
                    return Ended(why=self._stop_why or "stopped")
            log.info("trial %s waits: %s", self.run.trial, _PARKED)

    # -- inside -----------------------------------------------------------------------

    def _take_told(self, told: Told) -> None:
        for step, metrics in told.reports:
            self._number(step, metrics)

    def _take_last_reports(self) -> None:
        """Reports behind the last step, after which nobody asks."""
        told = self.run.told()
        with self._changed:
            self._take_told(told)

    def _number(self, step: int, metrics: Mapping[str, Any]) -> None:
        if step <= max(self._numbers, default=-1):
            return  # told before, or passed without a report
        number = self.run.base + len(self._numbers) + 1
        self._numbers[step] = number
        report = Report(iteration=number, step=step, metrics=metrics, run_dir=self.run.url)
        self._reports.append(report)
        if number > self._seen:
            self._waiting.append(report)

    def _give(self) -> Report:
        report = self._waiting.popleft()
        self._given_step = max(self._given_step, report.step)
        self._check(report)
        return report

    def _check(self, report: Report) -> None:
        names = set(_flat(report.metrics))
        for metric, who in self._needs.items():
            if metric not in names:
                had = ", ".join(sorted(names - {"step", "epoch", "loss"})) or "no metric of its own"
                raise MetricMissing(
                    f"{who} needs the metric {metric!r}, and trial {self.run.trial} reports "
                    f"without it at step {report.step} (it has: {had}, and step, epoch and loss): "
                    f"add it to each run.report(), or name another metric"
                )

    def _listen(self, timeout_s: float) -> None:
        """Wait for what the workers ask, or for anything else to happen."""
        with self._changed:
            life = self._life
            if life is None:
                if self._end is None and not self._waiting:
                    self._changed.wait(timeout_s)
                return
        ask = life.next_ask(timeout_s)
        if ask is None:
            return
        with self._changed:
            if self._life is life:
                self._ask = ask
            for metrics in ask.reports:
                self._number(int(metrics["step"]), metrics)

    def _answer(self, kind: str) -> None:
        assert self._ask is not None, "looked at by the caller"
        if self._life is not None:
            self._life.decide(self._ask.step, kind)
        if kind == GO_ON:
            self._ask = None

    def _pointer(self, step: int, url: str | None) -> Pointer:
        with self._changed:
            self._saving = False
            if url is None:
                raise CheckpointError(
                    f"trial {self.run.trial}: the checkpoint of step {step} could not be written; "
                    f"why is in {self.run.url}"
                )
            return self._point_to(step, url)

    def _point_to(self, step: int, url: str | None) -> Pointer:
        done = [number for reported, number in self._numbers.items() if reported <= step]
        return Pointer(
            run=self.run.name,
            url=url,
            step=step,
            iteration=max(done, default=self.run.base),
            config=self._digest,
        )

    def _final_pointer(self) -> Pointer:
        if isinstance(self._end, Finished):
            return self._point_to(int(self._end.metrics["step"]), self._end.checkpoint)
        if isinstance(self._end, Exception):
            raise self._end
        # It did not come to save: who goes on with this run finds its newest state.
        return self._point_to(self._given_step, None)

    def _ended(self) -> Ended:
        if isinstance(self._end, Exception):
            raise self._end
        if isinstance(self._end, Ended):
            has_reported = self._reports or self.run.base
            return self._end if has_reported else replace(self._end, lacking=tuple(self._needs))
        if self._needs and not self._reports and not self.run.base:
            metric, who = next(iter(self._needs.items()))
            raise MetricMissing(
                f"{who} needs the metric {metric!r}, and trial {self.run.trial} ended without any "
                "report: call run.report() in the training loop, say after each epoch"
            )
        return Ended()


def _flat(metrics: Mapping[str, Any], above: str = "") -> list[str]:
    """Names as Tune has them: ``a/b`` is ``b`` inside ``a``."""
    names = []
    for name, value in metrics.items():
        names.append(f"{above}{name}")
        if isinstance(value, Mapping):
            names += _flat(value, f"{above}{name}/")
    return names
