"""A tracker in memory, for tests: it remembers all, and can be made to fail."""

from __future__ import annotations

from collections.abc import Sequence

from spotray.track.facts import Note, Point


class FakeTracker:
    """`spotray.track.tracker.Tracker`, of any number of starts."""

    name = "fake"

    def __init__(self) -> None:
        self.begun = 0
        self.points: list[Point] = []
        self.notes: list[Note] = []
        self.rows: list[int] = []  # as each `tell` had them
        self.ended = ""
        self.fails = False

    def begin(self) -> str:
        self._answer()
        self.begun += 1
        return "in memory"

    def tell(self, points: Sequence[Point], notes: Sequence[Note], *, rows: int) -> None:
        self._answer()
        self.points += points
        self.notes += notes
        self.rows.append(rows)

    def end(self, status: str) -> None:
        self._answer()
        self.ended = status

    def steps(self, series: str) -> list[int]:
        """The steps of a series, in the order in which they were told."""
        return [point.step for point in self.points if point.series == series]

    def _answer(self) -> None:
        if self.fails:
            raise OSError("the tracker's server is away")
