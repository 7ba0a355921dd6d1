"""A sweep's progress: a live table on a terminal, plain lines elsewhere.

Tune's hooks say where each trial stands, the sweep's ledger on how many workers, in which
market, after how many preemptions and at what cost. What is shown is a pure function of
both; only `Progress` prints.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ray.tune import Callback

from spotray.ledger.sharing import Bill
from spotray.ledger.sweep import (
    Presence,
    SweepState,
    best_trial,
    metric_of,
    watch_sweep,
)
from spotray.ledger.sweepdir import Folder, SweepReader
from spotray.report.sweep import cost_words, market_words, metric_words, sweep_cost_words

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

log = logging.getLogger(__name__)

_LOOK_S = 1.0  # between two frames, and between two looks for news
_LINE_S = 15.0  # between two lines about progress, where there is no terminal
_REST = 20.0  # times as long as a look takes
_KNOWN_STATES = {
    "PENDING": "pending",
    "RUNNING": "running",
    "PAUSED": "paused",
    "TERMINATED": "ended",
    "ERROR": "failed",
}
# In the table those come first of which there is something to see.
_ORDER = ("running", "waiting", "starting", "paused", "failed", "ended", "pending")
_STYLES = {"running": "green", "waiting": "yellow", "starting": "yellow", "failed": "red"}
_COLUMNS = ("trial", "state", ">step", ">{metric}", ">workers", "market", ">preemptions", ">cost")


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One trial as Tune has it."""

    trial: str
    status: str  # Tune's: PENDING, RUNNING, PAUSED, TERMINATED, ERROR
    step: int | None = None  # of its last report
    metric: float | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """One trial as it is shown."""

    trial: str
    state: str  # pending, starting, waiting, running, paused, ended, failed
    step: int | None
    metric: float | None
    presence: Presence
    bill: Bill

    @property
    def preemptions(self) -> int:
        """With notice and without."""
        return self.presence.preemptions_noticed + self.presence.preemptions_silent


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One picture of a sweep."""

    headline: str
    columns: tuple[str, ...]  # set right if it starts with ">"
    cells: tuple[tuple[str, ...], ...]
    styles: tuple[str, ...]  # of each row's state
    below: str = ""  # about trials that had no room


def standing_of(trial: Any, metric: str | None) -> Standing:
    """What a trial of Tune's says of itself."""
    result = trial.last_result or {}
    step = metric_of(result, "step")
    return Standing(
        trial=str(trial.trial_id),
        status=str(trial.status),
        step=None if step is None else int(step),
        metric=metric_of(result, metric),
    )


def rows(standings: Iterable[Standing], state: SweepState | None) -> list[Row]:
    """Tune's view and the ledger's, put together."""
    found = []
    for one in standings:
        presence = state.presence.get(one.trial) if state is not None else None
        bill = state.cost.trials.get(one.trial) if state is not None else None
        name = _KNOWN_STATES.get(one.status, one.status.lower())
        if name == "running" and state is not None and not (presence and presence.workers):
            name = "starting" if one.step is None else "waiting"
        found.append(
            Row(
                trial=one.trial,
                state=name,
                step=one.step,
                metric=one.metric,
                presence=presence or Presence(),
                bill=bill or Bill(),
            )
        )
    return found


def headline(
    shown: Sequence[Row], state: SweepState | None, *, metric: str | None, mode: str | None
) -> str:
    """A sweep in one line."""
    counts = Counter(row.state for row in shown)
    parts = [", ".join(f"{counts[state]} {state}" for state in _ORDER if counts[state])]
    parts = [parts[0] or "no trial yet"]
    best = best_trial({row.trial: row.metric for row in shown}, mode)
    if best is not None:
        value = next(row.metric for row in shown if row.trial == best)
        parts.append(f"best {metric} {metric_words(value)} ({best})")
    parts.append(f"{sum(row.presence.workers for row in shown)} workers")
    if state is not None:
        parts.append(f"{state.preemptions.noticed + state.preemptions.silent} preemptions")
        parts.append(f"cost {sweep_cost_words(state.cost)}")
    return "; ".join(parts)


def frame(
    shown: Sequence[Row],
    state: SweepState | None,
    *,
    metric: str | None = None,
    mode: str | None = None,
    height: int | None = None,
) -> Frame:
    """The live table.

    Args:
        height: rows that there is room for; None: all.
    """
    order = {state: rank for rank, state in enumerate(_ORDER)}
    ranked = sorted(shown, key=lambda row: order.get(row.state, len(order)))  # else by start
    visible = ranked if height is None else ranked[: max(1, height)]
    hidden = Counter(row.state for row in ranked[len(visible) :])
    below = ", ".join(f"{hidden[state]} {state}" for state in _ORDER if hidden[state])
    best = best_trial({row.trial: row.metric for row in shown}, mode)
    return Frame(
        headline=headline(shown, state, metric=metric, mode=mode),
        columns=tuple(column.format(metric=metric or "metric") for column in _COLUMNS),
        cells=tuple(_cells(row, is_best=row.trial == best) for row in visible),
        styles=tuple(_STYLES.get(row.state, "") for row in visible),
        below=f"and {below}" if below else "",
    )


def news(before: Sequence[Row], after: Sequence[Row], *, metric: str | None) -> list[str]:
    """What happened to trials between two looks, a line each."""
    known = {row.trial: row for row in before}
    lines = []
    for row in after:
        old = known.get(row.trial)
        was = old.state if old is not None else "pending"
        if row.preemptions > (old.preemptions if old is not None else 0):
            lines.append(
                f"trial {row.trial}: {row.preemptions} preemptions so far, "
                f"{row.presence.workers} workers"
            )
        if row.state == was or row.state == "pending":
            continue
        words = f"trial {row.trial} {_VERBS.get(row.state, row.state)}"
        if row.state in ("ended", "failed", "paused") and row.step is not None:
            told = f", {metric} {metric_words(row.metric)}" if metric else ""
            words += f" after step {row.step}{told}, cost {_cost(row)}"
        lines.append(words)
    return lines


_VERBS = {
    "starting": "starts",
    "running": "runs",
    "waiting": "waits for a worker",
    "paused": "is paused",
    "ended": "ended",
    "failed": "failed",
}


class JournalStatus:
    """A sweep's state from its journals, for `Progress`; looked at only now and then.

    That is every few seconds, and so seldom that it keeps no core busy, however much the
    sweep told.
    """

    def __init__(
        self,
        sweep_dir: Folder,
        *,
        every_s: float = 5.0,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """Follow the sweep in a folder.

        Raises:
            ConfigError: the address is wrong.
        """
        self._reader = SweepReader(sweep_dir)
        self._every_s, self._now_s = every_s, now_s
        self._due_s = float("-inf")
        self._state: SweepState | None = None

    def __call__(self) -> SweepState | None:
        """The state as it was at the last look.

        Raises:
            JournalError: storage could not be read.
        """
        now_s = self._now_s()
        if now_s >= self._due_s:
            self._due_s = now_s + self._every_s  # also if storage cannot be read
            self._state = watch_sweep(self._reader.poll(), until_s=now_s)
            self._due_s = now_s + max(self._every_s, _REST * (self._now_s() - now_s))
        return self._state


class Progress(Callback):
    """Shows a sweep while it goes on. Give it to Tune as a callback, and close it after.

    One that was pickled, as Tune does with its callbacks, shows nothing.
    """

    def __init__(
        self,
        status: Callable[[], SweepState | None],
        *,
        metric: str | None = None,
        mode: str | None = None,
        console: Console | None = None,
        look_s: float = _LOOK_S,
        line_s: float = _LINE_S,
    ) -> None:
        """Prepare; the first hook begins to show.

        Args:
            status: the sweep's ledger now, called from a thread of its own; None: nothing
                is known yet. `JournalStatus`, or what answers like it.
            metric: what the sweep optimizes.
            mode: min or max.
            console: where to; default: standard output.
            look_s: between two looks, seconds.
            line_s: between two lines about progress, seconds.
        """
        self._status: Callable[[], SweepState | None] | None = status
        self._metric, self._mode = metric, mode
        self._console = console
        self._look_s, self._line_s = look_s, line_s
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._standings: tuple[Standing, ...] = ()
        self._at_first: tuple[Standing, ...] | None = None
        self._noted_at: float | None = None
        self._state: SweepState | None = None
        self._failing = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_metric": self._metric, "_mode": self._mode}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._status, self._console = None, None
        self._look_s, self._line_s = _LOOK_S, _LINE_S
        self._begin()

    # -- Tune's hooks ----------------------------------------------------------

    def setup(self, *args: Any, **info: Any) -> None:
        """Begin to show; Tune calls this once, before the first trial."""
        if self._status is None or self._thread is not None:
            return
        if self._console is None:
            from rich.console import Console

            self._console = Console()
        work = self._table if self._console.is_terminal else self._lines
        self._stop.clear()
        self._thread = threading.Thread(
            target=work, args=(self._console,), name="progress", daemon=True
        )
        self._thread.start()

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Whatever Tune did in this turn, a report or a start or an end: it is all in here."""
        if self._thread is None:
            return
        now = time.monotonic()  # turns are many, and so may trials be
        if self._noted_at is None or now - self._noted_at >= self._look_s / 2:
            self._noted_at = now
            self._note(trials)

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        """Show how it ended."""
        if self._thread is not None:
            self._note(trials)
            self.close()

    def close(self) -> None:
        """Show the last state and stop; a second call does nothing."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _note(self, trials: Iterable[Any]) -> None:
        standings = tuple(standing_of(trial, self._metric) for trial in trials)
        with self._lock:
            self._standings = standings
            if self._at_first is None:
                self._at_first = standings

    # -- the thread that shows ---------------------------------------------------

    def _look(self) -> tuple[list[Row], SweepState | None]:
        status = self._status
        try:
            if status is not None:
                self._state = status()
            self._failing = False
        except Exception as exc:  # a sweep must not end because it cannot be shown
            if not self._failing:
                log.warning("workers and cost of the sweep are not known for now: %s", exc)
                log.debug("the sweep's status failed", exc_info=True)
            self._failing = True
        with self._lock:
            standings = self._standings
        return rows(standings, self._state), self._state

    def _table(self, console: Console) -> None:
        from rich.live import Live

        with Live(console=console, auto_refresh=False, transient=True) as live:
            while not self._stop.wait(self._look_s):
                live.update(self._picture(max(1, console.height - 6)), refresh=True)
        console.print(self._picture(None))

    def _picture(self, height: int | None) -> RenderableType:
        shown, state = self._look()
        return render(frame(shown, state, metric=self._metric, mode=self._mode, height=height))

    def _lines(self, console: Console) -> None:
        before: list[Row] | None = None
        told_at: float | None = None
        while True:
            last_look = self._stop.wait(self._look_s)
            shown, state = self._look()
            if before is None and self._at_first is not None:
                # What ended before a restore is not news.
                over = [s for s in self._at_first if s.status in ("TERMINATED", "ERROR")]
                before = rows(over, state)
            if before is not None:
                for line in news(before, shown, metric=self._metric):
                    _say(console, line)
                before = shown
            now = time.monotonic()
            if shown and (told_at is None or now - told_at >= self._line_s or last_look):
                told_at = now
                _say(console, headline(shown, state, metric=self._metric, mode=self._mode))
            if last_look:
                return


def render(picture: Frame) -> RenderableType:
    """A frame as rich draws it."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for column in picture.columns:
        table.add_column(
            column.lstrip(">").upper(),
            justify="right" if column[0] == ">" else "left",
            no_wrap=True,
        )
    for cells, style in zip(picture.cells, picture.styles, strict=True):
        table.add_row(
            *(Text(cell, style=style if column == 1 else "") for column, cell in enumerate(cells))
        )
    below = [Text(picture.below, style="dim")] if picture.below else []
    return Group(Text(picture.headline, style="bold"), table, *below)


@contextlib.contextmanager
def quiet_ray() -> Iterator[None]:
    """Keep Tune's own reporter off while the block runs; with ``RunConfig(verbose=0)``.

    Of Tune's two reporters only the older one can be silenced; the newer one prints
    tables and errors at any verbosity.
    """
    before = os.environ.get(_NEW_REPORTER)
    os.environ[_NEW_REPORTER] = "0"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_NEW_REPORTER, None)
        else:
            os.environ[_NEW_REPORTER] = before


_NEW_REPORTER = "RAY_AIR_NEW_OUTPUT"


def _cells(row: Row, *, is_best: bool) -> tuple[str, ...]:
    return (
        row.trial,
        row.state,
        "-" if row.step is None else str(row.step),
        metric_words(row.metric) + ("*" if is_best else " "),
        str(row.presence.workers) if row.presence.workers else "-",
        market_words(row.presence.markets),
        str(row.preemptions) if row.preemptions else "-",
        _cost(row),
    )


def _cost(row: Row) -> str:
    return cost_words(row.bill.money, unseen_nodes=row.bill.unseen_nodes)


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)
