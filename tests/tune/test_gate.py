"""Trials begin only as the budget allows. The ledger is given."""

from __future__ import annotations

from typing import Any

import pytest

from spotray.errors import JournalError
from spotray.ledger.sweep import SweepState
from spotray.tune.budget import Verdict
from spotray.tune.gate import Gate, GatedSeat

SHORT_S = 0.01


class Seat:
    """A place among the trials, with room as the test says."""

    def __init__(self) -> None:
        self.has_room = True
        self.is_left = False

    def wait(self, timeout_s: float) -> bool:
        return self.has_room

    def leave(self) -> None:
        self.is_left = True


class ScriptedGate(Gate):
    """Says what the test says."""

    def __init__(self, *verdicts: str) -> None:
        super().__init__(lambda: None, max_cost_usd=1.0, room=lambda: 1)
        self.verdicts = list(verdicts)

    def _look(self) -> Verdict:
        kind: Any = self.verdicts.pop(0)
        return Verdict(kind=kind, why=f"{kind}: as the test wants it")


def seated(gate: Gate, *, has_begun: bool = False) -> tuple[GatedSeat, Seat, list[str]]:
    seat, stopped = Seat(), []
    gated = GatedSeat(seat, gate, "t0", has_begun=has_begun, stop=stopped.append)
    return gated, seat, stopped


def test_a_trial_that_may_begin_is_asked_once() -> None:
    gated, _, _ = seated(ScriptedGate("launch"))
    assert gated.wait(SHORT_S)
    assert gated.wait(SHORT_S)


def test_a_trial_that_has_to_wait_waits_and_is_looked_at_when_another_ends() -> None:
    gate = ScriptedGate("wait", "launch")
    gated, _, stopped = seated(gate)
    assert not gated.wait(SHORT_S)
    assert not gated.wait(SHORT_S), "looked again though nothing had changed"
    gate.ended("another")
    assert gated.wait(SHORT_S)
    assert stopped == []


def test_a_trial_that_must_not_begin_is_stopped_with_the_reason() -> None:
    gated, _, stopped = seated(ScriptedGate("stop"))
    assert not gated.wait(SHORT_S)
    assert stopped == ["stop: as the test wants it"]


def test_a_trial_without_room_is_not_counted() -> None:
    gated, seat, _ = seated(ScriptedGate())
    seat.has_room = False
    assert not gated.wait(SHORT_S)


def test_a_trial_that_began_before_goes_on_whatever_is_spent() -> None:
    gated, seat, _ = seated(ScriptedGate(), has_begun=True)
    assert gated.wait(SHORT_S)
    gated.leave()
    assert seat.is_left


def test_while_nothing_is_known_nobody_begins() -> None:
    gate = Gate(lambda: None, max_cost_usd=1.0, room=lambda: 1)
    assert gate.ask("t0", SHORT_S).kind == "wait"


def test_while_storage_fails_nobody_begins() -> None:
    def unreadable() -> SweepState | None:
        raise JournalError("the bucket is gone")

    gate = Gate(unreadable, max_cost_usd=1.0, room=lambda: 1)
    verdict = gate.ask("t0", SHORT_S)
    assert verdict.kind == "wait"
    assert "the bucket is gone" in verdict.why


@pytest.mark.parametrize("trials", [1, 3])
def test_at_first_only_as_many_begin_as_there_is_room_for(trials: int) -> None:
    from spotray.ledger.sweep import SweepEvents, watch_sweep

    empty = watch_sweep(SweepEvents(sweep_dir="/s"))
    gate = Gate(lambda: empty, max_cost_usd=1.0, room=lambda: 2)
    kinds = [gate.ask(f"t{i}", SHORT_S).kind for i in range(trials)]
    assert kinds == ["launch", "launch", "wait"][:trials]
