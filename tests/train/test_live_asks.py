"""Workers that ask after their reports whether to go on, in real processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spotray.checkpoint import manifest as manifests
from spotray.events import CheckpointCommitted, Reported, Restored, WorkerGroupStarted
from spotray.storage import Store
from spotray.train.messages import GO_ON, SAVE, STOP, Ask
from tests.train.live_jobs import train_loop
from tests.train.live_pool import LivePool

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

STEPS_PER_EPOCH = 5
SPOT = {"checkpoint_interval_s": 3600.0, "snapshot_interval_s": 3600.0}


@pytest.fixture
def pools(tmp_path: Path) -> Iterator[Callable[..., LivePool]]:
    made: list[LivePool] = []

    def make(
        folder: str = "job",
        resume: str | None = None,
        spot: dict[str, Any] = SPOT,
        **config: Any,
    ) -> LivePool:
        at = tmp_path / folder
        at.mkdir()
        pool = LivePool(at, train_loop, config, spot=spot, asks=True, resume_from_checkpoint=resume)
        made.append(pool)
        return pool

    yield make
    for pool in made:
        pool.close()
        print(*pool.events, sep="\n")
        print(pool.outcomes)


def of(pool: LivePool, kind: type) -> list[Any]:
    return [e for e in pool.events if isinstance(e, kind)]


def next_ask(pool: LivePool) -> Ask:
    ask = pool.assembly.next_ask(60.0)
    assert ask is not None, "nobody asked"
    return ask


def seen(ask: Ask) -> list[Any]:
    return [report["seen"] for report in ask.reports]


def save(pool: LivePool, step: int) -> str:
    """Have a checkpoint written; its URL."""
    pool.assembly.decide(step, SAVE)
    saved = pool.assembly.wait_saved(60.0)
    assert saved is not None
    assert saved[0] == step
    assert saved[1] is not None
    return saved[1]


def test_nobody_steps_on_before_it_is_decided(pools: Callable[..., LivePool]) -> None:
    pool = pools(epochs=3)
    pool.start(2)
    for epoch in range(3):
        ask = next_ask(pool)
        assert (ask.step, ask.epoch, seen(ask)) == (
            (epoch + 1) * STEPS_PER_EPOCH,
            epoch + 1,
            [epoch],
        )
        assert pool.last_step() <= ask.step
        told = [e.metrics["seen"] for e in of(pool, Reported)]
        assert told == list(range(epoch + 1)), "who decides knows more than the journal"
        pool.assembly.decide(ask.step, GO_ON)
    assert len(pool.finished()) == 2
    assert [e.metrics["seen"] for e in of(pool, Reported)] == [0, 1, 2]


def test_what_is_saved_on_demand_is_exactly_that_point(pools: Callable[..., LivePool]) -> None:
    pool = pools(epochs=2)
    pool.start(3)
    ask = next_ask(pool)
    url = save(pool, ask.step)
    again = save(pool, ask.step)
    pool.assembly.decide(ask.step, GO_ON)
    pool.assembly.decide(next_ask(pool).step, GO_ON)
    assert len(pool.finished()) == 3
    assert url != again
    for one in (url, again):
        manifest = manifests.read(Store.at(one))
        manifests.verify(Store.at(one), manifest)
        assert (manifest.step, manifest.epoch) == (STEPS_PER_EPOCH, 1)
        assert manifest.world_size == 3


def test_a_job_begins_from_what_another_saved_with_its_own_settings(
    pools: Callable[..., LivePool],
) -> None:
    often = {**SPOT, "checkpoint_interval_s": 0.01, "save_cost_frac": 0.9, "keep_checkpoints": 1}
    donor = pools("donor", spot=often, epochs=3, step_s=0.1)
    donor.start(2)
    donor.assembly.decide(next_ask(donor).step, GO_ON)
    url = save(donor, next_ask(donor).step)
    donor.assembly.decide(2 * STEPS_PER_EPOCH, GO_ON)
    donor.assembly.decide(next_ask(donor).step, GO_ON)
    (end, *_) = donor.finished()
    # The donor has ended, and its retention left one of its own: the last.
    left = Store.at(donor.folder / "store").child("checkpoints").folders()
    assert len(left) == 2 < len(of(donor, CheckpointCommitted))
    clone = pools("clone", resume=url, epochs=3)
    clone.start(1)
    ask = next_ask(clone)
    assert (ask.step, seen(ask)) == (3 * STEPS_PER_EPOCH, [2])
    clone.assembly.decide(ask.step, GO_ON)
    (ended,) = clone.finished()
    assert [(e.step, e.source) for e in of(clone, Restored)] == [(2 * STEPS_PER_EPOCH, "other job")]
    # The same settings here, so the same end: nothing of the state was left behind.
    assert ended["sha256"] == end["sha256"]
    # One that is chosen just as the donor comes to its end has nothing left to do.
    late = pools("late", resume=of(donor, CheckpointCommitted)[-1].path, epochs=3)
    late.start(1)
    assert [one["sha256"] for one in late.finished()] == [end["sha256"]]
    assert [(e.step, e.source) for e in of(late, Restored)] == [(3 * STEPS_PER_EPOCH, "other job")]
    assert not of(late, Reported)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_loss_while_all_wait_changes_no_question(
    pools: Callable[..., LivePool], lost: int
) -> None:
    pool = pools(epochs=2)
    pool.start(3)
    ask = next_ask(pool)
    pool.kill(pool.members()[lost])
    pool.wait_for(WorkerGroupStarted, 2)
    assert pool.assembly.next_ask(0.0) is None
    url = save(pool, ask.step)
    assert manifests.read(Store.at(url)).world_size == 2
    pool.assembly.decide(ask.step, GO_ON)
    last = next_ask(pool)
    assert seen(last) == [1]
    pool.assembly.decide(last.step, GO_ON)
    assert len(pool.finished()) == 2
    assert [e.metrics["seen"] for e in of(pool, Reported)] == [0, 1]


def test_who_comes_while_the_others_wait_takes_part_in_the_save(
    pools: Callable[..., LivePool],
) -> None:
    pool = pools(epochs=2, step_s=0.1)
    first = pool.start(2)
    ask = next_ask(pool)
    (new,) = pool.start(1)
    pool.wait_until_ready(new)
    pool.kill(first[1])
    pool.wait_for(WorkerGroupStarted, 2)
    url = save(pool, ask.step)
    manifest = manifests.read(Store.at(url))
    assert (manifest.step, manifest.epoch, manifest.world_size) == (STEPS_PER_EPOCH, 1, 2)
    pool.assembly.decide(ask.step, GO_ON)
    pool.assembly.decide(next_ask(pool).step, GO_ON)
    ended = pool.finished()
    assert len(ended) == 2
    assert len({one["sha256"] for one in ended}) == 1


def test_all_lost_in_a_save_and_those_who_follow_answer_it(pools: Callable[..., LivePool]) -> None:
    pool = pools(epochs=2)
    pool.start(2)
    ask = next_ask(pool)
    save(pool, ask.step)
    for name in pool.members():
        pool.kill(name)
    pool.assembly.decide(ask.step, SAVE)
    pool.start(2)
    saved = pool.assembly.wait_saved(60.0)
    assert saved is not None
    assert saved[0] == ask.step
    pool.assembly.decide(ask.step, GO_ON)
    last = next_ask(pool)
    assert seen(last) == [1]
    pool.assembly.decide(last.step, GO_ON)
    assert len(pool.finished()) == 2


def test_a_job_that_is_told_to_stop_leaves_its_processes_whole(
    pools: Callable[..., LivePool],
) -> None:
    pool = pools(epochs=2)
    names = pool.start(2)
    ask = next_ask(pool)
    pool.assembly.decide(ask.step, STOP)
    pool.wait_for_outcomes(len(names))
    assert {pool.outcomes[name]["kind"] for name in names} == {"left"}
    assert not of(pool, CheckpointCommitted)
