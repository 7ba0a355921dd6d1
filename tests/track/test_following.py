"""A run's journal on its way to trackers, also when they, storage or the driver fail."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from spotray.events import Event, NodeUp, Reported, StepsDone
from spotray.ledger.journal import JournalWriter
from spotray.ledger.rundir import job_journal
from spotray.ledger.summary import RunSummary
from spotray.storage import Store
from spotray.track.facts import Note, Point
from spotray.track.fake import FakeTracker
from spotray.track.following import Following
from tests.ledger.story import Story


class Job:
    """A run's folder with a journal that grows, and who follows it."""

    def __init__(self, folder: Path) -> None:
        self.home = Store.at(folder)
        self.marks = self.home.child("spotray", "tracking")
        self.story = Story()
        self.tracker = FakeTracker()
        self._written = 0

    def trains(self, steps: int) -> None:
        if not self.story.events:
            self.story.node_up("n1", "n2")
            self.story.job_starts()
            self.story.group("n1", "n2", restored=0, source="fresh")
        self.story.steps(steps)
        self.write()

    def write(self) -> None:
        fresh = self.story.events[self._written :]
        with JournalWriter(job_journal(self.home), writer=f"w{self._written}") as out:
            for event in fresh:
                out.append(event)
        self._written = len(self.story.events)

    def following(self, *trackers: FakeTracker) -> Following:
        return Following(
            self.home, self.marks, trackers or [self.tracker], now_s=lambda: self.story.now_s
        )


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path / "run")


def test_nothing_is_told_before_there_is_a_journal_and_all_of_it_then(job: Job) -> None:
    following = job.following()
    following.look()
    assert not job.tracker.begun
    job.trains(8)
    following.look()
    assert job.tracker.steps("train/loss") == [4, 8]
    following.look()
    assert job.tracker.steps("train/loss") == [4, 8]
    assert job.tracker.begun == 1


def test_what_a_failing_tracker_missed_it_gets_later_each_point_once(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    following = job.following()
    job.trains(8)
    following.look()
    job.tracker.fails = True
    for _ in range(3):
        job.trains(4)
        following.look()
    job.tracker.fails = False
    following.look()
    assert job.tracker.steps("train/loss") == [4, 8, 12, 16, 20]
    warnings = [one.message for one in caplog.records if one.levelno == logging.WARNING]
    assert warnings == [
        "fake does not take the run's facts, and is asked again: the tracker's server is away"
    ]
    assert "fake takes the run's facts again" in caplog.messages


def test_a_driver_that_dies_while_a_tracker_is_away_tells_it_at_its_next_start(job: Job) -> None:
    job.trains(8)
    job.tracker.fails = True
    job.following().look()
    job.tracker.fails = False
    job.following().look()  # of the next driver
    assert job.tracker.steps("train/loss") == [4, 8]


def test_a_driver_that_dies_while_it_tells_writes_no_step_twice(job: Job) -> None:
    class Dies(FakeTracker):
        def tell(self, points: Sequence[Point], notes: Sequence[Note], *, rows: int) -> None:
            super().tell(points, notes, rows=rows)
            raise KeyboardInterrupt  # nobody takes the note of it back, as when a process ends

    job.trains(8)
    dying = Dies()
    with pytest.raises(KeyboardInterrupt):
        job.following(dying).look()
    assert dying.steps("train/loss") == [4, 8]
    job.trains(4)
    job.following().look()
    assert job.tracker.steps("train/loss") == [12]
    assert job.tracker.rows == [len(dying.points) + len(dying.notes)]


def test_one_tracker_that_fails_keeps_nothing_from_the_others(job: Job) -> None:
    away = FakeTracker()
    away.name, away.fails = "away", True
    job.trains(4)
    job.following(away, job.tracker).look()
    assert job.tracker.steps("train/loss") == [4]


def test_a_line_that_comes_late_makes_no_step_go_back(job: Job) -> None:
    following = job.following()
    job.trains(8)
    following.look()
    late = Reported(at_s=job.story.now_s - 2, step=6, epoch=0, metrics={"accuracy": 0.5})
    job.story.note(late)
    job.story.note(Reported(at_s=job.story.now_s, step=8, epoch=1, metrics={"accuracy": 0.6}))
    done = next(e for e in job.story.events if isinstance(e, StepsDone) and e.last_step == 4)
    job.story.note(StepsDone(**{**vars(done), "at_s": done.at_s + 0.1}))
    job.write()
    following.look()
    assert job.tracker.steps("train/loss") == [4, 8]
    assert job.tracker.steps("accuracy") == [6, 8]


def test_damaged_marks_are_told_of_and_begin_anew(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    job.marks.write("fake.json", b'{"steps": 3}')
    job.trains(4)
    job.following().look()
    assert job.tracker.steps("train/loss") == [4]
    assert "fake.json is damaged" in caplog.text


def test_the_end_tells_the_last_facts_and_how_it_ended(job: Job) -> None:
    following = job.following()
    following.start()  # its first look is seconds away
    job.trains(4)
    job.story.done()
    job.write()
    following.close("finished")
    assert job.tracker.steps("train/loss") == [4]
    assert job.tracker.ended == "finished"
    assert job.tracker.notes[-1].text == "job vit finished"


def test_a_tracker_that_hangs_at_the_end_is_left_behind(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()

    class Hangs(FakeTracker):
        def end(self, status: str) -> None:
            release.wait()

    job.trains(4)
    job.following(Hangs()).close("finished", timeout_s=0.1)
    release.set()
    assert "left behind" in caplog.text


def test_metrics_that_fail_are_told_of_once_and_trackers_go_on(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    def show(summary: RunSummary) -> None:
        raise RuntimeError("no metrics agent")

    following = Following(job.home, job.marks, [job.tracker], show=show)
    for _ in range(2):
        job.trains(4)
        following.look()
    assert job.tracker.steps("train/loss") == [4, 8]
    assert caplog.text.count("no metrics of this job for now: no metrics agent") == 1


def test_the_clusters_journal_is_followed_as_well(tmp_path: Path) -> None:
    from dataclasses import replace

    from spotray.events import JobStarted

    job = Job(tmp_path / "run")
    nodes = Store.at(tmp_path / "nodes")
    job.story.job_starts()
    started = job.story.events.pop()
    assert isinstance(started, JobStarted)
    job.story.note(replace(started, cluster_journal=nodes.url))
    job.story.group("n1", restored=0, source="fresh")
    job.story.steps(4)
    up: list[Event] = []
    other = Story()
    other.node_up("n1")
    up += [event for event in other.events if isinstance(event, NodeUp)]
    with JournalWriter(nodes, writer="agent") as out:
        for event in up:
            out.append(event)
    job.write()
    job.following().look()
    assert [p.value > 0 for p in job.tracker.points if p.series == "spotray/cost_usd"] == [True]
