from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from spotray.errors import FencedOut, JournalError
from spotray.events import Restored, Warned
from spotray.train.member import LeftJob, Member, Unreachable
from spotray.train.membership import Directive, Roster
from spotray.train.messages import Answer, Assignment, Beat
from tests.train.scripted_calls import Scripted


def one(calls: Scripted) -> Member:
    return Member(calls, name="a", node_id="n-a", device=torch.device("cpu"))


def warned(what: str) -> Warned:
    return Warned(at_s=0.0, what=what)


def fails(error: Exception) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        raise error

    return call


def test_a_fact_whose_answer_was_lost_is_sent_again_and_kept_once() -> None:
    calls = Scripted()
    member = one(calls)
    member.speaks = True
    member.append(warned("1"))

    def kept_but_unanswered(name: str, beat: Beat) -> Answer:
        calls.keep(beat.facts, beat.first_fact)
        raise Unreachable("the answer was lost")

    answers, calls.answers["beat"] = calls.answers["beat"], kept_but_unanswered
    member._beat()
    member.append(warned("2"))
    calls.answers["beat"] = answers
    member._beat()
    member.append(warned("3"))
    member._beat()
    assert calls.told == ["1", "2", "3"]


def test_only_one_worker_speaks() -> None:
    calls = Scripted()
    member = one(calls)
    member.append(warned("1"))
    member._beat()
    assert calls.told == []


def test_what_a_fenced_member_could_not_tell_is_an_error_of_the_journal() -> None:
    calls = Scripted()
    calls.answers["tell"] = fails(FencedOut("not a member"))
    member = one(calls)
    member.speaks = True
    member.append(warned("1"))
    with pytest.raises(JournalError):
        member.flush()


def test_a_fenced_member_leaves_where_it_would_have_ended_the_job() -> None:
    calls = Scripted()
    calls.answers["finish"] = fails(FencedOut("not a member"))
    with pytest.raises(LeftJob):
        one(calls).finish({}, None)


def test_it_says_that_it_holds_the_state_once_it_has_restored_one() -> None:
    calls = Scripted()
    asked: list[bool] = []

    def join(name: str, generation: int, why: str, has_state: bool, timeout_s: float) -> Assignment:
        asked.append(has_state)
        return Assignment(roster=None, out="no more")

    calls.answers["join"] = join
    member = one(calls)
    with pytest.raises(LeftJob, match="no more"):
        member.join("")
    restored = Restored(at_s=0.0, generation=1, step=3, source="peers", seconds=0.1, reached_step=3)
    member.append(restored)  # not rank 0: nobody else hears of it
    with pytest.raises(LeftJob):
        member.join("")
    assert asked == [False, True]
    assert calls.kept == []


def test_what_is_said_of_another_generation_is_not_believed() -> None:
    calls = Scripted()
    member = one(calls)
    member._roster = Roster(generation=2, members=("a",), node_ids=("n-a",))
    calls.directive = Directive(generation=1, broken="a loss", meet="growth")
    member._beat()
    assert not member.is_broken
    assert member.asks_to_meet() is None
    calls.directive = Directive(generation=2, meet="growth", durable=True)
    member._beat()
    asked = member.asks_to_meet()
    assert asked is not None
    assert (asked.why, asked.durable) == ("growth", True)
    calls.directive = Directive(generation=2, broken="a loss")
    member._beat()
    assert member.is_broken


def test_its_signs_of_life_go_on_after_an_error_that_nobody_expected() -> None:
    calls = Scripted()
    answer, beats, again = calls.answers["beat"], [], threading.Event()

    def second_works(name: str, beat: Beat) -> Answer:
        beats.append(beat)
        if len(beats) == 1:
            raise ValueError("a bug on the other side")
        again.set()
        return answer(name, beat)

    calls.answers["beat"] = second_works
    member = one(calls)
    member.enter()
    assert again.wait(10)
    member.close()


def test_what_is_left_to_tell_is_told_when_it_closes() -> None:
    calls = Scripted()
    member = one(calls)
    member.enter()
    member.speaks = True
    member.append(warned("last"))
    member.close()
    assert calls.told == ["last"]
