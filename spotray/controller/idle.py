"""When a cluster that nobody uses is taken down. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Use:
    """Who uses the cluster at one time."""

    now_s: float
    drivers: int  # connected, without Ray's own and this program's
    busy_workers: int
    waiting: int  # requests that no node serves yet

    @property
    def is_idle(self) -> bool:
        return not (self.drivers or self.busy_workers or self.waiting)


class IdleWatch:
    """Says that the cluster was idle for long enough, until that is done."""

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._since_s: float | None = None
        self._is_down = False

    def is_due(self, use: Use) -> bool:
        """Take a look: whether the cluster shall go down now."""
        if not use.is_idle:
            self._since_s, self._is_down = None, False
            return False
        if self._since_s is None:
            self._since_s = use.now_s
        return not self._is_down and use.now_s - self._since_s >= self._after_s

    def is_done(self) -> None:
        """The cluster went down: nothing is due before it was in use again."""
        self._is_down = True
