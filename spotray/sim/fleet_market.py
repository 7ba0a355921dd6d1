"""What zones hold, and at what price, over the time of a job on several nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from spotray.errors import ConfigError, TraceError
from spotray.policy.fleet import Place
from spotray.sim.billing import Meter


class FleetMarket:
    """What each zone would hold, and at what price, at every tick of a job."""

    def __init__(
        self,
        places: Sequence[Place],
        capacity: Sequence[Sequence[int]],
        usd_per_hour: Sequence[Sequence[float]],
        *,
        gap_s: float,
        silent_frac: float = 0.0,
        notice_s: float = 120.0,
        seed: int = 0,
    ) -> None:
        """Take one row of ticks for each place.

        Args:
            places: the zones.
            capacity: spot nodes that each holds at each tick, whole numbers >= 0.
            usd_per_hour: price of a spot node there, > 0.
            gap_s: length of a tick, seconds, > 0.
            silent_frac: of the preemptions, those without a notice.
            notice_s: how long before the others are told. What a policy launches for them
                was launched then.
            seed: draws which preemptions are silent; the same for every policy.

        Raises:
            TraceError: no place, or another number of ticks somewhere, or a value that cannot
                be; the message names the zone and the tick.
            ConfigError: a place whose nodes live no longer than a tick.
        """
        self.places, self.gap_s, self.notice_s = tuple(places), gap_s, notice_s
        if not 0 < gap_s < float("inf") or not 0 <= silent_frac <= 1 or not notice_s >= 0:
            raise TraceError(
                f"gap_s is {gap_s!r}, silent_frac {silent_frac!r}, notice_s {notice_s!r}: give "
                "seconds above 0, a part of 1, and seconds of at least 0"
            )
        for place in self.places:
            if not place.limit_s > gap_s:
                raise ConfigError(
                    f"{place.market.zone}: its nodes live {place.limit_s:g} s, a tick lasts "
                    f"{gap_s:g} s: give shorter ticks"
                )
        nodes, prices = _rows(self.places, capacity), _rows(self.places, usd_per_hour)
        if nodes.shape != prices.shape:
            raise TraceError(
                f"{nodes.shape[1]} ticks of capacity and {prices.shape[1]} of prices: give as many"
            )
        _refuse(self.places, nodes, ~(nodes >= 0) | (nodes != np.floor(nodes)), "capacity")
        _refuse(self.places, prices, ~((prices > 0) & (prices < np.inf)), "price")
        self.ticks = nodes.shape[1]
        self.capacity: list[list[int]] = nodes.T.astype(int).tolist()  # by tick, then place
        self.usd_per_hour: list[list[float]] = prices.T.tolist()
        self.meters = [Meter(row, gap_s=gap_s) for row in prices.tolist()]
        self.on_demand_meters = [
            Meter([place.on_demand_usd_per_hour], gap_s=gap_s) for place in self.places
        ]
        chance = np.random.default_rng(seed)
        silent = chance.random((self.ticks, len(self.places))) < silent_frac
        self.silent: list[list[bool]] = silent.tolist()


def _rows(places: Sequence[Place], rows: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    lengths = [len(row) for row in rows]
    if not places or len(lengths) != len(places) or min(lengths) == 0:
        raise TraceError(
            f"{len(places)} places, and rows of {lengths} ticks: give each place one, not empty"
        )
    for place, length in zip(places, lengths, strict=True):
        if length != lengths[0]:
            raise TraceError(
                f"{place.market.zone} has {length} ticks, {places[0].market.zone} {lengths[0]}: "
                "give traces of one length"
            )
    return np.array(rows, dtype=np.float64)


def _refuse(
    places: Sequence[Place],
    values: NDArray[np.float64],
    wrong: NDArray[np.bool_],
    what: str,
) -> None:
    if wrong.any():
        place, tick = np.argwhere(wrong)[0]
        raise TraceError(
            f"{places[place].market.zone}: its {what} at tick {tick} is {values[place, tick]:g}"
        )
