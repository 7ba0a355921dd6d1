"""What workers learn of a step from the sum of what rode along with its shards."""

from __future__ import annotations

import numpy as np
import pytest

from spotray.errors import ConfigError
from spotray.train.audit import Tally
from spotray.train.loader import Shard
from spotray.train.riders import Riders, Wish
from tests.train.jobs import Memory

SHARDS = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]  # sample ids; the last batch is short


def shard(index: int, *, real: bool = True) -> Shard:
    return Shard(step=0, index=index, ids=np.array(SHARDS[index]), real=real, last=True)


def total_of(
    riders: Riders, steps: list[int], *, wish: Wish | None = None, idle: int = 0
) -> list[float]:
    """The sum over all shards, each of a worker at one of ``steps``; the first one wishes."""
    rows = [
        riders.of(shard(i), loss=(i + 1) / 10, step=step, wish=wish if wish and i == 0 else Wish())
        for i, step in enumerate(steps)
    ]
    rows += [riders.of(shard(0, real=False), loss=0.0, step=steps[0], wish=Wish())] * idle
    assert {len(row) for row in rows} == {riders.count}
    return [sum(column) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize("step", [0, 7, 1023, 1024, 5000])
def test_all_learn_loss_samples_and_what_one_wishes_for(step: int) -> None:
    riders, wish = Riders(None), Wish(notice=1.0, stop=1.0)
    agreed = riders.agreed(total_of(riders, [step] * 3, wish=wish), step=step, shards=3)
    assert agreed.loss == pytest.approx(0.6)
    assert agreed.samples == 10
    assert agreed.wish == wish


@pytest.mark.parametrize("steps", [[4, 4, 5], [3, 4, 4], [4, 1024, 4]])
def test_workers_at_different_steps_are_told(steps: list[int]) -> None:
    riders = Riders(None)
    total = total_of(riders, steps)
    with pytest.raises(ConfigError, match=r"not at the same step \(one is at 5\)"):
        riders.agreed(total, step=4, shards=3)


def test_a_worker_without_a_shard_counts_for_nothing() -> None:
    riders = Riders(Tally(10, Memory()))
    alone, with_idle = (total_of(riders, [6] * 3, idle=idle) for idle in (0, 2))
    assert with_idle == alone
    assert riders.agreed(with_idle, step=6, shards=3).samples == 10


def test_each_use_of_a_sample_is_counted_once_the_step_counts() -> None:
    tally = Tally(10, Memory())
    riders = Riders(tally)
    total = total_of(riders, [2] * 3)
    assert tally.counts.tolist() == [0] * 10
    riders.agreed(total, step=2, shards=3)
    assert tally.counts.tolist() == [1] * 10
    with pytest.raises(ConfigError):
        riders.agreed(total, step=3, shards=3)
    assert tally.counts.tolist() == [1] * 10, "a step that does not count was counted"
