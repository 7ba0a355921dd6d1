"""What a run reports: kept for the case that the one who should tell it is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotray.errors import JournalError
from spotray.events import Reported
from spotray.train.config import SpotConfig
from spotray.train.reporting import Reports
from spotray.train.session import Session
from spotray.train.state import Position
from spotray.train.world import World
from tests.train.jobs import Memory


class Journal(Memory):
    def told(self) -> list[tuple[int, float]]:
        """Steps and losses, since the last time."""
        events, self.events = self.events, []
        return [(e.step, e.metrics["accuracy"]) for e in events if isinstance(e, Reported)]


class Job:
    """A run's reports, and where it is."""

    def __init__(self, folder: Path, *, asks: bool = False) -> None:
        self.position = Position(global_batch_size=4, micro_batch_size=2, seed=0)
        self.journal = Journal()
        session = Session(
            run_id="r1",
            world=World(),
            spot=SpotConfig(),
            store=None,
            shm_dir=folder,
            node_id="n",
            link=None,
            journal=self.journal,
            asks=asks,
        )
        self.reports = Reports(session, self.position)

    def report(self, step: int, accuracy: float, *, asks: bool = True) -> None:
        self.position.step = step
        self.reports.report({"accuracy": accuracy}, asks=asks)


def test_what_storage_does_not_take_now_stops_no_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Out(Journal):
        def flush(self) -> None:
            raise JournalError("storage is out")

    job = Job(tmp_path)
    job.reports._session.journal = Out()
    job.report(5, 0.1)
    job.reports.settle()
    assert "not in the journal yet: storage is out" in caplog.text


def test_who_takes_over_tells_what_the_journal_lacks(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for step, accuracy in [(5, 0.1), (10, 0.2), (10, 0.3), (15, 0.4)]:
        job.report(step, accuracy)
    job.journal.told()
    job.reports.tell_again((10, 1))
    assert job.journal.told() == [(10, 0.3), (15, 0.4)]
    job.reports.tell_again((-1, 0))
    assert [step for step, _ in job.journal.told()] == [5, 10, 10, 15]
    job.reports.tell_again((15, 1))
    assert job.journal.told() == []


def test_steps_that_are_done_again_are_not_told_for_the_first_time(tmp_path: Path) -> None:
    job = Job(tmp_path, asks=True)
    job.report(5, 0.1)
    job.report(10, 0.2)
    job.position.step = 5
    job.reports.forget_undone()
    assert [r["accuracy"] for r in job.reports.unasked] == [0.1]
    job.journal.told()
    job.reports.tell_again((-1, 0))
    assert job.journal.told() == [(5, 0.1)]


def test_only_a_job_that_asks_keeps_questions(tmp_path: Path) -> None:
    quiet, asking = Job(tmp_path), Job(tmp_path, asks=True)
    for job in (quiet, asking):
        job.report(5, 0.1)
        job.report(5, 0.2, asks=False)
    assert quiet.reports.unasked == []
    assert [r["accuracy"] for r in asking.reports.unasked] == [0.1]
