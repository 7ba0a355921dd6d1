"""Workers that are all on one node: with the node goes their memory, but not all copies of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from spotray.events import Restored, SnapshotTaken, StepsDone, Warned, WorkerGroupLost
from tests.train.live_jobs import train_loop
from tests.train.live_pool import CONTEXT, LivePool
from tests.train.test_live import STEP_S, check, of, restored, undisturbed, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

EPOCHS = 6
SNAPSHOT_S = 0.4
# A step ends before a snapshot is due, takes it with the next one, and that one is copied
# beside the one after.
MOST_REDONE = round(SNAPSHOT_S / STEP_S) + 2


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    """The result of an undisturbed run."""
    with ProcessPoolExecutor(max_workers=1, mp_context=CONTEXT) as process:
        return process.submit(undisturbed, {"epochs": EPOCHS}).result()


@pytest.fixture
def pools(tmp_path: Path) -> Iterator[Callable[..., LivePool]]:
    made: list[LivePool] = []

    def make(*, copies: bool, workers: tuple[int, int] = (1, 1)) -> LivePool:
        pool = LivePool(
            tmp_path,
            train_loop,
            {"step_s": STEP_S, "epochs": EPOCHS},
            workers=workers,
            # No checkpoint before the end: only memory can help.
            spot={
                "snapshot_interval_s": SNAPSHOT_S,
                "checkpoint_interval_s": 3600.0,
                "save_cost_frac": 0.9,  # steps as short as these cannot afford the interval
            },
            copies=copies,
        )
        made.append(pool)
        return pool

    yield make
    for pool in made:
        pool.close()
        print(*(e for e in pool.events if not isinstance(e, StepsDone)), sep="\n")
        print(pool.outcomes)


def lose(pool: LivePool, node: str) -> None:
    """The node's processes and its memory go at once; until the coordinator knows."""
    before = len(of(pool, WorkerGroupLost))
    for name in pool.members():
        assert pool.node_of(name) == node
        pool.kill(name)
    shutil.rmtree(pool.shm_of(node))
    pool.wait_for(WorkerGroupLost, before + 1)


def test_a_single_worker_whose_node_is_lost_repeats_no_more_than_a_snapshots_interval(
    pools: Callable[..., LivePool], expected: dict[str, Any]
) -> None:
    pool = pools(copies=True)
    for number, step in enumerate((8, 18)):
        pool.start(1, node=f"n{number}")
        pool.wait_for_step(step)
        lose(pool, f"n{number}")
    pool.start(1, node="n2")
    check(pool, expected, finish=1, redone=2 * MOST_REDONE)
    for again, before in zip(of(pool, Restored)[1:], (8, 18), strict=True):
        assert again.source == "snapshot"
        assert 0 <= again.reached_step - again.step <= MOST_REDONE
        assert again.step >= before - MOST_REDONE
    assert not of(pool, Warned)
    assert not list(pool.shm_of("n2").glob("*/brought")), "what was brought takes memory twice"


def test_without_a_copy_it_begins_anew(
    pools: Callable[..., LivePool], expected: dict[str, Any]
) -> None:
    pool = pools(copies=False)
    pool.start(1, node="n0")
    pool.wait_for_step(8)
    lose(pool, "n0")
    pool.start(1, node="n1")
    check(pool, expected, finish=1, redone=20)
    assert restored(pool)[1] == (0, "fresh")


def test_two_workers_of_one_node_are_lost_together_and_of_two_nodes_need_no_copy(
    pools: Callable[..., LivePool], expected: dict[str, Any]
) -> None:
    pool = pools(copies=True, workers=(2, 2))
    assert pool.shelf is not None
    pool.start(2, node="n0")
    until(pool, lambda: pool.shelf is not None and pool.shelf.has("r1"))
    pool.wait_for_step(6)
    lose(pool, "n0")
    pool.start(1, node="n1")
    pool.start(1, node="n2")
    pool.wait_for(Restored, 2)
    again = of(pool, Restored)[1]
    assert again.source == "snapshot"
    assert again.step >= 6 - MOST_REDONE
    copied = sorted(pool.shm_of("head").glob("r1/copies/slot-*.json"))
    told = [path.read_bytes() for path in copied]
    taken = len(of(pool, SnapshotTaken))
    pool.wait_for(SnapshotTaken, taken + 2)
    assert [path.read_bytes() for path in copied] == told, "their nodes are not lost together"
    check(pool, expected, finish=2, redone=MOST_REDONE)
