"""Small fleets for the tests of their policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spotray.market.offer import Market
from spotray.policy.fleet import FleetJob, FleetPolicy, Place
from spotray.sim.fleet import FleetMoment, FleetOutcome, simulate_fleet
from spotray.sim.fleet_market import FleetMarket

GAP = 300.0
HOUR = 3600.0


def place(zone: str, *, on_demand: float = 3.0) -> Place:
    market = Market(cloud="azure", zone=zone, instance_type="node", spot=True)
    return Place(market=market, on_demand_usd_per_hour=on_demand)


EAST_A, EAST_B, WEST = place("us-east-1a"), place("us-east-1b"), place("us-west-2a")


def course(
    policy: FleetPolicy,
    places: Sequence[Place],
    capacity: Sequence[Sequence[int]],
    usd: Sequence[float | Sequence[float]],
    **changes: Any,
) -> tuple[FleetOutcome, list[FleetMoment]]:
    """Run a job of endless work, unless told otherwise; a price is fixed or one a tick."""
    base: dict[str, Any] = {"gap_s": GAP, "work_s": 1e7, "speeds": (0.0, 1.0, 2.0)}
    job = FleetJob(**base | {"places": tuple(places)} | changes)
    ticks = len(capacity[0])
    prices = [[one] * ticks if isinstance(one, int | float) else list(one) for one in usd]
    market = FleetMarket(places, capacity, prices, gap_s=GAP, notice_s=0.0)
    moments: list[FleetMoment] = []
    return simulate_fleet(policy, job, market, moments=moments), moments
