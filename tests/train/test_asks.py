"""What is asked and decided between two steps, whoever asks again and from whatever generation."""

from __future__ import annotations

from spotray.train.asks import Asks
from spotray.train.messages import GO_ON, SAVE, STOP, Ask


def ask(step: int, *values: float) -> Ask:
    return Ask(step=step, epoch=1, reports=tuple({"loss": v} for v in values))


def test_a_question_is_handed_out_once_and_holds_until_it_is_decided() -> None:
    asks = Asks()
    asks.tell(ask(5, 0.5))
    assert asks.next() == ask(5, 0.5)
    assert asks.next() is None
    assert asks.decision(5) == ""
    asks.decide(5, GO_ON)
    assert asks.decision(5) == GO_ON


def test_asking_again_in_the_next_generation_is_the_same_question() -> None:
    asks = Asks()
    asks.tell(ask(5, 0.5))
    asks.next()
    asks.tell(ask(5, 0.5))
    assert asks.next() is None


def test_who_comes_late_hears_what_the_others_heard() -> None:
    asks = Asks()
    asks.tell(ask(5))
    asks.decide(5, GO_ON)
    asks.tell(ask(10))
    assert asks.decision(5) == GO_ON
    assert asks.decision(10) == ""


def test_steps_that_are_done_again_after_a_loss_are_not_asked_about_again() -> None:
    asks = Asks()
    asks.tell(ask(5, 0.5))
    asks.decide(5, GO_ON)
    asks.tell(ask(5, 0.5))
    assert asks.next() is None
    assert asks.decision(5) == GO_ON


def test_after_a_save_comes_another_decision() -> None:
    asks = Asks()
    asks.tell(ask(5))
    asks.next()
    asks.decide(5, SAVE)
    assert asks.decision(5) == SAVE
    assert asks.take_saved() is None
    asks.saved(5, "/runs/a/step-5")
    assert asks.decision(5) == ""
    assert asks.take_saved() == (5, "/runs/a/step-5")
    assert asks.take_saved() is None
    asks.decide(5, GO_ON)
    assert asks.decision(5) == GO_ON


def test_a_save_that_is_told_twice_counts_once() -> None:
    asks = Asks()
    asks.tell(ask(5))
    asks.decide(5, SAVE)
    asks.saved(5, "/runs/a/step-5")
    asks.take_saved()
    asks.saved(5, "/runs/a/step-5")
    assert asks.take_saved() is None


def test_a_decision_about_a_step_that_nobody_asks_about_changes_nothing() -> None:
    asks = Asks()
    asks.tell(ask(10))
    asks.decide(5, STOP)
    assert asks.decision(5) == ""
    assert asks.decision(10) == ""
