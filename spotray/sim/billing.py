"""What a node costs: by the second, at a price that changes, and free where the cloud says so."""

from __future__ import annotations

from collections.abc import Sequence

from spotray.market.terms import LEAST_S, is_free


class Meter:
    """A price that changes at every tick, and what it adds up to.

    What a span costs is the sum of what its parts cost. Behind its end the price stays as it
    was last.
    """

    def __init__(self, usd_per_hour: Sequence[float], *, gap_s: float) -> None:
        """Take prices of a node, one for each ``gap_s`` seconds; one at least, all > 0."""
        self._gap_s = gap_s
        self._prices = [price / 3600 for price in usd_per_hour]
        self._sums = [0.0]
        total = 0.0
        for price in self._prices:
            total += price * gap_s
            self._sums.append(total)

    def usd(self, from_s: float, to_s: float) -> float:
        """What a node costs from one time to another, seconds from the first tick's start."""
        return self._until(to_s) - self._until(from_s)

    def _until(self, at_s: float) -> float:
        tick = min(int(at_s / self._gap_s), len(self._prices) - 1)
        return self._sums[tick] + (at_s - tick * self._gap_s) * self._prices[tick]


def bill_usd(meter: Meter, cloud: str, from_s: float, to_s: float, *, taken: bool) -> float:
    """The bill of one node: by the second, for a minute at least.

    Args:
        meter: its price.
        cloud: "aws", "gcp" or "azure".
        from_s, to_s: when it ran, seconds from the first tick's start.
        taken: the cloud ended it; whoever ends a node himself pays for all of it.

    >>> hourly = Meter([0.36], gap_s=300)
    >>> bill_usd(hourly, "aws", 0, 3599, taken=True)
    0.0
    >>> round(bill_usd(hourly, "aws", 0, 3600, taken=True), 4)
    0.36
    """
    if is_free(cloud, to_s - from_s, taken=taken):
        return 0.0
    return meter.usd(from_s, max(to_s, from_s + LEAST_S))
