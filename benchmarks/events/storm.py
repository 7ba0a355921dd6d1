"""Lets drawn things happen to a running job, wherever its workers are."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from typing import Protocol

from benchmarks.events.draw import Blow
from spotray.clock import Clock, SystemClock


class NoVictim(Exception):
    """Who was to be hit is gone."""


class Site(Protocol):
    """A job's workers, by name; those that are lost are replaced as the site's market has it.

    Every method that names a worker raises NoVictim if it is gone.
    """

    def step(self) -> int:
        """The furthest step that any worker ended."""

    def living(self) -> Sequence[str]:
        """Workers, or nodes with one, that are neither lost nor silent."""

    def kill_process(self, name: str) -> None:
        """End a worker; its node lives."""

    def kill_nodes(self, names: Sequence[str]) -> None:
        """Take nodes in one instant."""

    def freeze(self, name: str) -> None: ...

    def thaw(self, name: str) -> None: ...

    def notice(self, name: str, seconds: float) -> None:
        """Announce a node's loss, and take it then."""

    def cancel(self, name: str) -> None:
        """Take a notice back."""

    def want(self, workers: int, replaced_after_s: float) -> None:
        """So many workers from now on, as far as others are lost; more start at once."""


class Storm:
    """One draw of blows on one site.

    Args:
        site: What they hit.
        blows: In their order.
        notice_s: How long the shortest notice is.
        clock: Of the time between two blows, and of how long one lasts.
    """

    def __init__(
        self,
        site: Site,
        blows: Sequence[Blow],
        *,
        notice_s: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        self.log: list[str] = []  # what really happened
        self.happened: list[str] = []  # the same in one word each, with the step
        self._site, self._blows, self._notice_s = site, list(blows), notice_s
        self._clock = clock or SystemClock()
        self._began_s = self._last_s = self._clock.now_s()
        self._later: list[tuple[float, int, str, Callable[[], None]]] = []
        self._order = itertools.count()
        self.step = 0  # the furthest ever

    @property
    def left(self) -> int:
        """Blows that are still to come."""
        return len(self._blows)

    def look(self) -> None:
        """Do what is due; call it often."""
        self.step = max(self.step, self._site.step())
        while self._later and self._later[0][0] <= self._clock.now_s():
            _, _, what, do = heapq.heappop(self._later)
            self._try(what, do)
        while self._blows and self.step >= self._blows[0].at_step:
            if self._clock.now_s() < self._last_s + self._blows[0].after_s:
                return
            self._strike(self._blows.pop(0))
            self._last_s = self._clock.now_s()

    def end(self) -> None:
        """Let silent workers go on at once, and leave out the rest."""
        self._blows.clear()
        later, self._later = sorted(self._later), []
        for _, _, what, do in later:
            if what.startswith("thaw"):
                self._try(what, do)

    def say(self, what: str) -> None:
        """Keep what happened, with the time and the step."""
        seconds = self._clock.now_s() - self._began_s
        self.log.append(f"{seconds:7.2f} s, step {self.step:3}: {what}")

    # -- inside ------------------------------------------------------------------------

    def _strike(self, blow: Blow) -> None:
        self.say(f"-- {blow}; there: {' '.join(self._site.living())}")
        before = len(self.log)
        self._hit(blow)
        self._site.want(blow.wanted, blow.replaced_after_s)
        if not any("left out" in line for line in self.log[before:]):
            self.happened.append(f"{self.step}:{blow.kind}")

    def _hit(self, blow: Blow) -> None:
        site, living = self._site, list(self._site.living())
        if blow.kind == "growth":
            return
        if not living:
            self.say("left out: nobody is there")
            return
        if blow.kind == "all":
            self._try(f"take {' '.join(living)}", lambda: site.kill_nodes(living))
            return
        first = living.pop(int(blow.first_frac * len(living)))
        if blow.kind != "two":
            self._hit_one(blow.kind, first, blow.lasts_s)
            return
        if not living:
            self._hit_one("node", first, blow.lasts_s)
            return
        second = living[int(blow.second_frac * len(living))]
        if blow.second == "node":
            both = [first, second]
            self._try(f"take {' '.join(both)}", lambda: site.kill_nodes(both))
            return
        self._hit_one("node", first, blow.lasts_s)
        self._hit_one(blow.second, second, blow.lasts_s)

    def _hit_one(self, kind: str, name: str, lasts_s: float) -> None:
        site = self._site
        match kind:
            case "process":
                self._try(f"kill the process of {name}", lambda: site.kill_process(name))
            case "node":
                self._try(f"take {name}", lambda: site.kill_nodes([name]))
            case "thawed" | "frozen":
                if self._try(f"freeze {name} for {lasts_s:.2f} s", lambda: site.freeze(name)):
                    if kind == "thawed":
                        self._after(lasts_s, f"thaw {name}", lambda: site.thaw(name))
                    else:
                        self._after(lasts_s, f"take {name}", lambda: site.kill_nodes([name]))
            case "noticed":
                seconds = self._notice_s + lasts_s
                what = f"notice of {seconds:.2f} s for {name}"
                self._try(what, lambda: site.notice(name, seconds))
            case "cancelled":
                what = f"notice for {name}, taken back after {lasts_s / 2:.2f} s"
                if self._try(what, lambda: site.notice(name, lasts_s + 30.0)):
                    what = f"notice for {name} taken back"
                    self._after(lasts_s / 2, what, lambda: site.cancel(name))

    def _try(self, what: str, do: Callable[[], None]) -> bool:
        try:
            do()
        except NoVictim as exc:
            self.say(f"left out: {what}: {exc}")
            return False
        self.say(what)
        return True

    def _after(self, seconds: float, what: str, do: Callable[[], None]) -> None:
        heapq.heappush(self._later, (self._clock.now_s() + seconds, next(self._order), what, do))
