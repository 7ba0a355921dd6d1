"""After a restart of the side that knows all members: they may say who they are."""

from __future__ import annotations


class Hearing:
    """A time in which members of an earlier generation are heard, before anything is decided.

    Args:
        needed: There may be such members; else there is no hearing.
        length_s: As long as a member may be silent at any other time: its call may come
            before its sign of life, and that late on a busy machine.
    """

    def __init__(self, *, needed: bool, length_s: float) -> None:
        self._is_on, self._length_s = needed, length_s
        self._until_s: float | None = None

    @property
    def has_begun(self) -> bool:
        """Whether a worker was heard: with the first one the time begins to run."""
        return self._until_s is not None

    def heard(self, now: float) -> bool:
        """A worker speaks; whether the hearing goes on."""
        if self._is_on and self._until_s is None:
            self._until_s = now + self._length_s
        return self.is_on(now)

    def is_on(self, now: float) -> bool:
        """Whether members may still tell who they are."""
        if self._until_s is not None and now >= self._until_s:
            self._is_on = False
        return self._is_on
