"""The actor around a sweep's coordinator, without torch.

Whoever asks Ray for an actor imports its class: also the small process that Tune has for
each trial, of which dozens share the head. So the class that they see is this one, and
only the actor itself imports what it is made of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spotray.tune.sweep import SweepCoordinator, SweepPlan


class SweepActor:
    """`SweepCoordinator`, for other processes; its methods are those of that class."""

    _sweep: SweepCoordinator

    def __init__(self, plan: SweepPlan) -> None:
        from spotray.tune.sweep import SweepCoordinator

        self._sweep = SweepCoordinator(plan)

    # -- for workers -----------------------------------------------------------------

    def call(self, key: str, method: str, *args: Any) -> Any:
        return self._sweep.call(key, method, *args)

    # -- for a trial's Tune process --------------------------------------------------

    def begin(self, *args: Any) -> None:
        self._sweep.begin(*args)

    def next(self, *args: Any) -> Any:
        return self._sweep.next(*args)

    def save(self, *args: Any) -> dict[str, Any] | None:
        return self._sweep.save(*args)

    def leave(self, *args: Any) -> None:
        self._sweep.leave(*args)

    # -- for the cluster's controller ------------------------------------------------

    def status(self) -> dict[str, dict[str, Any]]:
        return self._sweep.status()

    # -- for the driver --------------------------------------------------------------

    def seen(self, *args: Any) -> None:
        self._sweep.seen(*args)

    def trials_that_fit(self, more: bool = False) -> int:
        return self._sweep.trials_that_fit(more)

    def pause(self, trial: str) -> None:
        self._sweep.pause(trial)

    def waits(self) -> bool:
        return self._sweep.waits()

    def stop(self, *args: Any) -> dict[str, Any]:
        return self._sweep.stop(*args)

    def running(self) -> list[str]:
        return self._sweep.running()

    def fatal(self) -> str:
        return self._sweep.fatal()

    def close(self, *args: Any) -> None:
        self._sweep.close(*args)
