from __future__ import annotations

from spotray.events import Event, Reported, StepsDone, Warned, encode
from spotray.train.inbox import Inbox


class Journal:
    """A journal in a list; storage holds the first ``written`` of it."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.written = 0

    def marks(self) -> tuple[int, int]:
        return len(self.events), self.written

    def inbox(self, *, told_step: int = 0) -> Inbox:
        return Inbox(self.events.append, marks=self.marks, told_step=told_step)

    @property
    def told(self) -> list[str]:
        return [e.what for e in self.events if isinstance(e, Warned)]


def facts(*whats: str) -> list[str]:
    return [encode(Warned(at_s=0.0, what=what)) for what in whats]


def steps(first: int, last: int) -> str:
    return encode(
        StepsDone(
            at_s=0.0,
            generation=1,
            first_step=first,
            last_step=last,
            seconds=1.0,
            samples=16,
            world_size=2,
            loss=1.0,
            ended_at_s=(0.0,),
        )
    )


def test_a_fact_that_is_sent_again_is_kept_once() -> None:
    journal = Journal()
    inbox = journal.inbox()
    assert inbox.keep("a", facts("1", "2"), 0) == 2
    assert inbox.keep("a", facts("1", "2", "3"), 0) == 3
    assert inbox.keep("a", facts("2", "3"), 1) == 3
    assert inbox.keep("a", facts("2"), 1) == 3, "a call that comes late takes nothing back"
    assert journal.told == ["1", "2", "3"]


def test_each_sender_counts_its_own() -> None:
    journal = Journal()
    inbox = journal.inbox()
    inbox.keep("a", facts("1", "2"), 0)
    assert inbox.keep("b", facts("one"), 0) == 1
    journal.written = 2
    assert inbox.safe("a") == 2
    assert inbox.safe("b") == 0
    assert journal.told == ["1", "2", "one"]


def test_facts_are_safe_once_storage_holds_the_journal_up_to_them() -> None:
    journal = Journal()
    inbox = journal.inbox()
    inbox.keep("a", facts("1", "2"), 0)
    inbox.keep("a", facts("1", "2", "3"), 0)
    assert inbox.safe("a") == 0
    journal.written = 1
    assert inbox.safe("a") == 0, "half of the first call's are in storage"
    journal.written = 2
    assert inbox.safe("a") == 2
    journal.written = 3
    assert inbox.safe("a") == 3
    inbox.keep("a", facts("3"), 2)
    assert inbox.safe("a") == 3, "nothing new was told"


def test_a_fact_after_those_of_others_waits_for_them_too() -> None:
    journal = Journal()
    inbox = journal.inbox()
    inbox.keep("a", facts("1"), 0)
    inbox.keep("b", facts("one"), 0)
    journal.written = 1
    assert (inbox.safe("a"), inbox.safe("b")) == (1, 0)


def test_an_inbox_that_starts_anew_takes_what_its_senders_still_keep() -> None:
    journal = Journal()
    inbox = journal.inbox()
    assert inbox.keep("a", facts("6", "7"), 5) == 7
    assert inbox.safe("a") == 5, "those before are safe, or the sender would tell them"
    journal.written = 2
    assert inbox.safe("a") == 7
    assert journal.told == ["6", "7"]


def test_nothing_of_an_unknown_sender_is_safe() -> None:
    assert Journal().inbox().safe("a") == 0


def test_the_last_step_told_is_the_highest_of_all_senders() -> None:
    inbox = Journal().inbox(told_step=3)
    assert inbox.told_step == 3
    inbox.keep("a", [steps(1, 2)], 0)
    assert inbox.told_step == 3
    inbox.keep("a", [steps(4, 6)], 1)
    inbox.keep("b", [steps(4, 5)], 0)
    assert inbox.told_step == 6


def test_it_knows_which_reports_the_journal_has() -> None:
    def report(step: int) -> str:
        return encode(Reported(at_s=0.0, step=step, epoch=1, metrics={}))

    inbox = Journal().inbox()
    assert inbox.told_report == (-1, 0)
    inbox.keep("a", [report(5), report(5)], 0)
    assert inbox.told_report == (5, 2)
    inbox.keep("b", [report(7)], 0)
    inbox.keep("b", [report(6)], 1)
    assert inbox.told_report == (7, 1)
