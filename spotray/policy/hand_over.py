"""The new node first: old ones train on until those in their place can."""

from __future__ import annotations

from collections.abc import Sequence

from spotray.policy.fleet import FleetDecision, FleetJob, FleetView


def hand_over(
    job: FleetJob, view: FleetView, *, spot: Sequence[int], on_demand: Sequence[int], why: str
) -> FleetDecision:
    """A decision that gets there without a gap.

    While nodes that are wanted still start, as many that are not wanted any more are kept, if
    they train and are in the same region; spot ones before on-demand ones.

    Args:
        job, view: of this tick.
        spot, on_demand: nodes in each place when all is done, none on spot beyond capacity.
        why: one line.
    """
    kinds = [list(spot), list(on_demand)]
    ready = [
        [min(have, most) for have, most in zip(view.ready_on_spot, view.capacity, strict=True)],
        view.ready_on_demand,
    ]
    total = sum(kinds[0]) + sum(kinds[1])
    working = sum(
        min(have, want)
        for haves, wants in zip(ready, kinds, strict=True)
        for have, want in zip(haves, wants, strict=True)
    )
    missing = total - working
    if missing > 0 and view.working:
        home = next(
            job.regions[place]
            for place in range(len(job.places))
            if kinds[0][place] or kinds[1][place]
        )
        for have, want in zip(ready, kinds, strict=True):
            for place, region in enumerate(job.regions):
                keep = min(have[place] - want[place], missing)
                if keep > 0 and region == home:
                    want[place] += keep
                    missing -= keep
    return FleetDecision(spot=tuple(kinds[0]), on_demand=tuple(kinds[1]), why=why)


def home_of(job: FleetJob, view: FleetView) -> str:
    """The region that the job has nodes in; empty if it has none."""
    for place, region in enumerate(job.regions):
        if view.on_spot[place] or view.on_demand[place]:
            return region
    return ""


def on_demand_nodes(job: FleetJob, view: FleetView, nodes: int, *, home: str) -> list[int]:
    """So many on-demand nodes by place: those that are held, then the region's cheapest.

    ``home``: the region; empty for any.
    """
    places = [place for place, region in enumerate(job.regions) if region == home or not home]
    wanted = [0] * len(job.places)
    for place in places:
        wanted[place] = min(view.on_demand[place], nodes)
        nodes -= wanted[place]
    cheapest = min(places, key=lambda place: (job.places[place].on_demand_usd_per_hour, place))
    wanted[cheapest] += nodes
    return wanted


def all_on_demand(
    job: FleetJob, view: FleetView, nodes: int, *, home: str, why: str
) -> FleetDecision:
    """So many on-demand nodes, and no spot once they work."""
    wanted = on_demand_nodes(job, view, nodes, home=home)
    return hand_over(job, view, spot=[0] * len(wanted), on_demand=wanted, why=why)
