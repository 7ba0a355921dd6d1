"""Follows a run's journal and tells its trackers, beside the training and never in its way."""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from spotray.events import Event
from spotray.ledger.rundir import RunEvents, RunReader
from spotray.ledger.summary import RunSummary, job_state, summarize
from spotray.storage import Store
from spotray.track.facts import Kept, Note, Notes, Point, Told, points, standing, untold
from spotray.track.tracker import Tracker

log = logging.getLogger(__name__)

LOCAL_LOOK_S, OBJECT_LOOK_S = 5.0, 30.0  # between two looks; every look at a bucket is paid
_REST = 20.0  # times as long as a look computes
_END_S = 60.0  # for all trackers to get the last facts


@dataclass(kw_only=True)
class _Listener:
    """One tracker, and what it was told."""

    tracker: Tracker
    told: Told
    points: list[Point] = field(default_factory=list)  # still to be told
    notes: list[Note] = field(default_factory=list)
    has_begun: bool = False
    failing: bool = False


class Following:
    """Tells trackers what a run's journal says, from a thread of its own.

    What is told is noted in the run's folder *before* it is told, so that a driver that dies in
    between leaves out a look's points rather than write steps twice. The journal has them all.
    """

    def __init__(
        self,
        run_dir: Store,
        marks: Store,
        trackers: Sequence[Tracker],
        *,
        show: Callable[[RunSummary], None] | None = None,
        look_s: float | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """Nothing is read yet.

        Args:
            run_dir: the run's folder.
            marks: where it is kept what was told.
            trackers: each is told everything.
            show: gets the run at a glance after each look.
            look_s: between two looks, seconds; None: by the kind of storage.
            now_s: Unix seconds.
        """
        self._run_dir, self._marks, self._show, self._now_s = run_dir, marks, show, now_s
        default_s = LOCAL_LOOK_S if run_dir.can_append else OBJECT_LOOK_S
        self._look_s = default_s if look_s is None else look_s
        self._listeners = [_Listener(tracker=one, told=_read(marks, one.name)) for one in trackers]
        self._reader: RunReader | None = None
        self._kept, self._notes = Kept(), Notes()
        self._cannot_read = self._cannot_show = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look."""
        self._thread = threading.Thread(target=self._work, name="tracking", daemon=True)
        self._thread.start()

    def close(self, status: str, *, timeout_s: float = _END_S) -> None:
        """Tell the last facts and how the job ended; a tracker that hangs is left behind.

        Args:
            status: finished, failed or interrupted.
            timeout_s: for all of them, seconds.
        """
        self._stop.set()
        last = threading.Thread(target=self._end, args=(status,), name="tracking-end", daemon=True)
        last.start()
        last.join(timeout_s)
        if last.is_alive():
            names = ", ".join(one.tracker.name for one in self._listeners)
            log.warning("%s did not take the last facts in %.0f s: left behind", names, timeout_s)

    def look(self) -> None:
        """One look: read what is new, and tell it."""
        fresh = self._news()
        self._kept.add(fresh)
        events = self._kept.events()
        if not events:
            return
        goes_on = job_state(events)[0] == "running"
        run = RunEvents(run_dir=self._run_dir.url, events=events, journals=())
        summary = summarize(run, until_s=self._now_s() if goes_on else None)
        if self._show is not None:
            try:
                self._show(summary)
            except Exception as exc:  # no metric is worth a tracker's facts, or the job
                if not self._cannot_show:
                    log.warning("no metrics of this job for now: %s", exc, exc_info=True)
                self._cannot_show = True
        found = [*points(fresh), *standing(summary)]
        notes = list(self._notes.of(fresh))
        for one in self._listeners:
            one.points += found
            one.notes += notes
            self._tell(one)

    def _work(self) -> None:
        wait_s = self._look_s
        while not self._stop.wait(wait_s):
            began_s = time.thread_time()  # a server that is slow costs this process nothing
            self._look()
            wait_s = max(self._look_s, _REST * (time.thread_time() - began_s))

    def _look(self) -> None:
        try:
            self.look()
        except Exception:  # a job goes on, and ends well, also where nobody can be told of it
            log.warning("some facts of %s are not tracked", self._run_dir.url, exc_info=True)

    def _end(self, status: str) -> None:
        if self._thread is not None:
            self._thread.join()
        self._look()
        for one in self._listeners:
            if one.has_begun:
                try:
                    one.tracker.end(status)
                except Exception as exc:  # how the job ended is the job's to say
                    log.warning("%s did not take the job's end: %s", one.tracker.name, exc)

    def _news(self) -> list[Event]:
        try:
            if self._reader is None:
                self._reader = RunReader(self._run_dir)
            fresh = self._reader.news()
        except Exception as exc:  # the loop must live: storage comes back
            if not self._cannot_read:
                log.warning("trackers hear nothing of %s for now: %s", self._run_dir.url, exc)
            self._cannot_read = True
            return []
        self._cannot_read = False
        return fresh

    def _tell(self, one: _Listener) -> None:
        known = set(one.told.notes)
        one.points = untold(one.points, one.told)
        one.notes = [note for note in one.notes if note.key not in known]
        before, name = one.told, one.tracker.name
        after = _with(before, one.points, one.notes)
        noted = False
        try:
            if not one.has_begun:
                where = one.tracker.begin()
                one.has_begun = True
                log.info("tracked: %s", where)
            if one.points or one.notes:
                noted = True
                _write(self._marks, name, after)
                one.tracker.tell(one.points, one.notes, rows=before.rows)
        except Exception as exc:  # training must not end because it cannot be tracked
            words = " ".join(str(exc).split())[:300] or repr(exc)
            if not one.failing:
                log.warning("%s does not take the run's facts, and is asked again: %s", name, words)
                log.debug("%s failed", name, exc_info=True)
            one.failing = True
            if noted:
                self._take_back(one)
            return
        if one.failing:
            log.info("%s takes the run's facts again", name)
        one.failing, one.told, one.points, one.notes = False, after, [], []

    def _take_back(self, one: _Listener) -> None:
        """What failed was not told: a driver that dies now tells it at its next start."""
        try:
            _write(self._marks, one.tracker.name, one.told)
        except Exception as exc:  # storage is out too: then these points may be left out
            log.debug("%s: %s", self._marks.url, exc)


def _with(told: Told, points: Sequence[Point], notes: Sequence[Note]) -> Told:
    after = Told(steps=dict(told.steps), notes=list(told.notes), rows=told.rows)
    after.add(points, notes)
    return after


def _read(marks: Store, name: str) -> Told:
    """What a tracker was told by earlier starts of the run."""
    try:
        raw = json.loads(marks.read(f"{name}.json"))
        return Told(
            steps={str(series): int(step) for series, step in raw["steps"].items()},
            notes=[str(key) for key in raw["notes"]],
            rows=int(raw["rows"]),
        )
    except FileNotFoundError:
        return Told()
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        log.warning("%s/%s.json is damaged (%r): told anew", marks.url, name, exc)
        return Told()


def _write(marks: Store, name: str, told: Told) -> None:
    marks.write(f"{name}.json", json.dumps(dataclasses.asdict(told)).encode())
