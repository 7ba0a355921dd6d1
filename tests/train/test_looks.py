"""One look at Ray's nodes for all who want one at about the same time."""

from __future__ import annotations

import pytest

from spotray.train.looks import Look, SharedLook


class Nodes:
    """Counts the looks; the ``broken`` ones fail."""

    def __init__(self, *broken: int) -> None:
        self.looks = 0
        self._broken = broken

    def __call__(self) -> Look:
        self.looks += 1
        if self.looks in self._broken:
            raise ConnectionError("Ray does not answer")
        return Look([{"NodeID": f"look-{self.looks}"}], {})


class Time:
    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


def test_a_look_serves_all_until_it_is_too_old() -> None:
    nodes, time = Nodes(), Time()
    look = SharedLook(nodes, max_age_s=0.25, now_s=time)
    first = look()
    time.s += 0.25
    assert look() is first
    time.s += 0.01
    assert look().nodes[0]["NodeID"] == "look-2"
    assert nodes.looks == 2


def test_a_look_that_failed_is_made_again() -> None:
    nodes, time = Nodes(2), Time()
    look = SharedLook(nodes, max_age_s=0.25, now_s=time)
    look()
    time.s += 1.0
    with pytest.raises(ConnectionError):
        look()
    assert look().nodes[0]["NodeID"] == "look-3"
