"""All nodes on on-demand, from the first tick on: what spot is measured against."""

from __future__ import annotations

from spotray.policy.fleet import FleetDecision, FleetJob, FleetView


class FleetOnDemand:
    """The cheapest place's on-demand nodes, all of them, until the work is done."""

    name = "on-demand fleet"

    def begin(self, job: FleetJob) -> _OnDemandCourse:
        return _OnDemandCourse(job)


class _OnDemandCourse:
    def __init__(self, job: FleetJob) -> None:
        prices = [place.on_demand_usd_per_hour for place in job.places]
        nodes = [0] * len(prices)
        nodes[prices.index(min(prices))] = job.max_nodes
        self._decision = FleetDecision(
            spot=(0,) * len(prices), on_demand=tuple(nodes), why="on-demand only"
        )

    def decide(self, view: FleetView) -> FleetDecision:
        return self._decision
