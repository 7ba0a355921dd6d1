"""Facts that workers send: each goes to the journal once, and is the sender's until it is safe."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from spotray.events import Event, Reported, StepsDone, decode


def _no_marks() -> tuple[int, int]:
    """Of a journal that loses nothing."""
    return 0, 0


class Inbox:
    """Keeps the facts of all senders apart; each sender numbers its own, from 0.

    Not for several threads at once: its owner has a lock.

    Args:
        append: Takes facts to the journal.
        marks: How many facts the journal took so far, and how many of them are in storage.
        told_step: Steps up to this one are in the journal already.
        told_report: Step of the last report in the journal, and how many there are of that step.
    """

    def __init__(
        self,
        append: Callable[[Event], None],
        *,
        marks: Callable[[], tuple[int, int]] = _no_marks,
        told_step: int = 0,
        told_report: tuple[int, int] = (-1, 0),
    ) -> None:
        self._append = append
        self._marks = marks
        self.told_step = told_step  # the last step that the journal was told of
        self.told_report = told_report
        self._kept: dict[str, int] = {}  # sender -> how many of its facts the journal took
        # Facts of a sender up to the first number are safe once storage holds as many of the
        # journal as the second one says: until then the sender keeps them, for this side may die.
        self._unsafe: dict[str, deque[tuple[int, int]]] = {}
        self._safe: dict[str, int] = {}

    def keep(self, sender: str, facts: Sequence[str], first: int) -> int:
        """Journal the facts that are new; how many of this sender's the journal took so far.

        Args:
            sender: Who tells them.
            facts: Encoded events.
            first: The sender's number of the first one; it keeps those before it no more.
        """
        kept = self._kept.get(sender, first)
        told = max(kept, first + len(facts))
        for line in facts[max(0, kept - first) :]:
            event = decode(line)
            if isinstance(event, StepsDone):
                self.told_step = max(self.told_step, event.last_step)
            elif isinstance(event, Reported):
                step, count = self.told_report
                if event.step >= step:
                    self.told_report = event.step, count + 1 if event.step == step else 1
            self._append(event)
        self._kept[sender] = told
        self._safe[sender] = max(first, self._safe.get(sender, first))
        if told > kept:
            taken, _ = self._marks()
            self._unsafe.setdefault(sender, deque()).append((told, taken))
        return told

    def safe(self, sender: str) -> int:
        """How many facts of a sender storage holds: these it need not keep."""
        _, written = self._marks()
        unsafe = self._unsafe.get(sender, deque())
        while unsafe and unsafe[0][1] <= written:
            self._safe[sender] = unsafe.popleft()[0]
        return self._safe.get(sender, 0)
