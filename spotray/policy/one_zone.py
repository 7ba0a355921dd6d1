"""A fixed number of nodes in one zone, all or none: what most clusters do."""

from __future__ import annotations

from spotray.policy.fleet import FleetDecision, FleetJob, FleetView
from spotray.policy.hand_over import hand_over
from spotray.policy.pace import Pace


class OneZone:
    """All nodes in the zone that is cheapest at the start; on-demand there to stay on the line.

    The line, the hysteresis and the safety net are Uniform Progress's, for a group.
    """

    name = "one zone"

    def begin(self, job: FleetJob) -> _OneZoneCourse:
        return _OneZoneCourse(job)


class _OneZoneCourse:
    def __init__(self, job: FleetJob) -> None:
        self._job, self._pace = job, Pace(job)
        self._place: int | None = None
        self._on_demand = False

    def decide(self, view: FleetView) -> FleetDecision:
        job, pace, nodes = self._job, self._pace, self._job.max_nodes
        if self._place is None:
            prices = view.spot_usd_per_hour
            self._place = min(range(len(prices)), key=lambda place: (prices[place], place))
        if not pace.may_risk(view):
            why = "no slack is left: on-demand meets the deadline"
            return self._all(view, on_demand=nodes, why=why)
        has_spot = view.capacity[self._place] >= nodes
        price = job.places[self._place].on_demand_usd_per_hour
        if self._on_demand or not has_spot:
            self._on_demand = pace.pays_for_on_demand(
                view,
                is_there=self._on_demand,
                more_usd_per_hour=nodes * (price - view.spot_usd_per_hour[self._place]),
            ) and (job.has_deadline or not has_spot)
        if self._on_demand:
            why = "on-demand, to be in time" if job.has_deadline else "on-demand: time is dear"
            return self._all(view, on_demand=nodes, why=why)
        if has_spot:
            return self._all(view, spot=nodes, why=f"the zone holds {nodes} spot nodes")
        return self._all(view, why=f"the zone does not hold {nodes} spot nodes, and there is time")

    def _all(
        self, view: FleetView, *, spot: int = 0, on_demand: int = 0, why: str
    ) -> FleetDecision:
        place = self._place or 0
        kinds = [[0] * len(self._job.places) for _ in range(2)]
        kinds[0][place], kinds[1][place] = spot, on_demand
        return hand_over(self._job, view, spot=kinds[0], on_demand=kinds[1], why=why)
