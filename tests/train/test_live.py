"""Live workers through what can happen to them: the same bits, and nothing done twice."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from spotray.events import (
    CheckpointCommitted,
    EpochAudited,
    Restored,
    StepsDone,
    TrainingDone,
    WorkerGroupLost,
)
from tests.train.live_faults import faulty_loop
from tests.train.live_jobs import train_loop
from tests.train.live_pool import CONTEXT, LivePool

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

STEPS_PER_EPOCH = 5
STEP_S = 0.2


def undisturbed(config: dict[str, Any]) -> dict[str, Any]:
    """The result of the same loop in one process."""
    torch.set_num_threads(1)
    result: dict[str, Any] = {}
    train_loop({**config, "result": result})
    return result


@pytest.fixture(scope="module")
def reference() -> Iterator[Callable[..., dict[str, Any]]]:
    """The result of an undisturbed run."""
    with ProcessPoolExecutor(max_workers=1, mp_context=CONTEXT) as process:

        @functools.cache
        def run(**config: Any) -> dict[str, Any]:
            return process.submit(undisturbed, config).result()

        yield run


@pytest.fixture
def pools(tmp_path: Path) -> Iterator[Callable[..., LivePool]]:
    made: list[LivePool] = []

    def make(*, faults: bool = False, workers: tuple[int, int] = (1, 4), **config: Any) -> LivePool:
        loop = faulty_loop if faults else train_loop
        spot = {"snapshot_interval_s": 0.4, "checkpoint_interval_s": 1.0}
        pool = LivePool(tmp_path, loop, {"step_s": STEP_S, **config}, workers=workers, spot=spot)
        made.append(pool)
        return pool

    yield make
    for pool in made:
        pool.close()
        print(*(e for e in pool.events if not isinstance(e, StepsDone)), sep="\n")
        print(pool.outcomes)


def of(pool: LivePool, kind: type) -> list[Any]:
    return [e for e in pool.events if isinstance(e, kind)]


def check(
    pool: LivePool,
    expected: dict[str, Any],
    *,
    finish: int | None = None,
    redone: int | None = None,
) -> None:
    """All that must be as in a run that nobody disturbed.

    Args:
        pool: Whose job is to end.
        expected: The undisturbed result.
        finish: How many workers must get to the end; default: any number.
        redone: How many steps may be done again; default: one for each loss.
    """
    ended = pool.finished()
    for one in ended:
        assert {name: one[name] for name in expected} == expected
    assert finish is None or len(ended) == finish
    steps = expected["step"]
    done = Counter(
        step for e in of(pool, StepsDone) for step in range(e.first_step, e.last_step + 1)
    )
    assert sorted(done) == list(range(1, steps + 1)), "the journal's steps"
    again = sum(count - 1 for count in done.values())
    assert again <= (len(of(pool, WorkerGroupLost)) if redone is None else redone)
    audited = {e.epoch: e.exactly_once for e in of(pool, EpochAudited)}
    assert audited == dict.fromkeys(range(steps // STEPS_PER_EPOCH), True)
    assert of(pool, TrainingDone)[-1].weights_sha256 == expected["sha256"]


def until(pool: LivePool, happened: Callable[[], bool]) -> None:
    """Wait for something that the pool's own threads see."""
    with pool._stepped:
        assert pool._stepped.wait_for(happened, 60)


def restored(pool: LivePool) -> list[tuple[int, str]]:
    return [(e.step, e.source) for e in of(pool, Restored)]


def test_a_step_that_only_some_have_done_counts_for_all(
    pools: Callable[..., LivePool], reference: Callable[..., dict[str, Any]]
) -> None:
    splits = [(2, 1), (4, 2), (9, 1), (14, 1)]  # two at an epoch's end, one at the job's
    pool = pools(faults=True, epochs=3, model="conv", split=splits)
    pool.start(3)
    check(pool, reference(epochs=3, model="conv"), finish=3, redone=0)
    assert restored(pool)[1:] == [(s + 1, "peers") for s, _ in splits]


def test_also_where_rank_0_has_not_done_it(
    pools: Callable[..., LivePool], reference: Callable[..., dict[str, Any]]
) -> None:
    splits = [(2, 0), (4, 0), (9, 0)]
    pool = pools(faults=True, epochs=2, split=splits)
    pool.start(2)
    check(pool, reference(epochs=2), finish=2, redone=0)
    assert restored(pool)[1:] == [(s + 1, "peers") for s, _ in splits]


def test_losses_one_after_the_other_even_while_connecting(
    pools: Callable[..., LivePool], reference: Callable[..., dict[str, Any]]
) -> None:
    # Long enough for the new one to come, also where its imports take a while.
    pool = pools(faults=True, epochs=8, amp="scaler", dies_connecting=(2, "w2"))
    pool.start(4)
    pool.wait_for_step(3)
    pool.kill(next(n for n in pool.members() if n != "w2"))
    (new,) = pool.start(1)
    check(pool, reference(epochs=8, amp="scaler"), finish=3)
    assert pool.outcomes[new]["kind"] == "finished"
    assert all(source != "fresh" for _, source in restored(pool)[1:])


def test_a_frozen_member_is_left_and_writes_nothing_when_it_wakes(
    pools: Callable[..., LivePool], reference: Callable[..., dict[str, Any]]
) -> None:
    pool = pools(epochs=6)
    pool.start(3)
    pool.wait_for_step(3)
    first = pool.members()[0]
    pool.freeze(first)
    pool.wait_for_step(8, size=2)
    pool.thaw(first)
    assert pool.wait_for_outcomes(1)[first]["kind"] == "left"
    check(pool, reference(epochs=6), finish=2)
    generations = {e.generation for e in of(pool, StepsDone) if e.world_size == 3}
    assert generations == {1}


def test_one_that_froze_alone_ends_when_it_wakes(
    pools: Callable[..., LivePool], reference: Callable[..., dict[str, Any]]
) -> None:
    pool = pools(epochs=6, step_s=0.4)
    (alone,) = pool.start(1)
    until(pool, lambda: bool(of(pool, CheckpointCommitted)))
    pool.freeze(alone)
    pool.start(1)
    saved = of(pool, CheckpointCommitted)[-1].step
    pool.wait_for_step(saved + 4, timeout_s=90)
    told = len(of(pool, CheckpointCommitted))
    pool.thaw(alone)
    until(pool, lambda: alone in pool.outcomes)
    assert pool.outcomes[alone]["kind"] == "left"
    assert told <= len(of(pool, CheckpointCommitted))
    check(pool, reference(epochs=6), finish=1, redone=20)


def test_when_all_are_lost_the_next_go_on_from_the_checkpoint(
    pools: Callable[..., LivePool], reference: Callable[..., dict[str, Any]]
) -> None:
    pool = pools(faults=True, epochs=5, amp="bf16", dies_restoring=(2, "w3"))
    pool.start(2)
    until(pool, lambda: bool(of(pool, CheckpointCommitted)))
    for name in pool.members():
        pool.kill(name)
    pool.start(3)
    check(pool, reference(epochs=5, amp="bf16"), finish=2, redone=20)
    (again,) = restored(pool)[1:]
    assert again[1] == "checkpoint"
    assert again[0] > 0


def test_notices_growth_waiting_and_a_restart_of_the_coordinator(
    pools: Callable[..., LivePool], reference: Callable[..., dict[str, Any]]
) -> None:
    pool = pools(epochs=12, workers=(2, 3))
    pool.start(2)
    pool.wait_for_step(3)
    pool.start(1)
    pool.wait_for_step(5, size=3)
    first = pool.members()[0]
    pool.notice(first, seconds=0.5)  # nobody takes over, and two are left
    until(pool, lambda: first not in pool.members())
    step = pool.assembly.progress.step
    pool.wait_for_step(step + 2, size=2)
    pool.restart_assembly()
    pool.wait_for_step(step + 6, size=2)
    first = pool.members()[0]
    (new,) = pool.start(1)
    pool.notice(first, seconds=3.0)  # another takes over
    until(pool, lambda: first not in pool.members())
    until(pool, lambda: any(e.generation == pool.generation for e in of(pool, StepsDone)))
    pool.kill(pool.members()[0])
    # Fewer than the least: they wait, with their state.
    until(pool, lambda: pool.view is not None and pool.view.waiting_for == 1)
    pool.start(1)
    check(pool, reference(epochs=12), finish=2)
    assert pool.outcomes[new]["kind"] == "finished"
    assert {source for _, source in restored(pool)[1:]} <= {"kept", "peers"}


def test_nobody_waits_for_a_member_that_froze_when_the_job_was_done(
    pools: Callable[..., LivePool], reference: Callable[..., dict[str, Any]]
) -> None:
    pool = pools(faults=True, epochs=1, freezes_at_the_end="w1")
    pool._frozen.add("w1")  # it does that itself
    pool.start(3)
    check(pool, reference(epochs=1))
    assert set(pool.outcomes) == {"w0", "w2"}


def test_a_bug_in_the_loop_is_told_and_not_taken_for_a_loss(
    pools: Callable[..., LivePool],
) -> None:
    pool = pools(epochs=2, bug_at=3)
    pool.start(2)
    with pytest.raises(AssertionError, match="a bug of the user's"):
        pool.finished()
