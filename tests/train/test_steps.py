"""Which steps are told, when, and by whom once the one who tells them is lost."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from spotray.events import Event, StepsDone
from spotray.train.config import SpotConfig
from spotray.train.member import Member
from spotray.train.session import Session
from spotray.train.steps import StepLog, StepRecord
from spotray.train.world import World
from tests.train.jobs import Memory


class Nobody:
    """`Calls` of a member that never calls."""

    def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        raise AssertionError(f"{method} was called")


def session_in(folder: Path, *, live: bool = False, run_id: str = "r") -> Session:
    device = torch.device("cpu")
    return Session(
        run_id=run_id,
        world=World(),
        spot=SpotConfig(),
        store=None,
        shm_dir=folder / "shm",
        node_id="n",
        link=None,
        journal=Memory(),
        member=Member(Nobody(), name="w", node_id="n", device=device) if live else None,
    )


def told(session: Session) -> list[StepsDone]:
    assert isinstance(session.journal, Memory)
    events: list[Event] = session.journal.events
    return [e for e in events if isinstance(e, StepsDone)]


def do(log: StepLog, *steps: int) -> None:
    for step in steps:
        log.done(step, samples=8, loss=1 / step)
        log.tell_if_due()


class Time:
    """Training time that a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_the_first_step_is_told_at_once_and_the_next_ones_a_second_later_together(
    tmp_path: Path,
) -> None:
    session, time = session_in(tmp_path), Time()
    log = StepLog(session, World(), now_s=time)
    do(log, 1)
    assert [(e.first_step, e.last_step) for e in told(session)] == [(1, 1)]
    do(log, 2, 3)
    assert len(told(session)) == 1
    time.now_s += 1.0
    do(log, 4)
    (_, group) = told(session)
    assert (group.first_step, group.last_step, group.samples) == (2, 4, 24)
    assert group.loss == 1 / 4
    assert list(group.ended_at_s) == sorted(group.ended_at_s)
    assert len(group.ended_at_s) == 3


def test_a_step_among_new_workers_is_told_at_once(tmp_path: Path) -> None:
    session = session_in(tmp_path)
    log = StepLog(session, World(), now_s=Time())
    do(log, 1)
    log.enter(World(generation=2))
    do(log, 2)
    assert [(e.generation, e.last_step) for e in told(session)] == [(0, 1), (2, 2)]


def test_a_group_is_told_once(tmp_path: Path) -> None:
    session = session_in(tmp_path)
    log = StepLog(session, World(), now_s=Time())
    do(log, 1, 2)
    log.tell()
    log.tell()
    assert [(e.first_step, e.last_step) for e in told(session)] == [(1, 1), (2, 2)]


@pytest.mark.parametrize(("old_rank", "expected"), [(1, [3, 4]), (0, [])])
def test_who_becomes_rank_0_tells_what_the_lost_one_did_not(
    tmp_path: Path, old_rank: int, expected: list[int]
) -> None:
    session = session_in(tmp_path, live=True)
    log = StepLog(session, World(rank=old_rank, size=2, generation=1))
    for step in (1, 2, 3, 4):
        log.done(step, samples=8, loss=None)
    log.enter(World(generation=2), told_step=2)
    events = told(session)
    assert [e.last_step for e in events] == expected
    assert {(e.generation, e.world_size) for e in events} <= {(1, 2)}, "the steps' own"


def test_without_live_recovery_nothing_is_told_twice(tmp_path: Path) -> None:
    session = session_in(tmp_path)
    log = StepLog(session, World(rank=1, size=2))
    do(log, 1, 2)
    log.tell()
    log.enter(World(), told_step=0)
    assert [e.last_step for e in told(session)] == [1, 2]


def test_a_pause_before_a_step_is_no_part_of_its_time(tmp_path: Path) -> None:
    session, time = session_in(tmp_path, live=True), Time()
    log = StepLog(session, World(rank=1, size=2), now_s=time)
    log.done(1, samples=8, loss=None)
    first = log.last
    assert first is not None
    time.now_s += 60.0
    log.begin()
    time.now_s += 2.0
    assert log.done(2, samples=8, loss=None) == 2.0
    second = log.last
    assert second is not None
    assert first.ended_at_s < second.began_at_s <= second.ended_at_s, "it begins with the state"
    log.done(3, samples=8, loss=None)
    assert log.last is not None
    assert log.last.began_at_s == second.ended_at_s


def test_a_step_that_others_did_is_told_and_remembered(tmp_path: Path) -> None:
    session = session_in(tmp_path, live=True)
    log = StepLog(session, World())
    theirs = StepRecord(1, 7, samples=8, began_at_s=10, ended_at_s=12, world_size=3, loss=0.5)
    log.tell_for_others(theirs)
    assert log.last == theirs
    assert told(session) == [
        StepsDone(
            at_s=12,
            generation=1,
            first_step=7,
            last_step=7,
            seconds=2,
            samples=8,
            world_size=3,
            loss=0.5,
            ended_at_s=(12,),
        )
    ]


def test_the_nodes_next_process_and_the_lab_read_how_far_this_one_came(tmp_path: Path) -> None:
    log = StepLog(session_in(tmp_path), World())
    assert log.reached == 0
    for step in (1, 2, 300):
        log.done(step, samples=8, loss=None)
    assert StepLog(session_in(tmp_path), World()).reached == 300
    (file,) = (tmp_path / "shm").glob("progress-*")
    assert int.from_bytes(file.read_bytes()[:8], "little", signed=True) == 300
    log.stand_at(200)
    assert log.reached == 200, "a state that was restored may be older"


def test_each_worker_of_a_node_has_a_file_of_its_own(tmp_path: Path) -> None:
    logs = [StepLog(session_in(tmp_path), World(local_rank=i)) for i in range(2)]
    logs[0].stand_at(5)
    assert [log.reached for log in logs] == [5, 0]
    logs[1].enter(World(local_rank=0))
    assert logs[1].reached == 5


def test_the_last_job_on_a_node_removes_the_folder(tmp_path: Path) -> None:
    logs = [StepLog(session_in(tmp_path, run_id=name), World()) for name in "ab"]
    logs[0].remove()
    assert os.listdir(tmp_path / "shm") == ["progress-b-0"]
    logs[1].remove()
    assert os.listdir(tmp_path) == []


def test_outside_of_a_trainer_nothing_is_kept() -> None:
    log = StepLog(None, World())
    seconds = [log.done(step, samples=8, loss=None) for step in (1, 2)]
    log.tell()
    log.remove()
    assert min(seconds) >= 0
    assert (log.reached, log.last) == (0, None)


def test_a_worker_remembers_more_steps_than_a_lost_one_can_leave_untold(tmp_path: Path) -> None:
    session = session_in(tmp_path, live=True)
    log = StepLog(session, World(rank=1, size=2))
    for step in range(1, 201):
        log.done(step, samples=8, loss=None)
    log.enter(World(), told_step=0)
    steps = [e.last_step for e in told(session)]
    assert steps == list(range(1, 201))
    for before, after in itertools.pairwise(told(session)):
        assert after.at_s - after.seconds == pytest.approx(before.at_s)
