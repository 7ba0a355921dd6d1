"""How many nodes: as many as make the work cheapest, and as the deadline asks for."""

from __future__ import annotations

from spotray.market.hazards import Hazards
from spotray.policy.fleet import FleetDecision, FleetJob, FleetView
from spotray.policy.hand_over import all_on_demand, hand_over, home_of, on_demand_nodes
from spotray.policy.pace import Pace
from spotray.policy.placing import Placing, Site

_MOST_TRIED = 12  # numbers of nodes that are weighed against each other
_WORTH = 0.95  # another number must make the work cheaper by that
_HALF_LIFE_S = 24 * 3600.0  # of how often spot was there
_BELIEVED, _BELIEVED_S = 0.7, 12 * 3600.0  # before it is seen, and for how long that counts
_FULL = 0.9  # of the highest speed: needing more than that, every hour counts
_ROOM = 0.97  # of the needed speed, before on-demand nodes come to help


class Elastic:
    """The number of spot nodes whose work costs least, in the best zones; never too slow.

    More nodes are seldom as much faster: ``job.speeds`` says how much. So with time to spare
    few nodes are cheapest, and the deadline asks for more. Whatever spot there is trains, and
    on-demand nodes come beside it only while the job lags behind its line.

    Args:
        hazards: of one's own nodes, believed at first; without them public traces are.
        one_zone: stay in the zone that is cheapest at the start.
    """

    def __init__(self, hazards: Hazards | None = None, *, one_zone: bool = False) -> None:
        self._hazards, self._one_zone = hazards, one_zone
        self.name = "elastic, one zone" if one_zone else "elastic"

    def begin(self, job: FleetJob) -> _ElasticCourse:
        return _ElasticCourse(job, self._hazards, one_zone=self._one_zone)


class _ElasticCourse:
    def __init__(self, job: FleetJob, hazards: Hazards | None, *, one_zone: bool) -> None:
        self._job, self._pace, self._hazards = job, Pace(job), hazards
        self._placing = None if one_zone else Placing(job, hazards=hazards)
        self._home = ""
        least, most = job.min_nodes, job.max_nodes
        step = max(1, -(-(most - least + 1) // _MOST_TRIED))
        self._tried = sorted({*range(least, most, step), most})
        self._forget = 0.5 ** (job.gap_s / _HALF_LIFE_S)
        self._seen_s = _BELIEVED_S
        self._there_s = _BELIEVED * _BELIEVED_S
        self._helped = False

    def decide(self, view: FleetView) -> FleetDecision:
        job, pace = self._job, self._pace
        placing = self._placing
        if placing is None:
            prices = view.spot_usd_per_hour
            cheapest = min(range(len(prices)), key=lambda place: (prices[place], place))
            placing = self._placing = Placing(job, [cheapest], hazards=self._hazards)
            self._home = job.regions[cheapest]
        placing.see(view, needed=job.min_nodes)
        self._home = home_of(job, view) or self._home
        if not pace.may_risk(view):
            why = "no slack is left: on-demand is sure"
            return all_on_demand(job, view, job.max_nodes, home=self._home, why=why)
        needed = pace.needed_speed(view)
        site = self._best(placing, view, needed * self._seen_s / self._there_s)
        self._seen_s = self._seen_s * self._forget + job.gap_s
        self._there_s = self._there_s * self._forget + (site is not None) * job.gap_s
        spot = list(site.spot) if site else [0] * len(job.places)
        extra = self._on_demand_beside(view, sum(spot), needed)
        self._helped = extra > 0
        if extra:
            home = site.region if site else self._home
            beside = on_demand_nodes(job, view, extra, home=home)
            why = f"behind the line to the deadline: {extra} on on-demand beside {sum(spot)}"
            return hand_over(job, view, spot=spot, on_demand=beside, why=why)
        if site is None:
            nothing = [0] * len(job.places)
            why = "no spot anywhere, and there is time: wait"
            return FleetDecision(spot=tuple(nothing), on_demand=tuple(nothing), why=why)
        return hand_over(job, view, spot=spot, on_demand=[0] * len(spot), why=site.why)

    def _best(self, placing: Placing, view: FleetView, needed: float) -> Site | None:
        """The site whose work is cheapest among those fast enough; if none is, the fastest."""
        job, speeds = self._job, self._job.speeds
        held = min(sum(view.on_spot), job.max_nodes)
        most = min(placing.most, job.max_nodes)
        hurry = needed > _FULL * speeds[-1]
        if not speeds[most]:
            return None
        found: dict[int, Site] = {}
        for nodes in {*self._tried, held}:
            if nodes <= most and speeds[nodes] >= max(needed, speeds[job.min_nodes]):
                site = placing.best(nodes, home=self._home, hurry=hurry)
                if site:
                    found[nodes] = site
        if not found:
            return self._fastest(placing, most, hurry=hurry)
        cost = {
            nodes: (site.usd_per_hour + job.time_usd_per_hour) / speeds[nodes]
            for nodes, site in found.items()
        }
        best = min(cost, key=lambda nodes: (round(cost[nodes], 9), -nodes))
        if held in cost and cost[best] > _WORTH * cost[held]:
            best = held
        usd = cost[best]
        return _told(found[best], f"{best} nodes: {usd:.2f} USD for an hour of one node's work")

    def _fastest(self, placing: Placing, most: int, *, hurry: bool) -> Site | None:
        """All that there are; of the home region if it does not pay to leave it."""
        site = placing.best(most, home=self._home, hurry=hurry)
        if site is None:
            most = min(placing.room(self._home), self._job.max_nodes)
            site = placing.site(self._home, most) if self._job.speeds[most] else None
        return _told(site, f"{most} nodes, all that there are") if site else None

    def _on_demand_beside(self, view: FleetView, spot: int, needed: float) -> int:
        """On-demand nodes that it takes beside the spot ones to stay in time."""
        job = self._job
        if job.speeds[spot] >= _ROOM * needed and job.has_deadline:
            return 0
        price = min(place.on_demand_usd_per_hour for place in job.places)
        more_usd = price - min(view.spot_usd_per_hour)
        if not job.has_deadline:
            # By the node: the first ones help most.
            if spot or job.time_usd_per_hour < more_usd * job.min_nodes:
                return 0
            return job.min_nodes
        if not self._pace.pays_for_on_demand(
            view, is_there=self._helped, more_usd_per_hour=more_usd
        ):
            return 0
        total = next(
            (n for n in range(spot, job.max_nodes + 1) if job.speeds[n] >= needed), job.max_nodes
        )
        return total - spot


def _told(site: Site, why: str) -> Site:
    return Site(
        region=site.region,
        spot=site.spot,
        usd_per_hour=site.usd_per_hour,
        why=f"{why}: {site.why}",
    )
