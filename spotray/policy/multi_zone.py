"""A fixed number of nodes, wherever they cost least: by price, by risk, by the price of moving."""

from __future__ import annotations

from spotray.market.hazards import Hazards
from spotray.policy.fleet import FleetDecision, FleetJob, FleetView
from spotray.policy.hand_over import all_on_demand, hand_over, home_of
from spotray.policy.pace import Pace
from spotray.policy.placing import Placing


class MultiZone:
    """All nodes in the region that costs least, spread over its zones; else on-demand.

    What a zone costs is its price and what the losses that it will probably have cost. A job
    moves only where that saves more than the move costs: to another zone the old nodes until
    the new ones work, to another region a restart and the way of the data. Without spot
    anywhere it is on-demand to stay on the line to the deadline, or if time is worth that.
    """

    name = "multi-zone"

    def __init__(self, hazards: Hazards | None = None) -> None:
        """Believe in ``hazards`` of one's own nodes at first; without them in public traces."""
        self._hazards = hazards

    def begin(self, job: FleetJob) -> _MultiZoneCourse:
        return _MultiZoneCourse(job, self._hazards)


class _MultiZoneCourse:
    def __init__(self, job: FleetJob, hazards: Hazards | None) -> None:
        self._job, self._pace = job, Pace(job)
        self._placing = Placing(job, hazards=hazards)
        self._home = ""

    def decide(self, view: FleetView) -> FleetDecision:
        job, nodes = self._job, self._job.max_nodes
        self._placing.see(view)
        self._home = home_of(job, view) or self._home
        if not self._pace.may_risk(view):
            why = "no slack is left: on-demand is sure"
            return all_on_demand(job, view, nodes, home=self._home, why=why)
        hurry = self._pace.ahead_s(view) < 0
        site = self._placing.best(nodes, home=self._home, hurry=hurry)
        held = sum(view.on_demand)
        if site is not None:
            if not held or any(view.on_spot) or self._placing.back_pays(site):
                return hand_over(
                    job, view, spot=site.spot, on_demand=[0] * len(site.spot), why=site.why
                )
            why = "on-demand: spot is back, but probably not for long"
            return all_on_demand(job, view, nodes, home=self._home, why=why)
        cheapest = min(view.spot_usd_per_hour)
        price = min(place.on_demand_usd_per_hour for place in job.places)
        if self._pace.pays_for_on_demand(
            view, is_there=held > 0, more_usd_per_hour=nodes * (price - cheapest)
        ):
            why = f"no spot for {nodes} nodes: on-demand"
            return all_on_demand(job, view, nodes, home=self._home, why=why)
        nothing = (0,) * len(job.places)
        return FleetDecision(
            spot=nothing,
            on_demand=nothing,
            why=f"no spot for {nodes} nodes that is worth a move, and there is time: wait",
        )
