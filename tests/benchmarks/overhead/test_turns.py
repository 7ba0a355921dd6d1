"""Sides that take turns. The workers here are threads that do nothing in a step."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from benchmarks.overhead.turns import Broken, Conductor, Turns

WORKERS = 2
SIDES = ("plain", "ours")


class Job:
    """Workers of all sides, and what they did in which order."""

    def __init__(self, port: int) -> None:
        self.done: list[str] = []
        self.threads = [
            threading.Thread(target=self._work, args=(port, side, rank), daemon=True)
            for side in SIDES
            for rank in range(WORKERS)
        ]
        for thread in self.threads:
            thread.start()

    def _work(self, port: int, side: str, rank: int) -> None:
        turns = Turns(port, side=side, rank=rank)
        while turns.step():
            self.done.append(side)

    def join(self) -> None:
        for thread in self.threads:
            thread.join(10)
            assert not thread.is_alive()


@pytest.fixture
def ended() -> list[str]:
    """Why the jobs ended; a test adds to it."""
    return []


@pytest.fixture
def conductor(ended: list[str]) -> Iterator[Conductor]:
    made = Conductor(SIDES, WORKERS, why_ended=lambda: "".join(ended))
    yield made
    made.close()


def test_only_the_side_whose_turn_it_is_makes_steps(conductor: Conductor) -> None:
    job = Job(conductor.port)
    conductor.gather(10)
    assert job.done == []
    turn = conductor.turn("ours", 3, timeout_s=10)
    assert job.done == ["ours"] * 3 * WORKERS
    assert len(turn.steps_s) == 3
    assert 0 < sum(turn.steps_s) <= turn.seconds + 1e-6
    conductor.turn("plain", 2, timeout_s=10)
    conductor.turn("ours", 1, timeout_s=10)
    counts = {side: job.done.count(side) for side in SIDES}
    assert counts == {"plain": 2 * WORKERS, "ours": 4 * WORKERS}
    conductor.close()
    job.join()


def test_workers_that_do_not_come_are_named(conductor: Conductor) -> None:
    alone = threading.Thread(target=Turns(conductor.port, side="ours", rank=0).step, daemon=True)
    alone.start()
    with pytest.raises(Broken, match="plain 0, ours 1 of 2"):
        conductor.gather(0.5)


def test_a_job_that_ended_ends_the_wait(conductor: Conductor, ended: list[str]) -> None:
    ended.append("ours-0 ended with code 1")
    with pytest.raises(Broken, match="ours-0 ended with code 1"):
        conductor.gather(60)


def test_a_worker_that_goes_away_in_its_turn_is_told(conductor: Conductor) -> None:
    def leave_after_one_step() -> None:
        turns = Turns(conductor.port, side="ours", rank=1)
        turns.step()
        turns.close()

    others = [Turns(conductor.port, side="plain", rank=rank) for rank in range(WORKERS)]
    others.append(Turns(conductor.port, side="ours", rank=0))
    for work in (leave_after_one_step, *(one.step for one in others)):
        threading.Thread(target=work, daemon=True).start()
    conductor.gather(10)
    with pytest.raises(Broken, match="ours lost a worker"):
        conductor.turn("ours", 2, timeout_s=10)
