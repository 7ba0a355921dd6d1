"""What a run tells of itself: metrics on the way, warnings, and that training is done."""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from spotray.errors import ConfigError, JournalError
from spotray.events import Reported, TrainingDone, Warned
from spotray.train.session import Session
from spotray.train.state import Position

log = logging.getLogger(__name__)

_KEPT_REPORTS = 64  # that a survivor can tell in place of a lost rank 0


class Reports:
    """The metrics of one worker's run.

    Args:
        session: The job around this worker; None outside of a trainer, where metrics
            go into the log.
        position: Of the run.
    """

    def __init__(self, session: Session | None, position: Position) -> None:
        self._session = session
        self._position = position
        self._reported: dict[str, Any] = {}
        self._recent: deque[Reported] = deque(maxlen=_KEPT_REPORTS)
        self.unasked: list[Mapping[str, Any]] = []  # since the last decision whether to go on
        self.final: dict[str, Any] = {}  # of the end, once it is told

    def report(self, metrics: Mapping[str, Any], *, asks: bool) -> dict[str, Any]:
        """Tell metrics of now; what was told, which has epoch, step and loss too.

        Args:
            metrics: The user's.
            asks: It is a reason to ask whether to go on.

        Raises:
            ConfigError: one is no number, string or list of them.
        """
        now = self._position
        full = _plain({**metrics, "epoch": now.epoch, "step": now.step, "loss": now.loss})
        self._reported = full
        if self._session is None:
            log.info("epoch %d, step %d: %s", now.epoch, now.step, full)
            return full
        told = Reported(at_s=time.time(), step=now.step, epoch=now.epoch, metrics=full)
        self._recent.append(told)
        self._session.journal.append(told)
        if self._session.asks and asks:
            self.unasked.append(full)
        self._hand_over(full, None)
        return full

    def tell_again(self, told: tuple[int, int]) -> None:
        """Tell the journal what a lost rank 0 may not have told.

        Args:
            told: Step of the last report in the journal, and how many there are of it.
        """
        assert self._session is not None, "outside of a trainer nobody is told"
        step, count = told
        for one in self._recent:
            if one.step == step and count:
                count -= 1
            elif one.step >= step:
                self._session.journal.append(one)

    def forget_undone(self) -> None:
        """The state went back: reports of steps that will be done again do not count."""
        step = self._position.step
        self._recent = deque((r for r in self._recent if r.step <= step), maxlen=_KEPT_REPORTS)
        self.unasked = [r for r in self.unasked if r["step"] <= step]

    def settle(self) -> None:
        """Return when what was told is in storage: this job's processes may all be lost next.

        Who decides whether to go on hears of a report by another way, and no state behind
        it makes the report again.
        """
        assert self._session is not None, "outside of a trainer nobody is told"
        try:
            self._session.journal.flush()
        except JournalError as exc:  # storage is out: training goes on, as for any fact
            log.warning("the last reports are not in the journal yet: %s", exc)

    def done(self, weights_sha256: str) -> None:
        """Tell that training is done, in the journal."""
        assert self._session is not None, "outside of a trainer nobody is told"
        now = self._position
        self.final = {
            **self._reported,
            "step": now.step,
            "loss": now.loss if now.loss is not None else self._reported.get("loss"),
            "weights_sha256": weights_sha256,
        }
        journal = self._session.journal
        journal.append(
            TrainingDone(
                at_s=time.time(),
                step=now.step,
                weights_sha256=weights_sha256,
                metrics=self.final,
            )
        )
        try:
            journal.flush()
        except JournalError as exc:  # the checkpoint is committed: that is what counts
            log.warning("the end of training is not in the journal yet: %s", exc)

    def hand_over_final(self, checkpoint: str | None) -> None:
        """Hand the last metrics, with the last checkpoint's path, to who asked for the run."""
        self._hand_over(self.final, checkpoint)

    def _hand_over(self, metrics: Mapping[str, Any], checkpoint: str | None) -> None:
        if self._session is not None and self._session.link is not None:
            self._session.link.report(metrics, checkpoint)


def teller(session: Session | None) -> Callable[[str], None]:
    """Puts a warning into the log, and among the facts."""

    def tell(what: str) -> None:
        log.warning("%s", what)
        if session is not None:
            session.journal.append(Warned(at_s=time.time(), what=what))

    return tell


def _plain(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics as JSON has them: numpy's and torch's numbers become Python's."""
    try:
        plain: dict[str, Any] = json.loads(json.dumps(metrics, default=float))
    except (TypeError, ValueError) as exc:
        raise ConfigError(
            f"run.report() got a metric that is no number, string or list of them: {exc}"
        ) from exc
    return plain
