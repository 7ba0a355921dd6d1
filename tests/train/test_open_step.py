"""When optimizers may act, and what a loop that is written wrongly is told."""

from __future__ import annotations

import numpy as np
import pytest

from spotray.errors import ConfigError
from spotray.train.loader import Shard
from spotray.train.open_step import MicroBatch, OpenStep

MICRO = MicroBatch(Shard(step=0, index=0, ids=np.arange(2), real=True, last=True), weight=0.5)


def opened() -> OpenStep:
    step = OpenStep()
    step.begin()
    step.hand_out(MICRO)
    return step


def summed() -> OpenStep:
    step = opened()
    step.take()
    step.summed()
    return step


def test_optimizers_act_before_the_first_step_and_when_the_gradient_is_complete() -> None:
    assert OpenStep().is_complete
    step = opened()
    assert (step.is_open, step.is_complete) == (True, False)
    step.take()
    assert not step.is_complete, "other micro-batches may follow"
    step.summed()
    assert (step.is_open, step.is_complete) == (False, True)


def test_a_step_counts_once() -> None:
    assert not OpenStep().count()
    assert not opened().count()
    step = summed()
    assert [step.count(), step.count()] == [True, False]


def test_a_step_that_is_dropped_never_counts() -> None:
    for step in (opened(), summed()):
        step.drop()
        assert (step.is_open, step.is_complete) == (False, True)
        assert not step.count()
        step.check_backward_was_called()
        with pytest.raises(ConfigError, match="belongs into the loop"):
            step.take()


def test_a_micro_batch_is_taken_once() -> None:
    step = opened()
    assert step.take() is MICRO
    with pytest.raises(ConfigError, match="once for each batch"):
        step.take()


def test_a_missing_backward_pass_is_told_once() -> None:
    step = opened()
    with pytest.raises(ConfigError, match=r"without run\.backward"):
        step.check_backward_was_called()
    step.check_backward_was_called()


def test_after_the_workers_changed_nothing_acts_until_the_loops_body_is_through() -> None:
    step = opened()
    step.drop()
    step.keep_still()
    assert not step.is_complete
    assert not step.count()
    step.close()
    assert step.is_complete
