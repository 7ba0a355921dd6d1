from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from spotray.errors import ConfigError
from spotray.policy.chain import Belief, SpotChain, shipped

# With spot for long or for short, without for long or for short; and what follows each.
TWO = SpotChain(
    gap_s=60.0,
    up=np.array([True, False]),
    step=np.array([[0.9, 0.1], [0.3, 0.7]]),
    start=np.array([0.75, 0.25]),
)
FOUR = SpotChain(
    gap_s=60.0,
    up=np.array([True, True, False]),
    step=np.array([[0.99, 0.0, 0.01], [0.0, 0.5, 0.5], [0.1, 0.1, 0.8]]),
    start=np.array([0.25, 0.25, 0.5]),
)


def has_spot(ahead: Any, chain: SpotChain) -> float:
    return float(ahead[chain.up].sum())


def test_with_one_state_of_each_look_the_next_tick_depends_on_this_one_alone() -> None:
    belief = Belief(TWO, 60.0)
    assert [round(has_spot(belief.see(up), TWO), 6) for up in (True, False, True)] == [
        0.9,
        0.3,
        0.9,
    ]


def test_spot_that_has_lasted_is_believed_to_last() -> None:
    belief = Belief(FOUR, 60.0)
    chances = [has_spot(belief.see(True), FOUR) for _ in range(20)]
    assert chances == sorted(chances)
    assert chances[0] < 0.76 < 0.98 < chances[-1]


def test_a_longer_tick_is_as_many_steps() -> None:
    assert np.allclose(FOUR.steps(180.0), np.linalg.matrix_power(FOUR.step, 3))
    between = FOUR.steps(90.0)
    assert np.allclose(between, (FOUR.step + FOUR.step @ FOUR.step) / 2)
    assert np.allclose(FOUR.steps(15.0), 0.75 * np.eye(3) + 0.25 * FOUR.step)
    assert np.allclose(between.sum(axis=1), 1.0)


def test_what_was_thought_impossible_is_believed_when_seen() -> None:
    stuck = dataclasses.replace(TWO, step=np.eye(2))
    belief = Belief(stuck, 60.0)
    belief.see(True)
    assert has_spot(belief.see(False), stuck) == 0.0


def test_the_shipped_chain_knows_that_hazards_fall_with_age() -> None:
    chain = shipped()
    belief = Belief(chain, 600.0)
    belief.see(False)
    stays = [has_spot(belief.see(True), chain) for _ in range(60)]
    assert 1 - stays[0] > 3 * (1 - stays[-1])
    waits = [has_spot(belief.see(False), chain) for _ in range(60)]
    assert waits[1] > 3 * waits[-1]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"step": [[0.0, 0.0], [0.5, 0.5]]}, "must add up to 1"),
        ({"step": [[1.5, -0.5], [0.5, 0.5]]}, "must add up to 1"),
        ({"start": [1.0]}, "2 states needs as many chances"),
        ({"start": [1.0, 0.0]}, "one without"),
        ({"gap_s": 0}, "gap_s is 0"),
        ({"up": None}, "not a chain"),
    ],
)
def test_a_file_that_is_no_chain_is_refused(changes: dict[str, Any], told: str) -> None:
    raw = {"gap_s": 60, "up": [1, 0], "start": [0.5, 0.5], "step": [[0.9, 0.1], [0.2, 0.8]]}
    assert SpotChain.from_json(raw).step[1, 1] == 0.8
    with pytest.raises(ConfigError, match=told):
        SpotChain.from_json(raw | changes)
    with pytest.raises(ConfigError, match="KeyError"):
        SpotChain.from_json({"gap_s": 60})
