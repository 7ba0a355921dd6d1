"""Questions of a job's workers that somebody outside decides: whether to go on.

Rank 0 brings reports; all workers wait for the decision about the same step. A decision
is kept, so that whoever asks late or again, in whatever generation, hears the same.
"""

from __future__ import annotations

import logging

from spotray.train.messages import GO_ON, SAVE, STOP, Ask

log = logging.getLogger(__name__)


class Asks:
    """What is asked and decided in one job. Not thread-safe: its owner has the lock.

    Args:
        decided_step: Questions about steps up to this one were answered before.
    """

    def __init__(self, decided_step: int = -1) -> None:
        self._decided_step = decided_step  # all up to here may go on
        self._pending: Ask | None = None
        self._is_taken = False  # somebody looks into it
        self._kind = ""  # what is decided about it and not done yet
        self._saved: tuple[int, str | None] | None = None

    @property
    def pending_step(self) -> int:
        """The step about which a decision is still to come; -1: none."""
        return self._pending.step if self._pending is not None else -1

    def tell(self, ask: Ask) -> None:
        """The one who speaks for the workers asks; repeating it changes nothing."""
        if ask.step <= self._decided_step:
            return
        if self._pending is None or self._pending.step != ask.step:
            if self._kind == SAVE and self._pending is not None:
                self._saved = (self._pending.step, None)  # nobody stands there any more
            self._pending, self._is_taken, self._kind = ask, False, ""

    def decision(self, step: int) -> str:
        """What is decided about a step; empty as long as nothing is."""
        if step <= self._decided_step:
            return GO_ON
        if self._pending is not None and self._pending.step == step:
            return self._kind
        return ""

    def has_next(self) -> bool:
        """Whether there is a question that nobody looks into yet."""
        return self._pending is not None and not self._is_taken

    def has_saved(self) -> bool:
        """Whether `take_saved` has something to tell."""
        return self._saved is not None

    def next(self) -> Ask | None:
        """The question that nobody looks into yet, once."""
        if not self.has_next():
            return None
        self._is_taken = True
        return self._pending

    def decide(self, step: int, kind: str) -> None:
        """Answer; ``kind`` is GO_ON, SAVE or STOP. After SAVE another answer follows."""
        assert kind in (GO_ON, SAVE, STOP), kind
        if self._pending is None or self._pending.step != step:
            log.warning("nobody asks about step %d: %r is left out", step, kind)
            return
        self._kind = kind
        if kind == SAVE:
            self._saved = None
        elif kind == GO_ON:
            self._decided_step, self._pending = step, None

    def saved(self, step: int, url: str | None) -> None:
        """All workers did what SAVE asked of them; ``url``: None if it failed."""
        if self._pending is not None and self._pending.step == step and self._kind == SAVE:
            self._kind, self._saved = "", (step, url)

    def take_saved(self) -> tuple[int, str | None] | None:
        """Step and URL of what was saved, once."""
        saved, self._saved = self._saved, None
        return saved
