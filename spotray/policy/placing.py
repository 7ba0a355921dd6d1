"""Where a number of nodes would best be: by price, by risk, and by what it costs to move."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from spotray.market.hazards import Hazards
from spotray.market.offer import Market
from spotray.policy.fleet import FleetJob, FleetView
from spotray.policy.outlook import Fit, Outlook

_LOOK_H = 6.0  # as far as prices and days are believed to stay as they are
_PATIENCE = 3.0  # power of the part of the time left that is needed: what an hour counts
_BACK_H = 24.0  # as far as it is asked when spot will be back
_PAYS = 1.5  # a move must save so many times what it costs: forecasts err


@dataclass(frozen=True, kw_only=True)
class Site:
    """Spot nodes in one region. ``usd_per_hour``: of all, with the risk of their loss."""

    region: str
    spot: tuple[int, ...]
    usd_per_hour: float
    why: str


class Placing:
    """Finds the best site for a number of nodes, tick by tick."""

    def __init__(
        self,
        job: FleetJob,
        places: Sequence[int] | None = None,
        *,
        hazards: Hazards | None = None,
    ) -> None:
        """Look at some places of a job, or at all.

        ``hazards``: what one's own nodes taught; without it public traces are believed.
        """
        self._job = job
        fits = None if hazards is None else [_fit(hazards, one.market) for one in job.places]
        self._outlook = Outlook(job.regions, gap_s=job.gap_s, fits=fits)
        self._zones = [place.market.zone for place in job.places]
        self._by_region: dict[str, list[int]] = {}
        for place in range(len(job.places)) if places is None else places:
            self._by_region.setdefault(job.regions[place], []).append(place)
        self._cheapest_od = min(place.on_demand_usd_per_hour for place in job.places)
        self._tightness = 0.0

    def see(self, view: FleetView, *, needed: int = 1) -> None:
        """Take a tick's facts; called once a tick, in order. ``needed``: nodes to be up."""
        self._outlook.see(view.elapsed_s, [count >= needed for count in view.capacity])
        self._view, job = view, self._job
        # What a lost hour costs: with slack it is made up for later and cheaply, without on
        # on-demand.
        if job.has_deadline:
            left_s = max(job.deadline_s - view.elapsed_s, job.gap_s)
            needs_frac = min(job.fastest_s(job.work_s - view.done_s) / left_s, 1.0)
            self._tightness = needs_frac**_PATIENCE
        self._rates = {
            place: self._rate_usd(place, view.spot_usd_per_hour[place])
            for places in self._by_region.values()
            for place in places
        }
        rate = self._rates.__getitem__
        self._cheap = {region: sorted(here, key=rate) for region, here in self._by_region.items()}
        self._room = {
            region: sum([view.capacity[place] for place in here])
            for region, here in self._by_region.items()
        }

    @property
    def most(self) -> int:
        """Spot nodes that the largest region holds now."""
        return max(self._room.values())

    def _rate_usd(self, place: int, price: float) -> float:
        """An hour of one spot node there, with what its losses will cost."""
        return price + self._outlook.losses(place, 1.0) * self._restart_usd(price)

    def _restart_usd(self, price: float) -> float:
        """What a start costs each node: paid without work, and the time."""
        job = self._job
        return job.start_s / 3600 * (price + self._hour_usd(price, self._tightness))

    def _hour_usd(self, price: float, tightness: float) -> float:
        """What an hour without work costs, for each node."""
        late_usd = tightness * max(self._cheapest_od - price, 0.0)
        return late_usd + self._job.time_usd_per_hour / self._job.max_nodes

    def site(self, region: str, nodes: int) -> Site | None:
        """The best of a region for so many nodes; None if it does not hold them.

        Nodes that are held stay where they are, unless a move pays.
        """
        view, cheap, rates = self._view, self._cheap[region], self._rates
        if self._room[region] < nodes:
            return None
        spot = [0] * len(self._job.places)
        left = nodes
        for place in cheap:  # what is held first, the cheapest of that
            spot[place] = min(view.on_spot[place], view.capacity[place], left)
            left -= spot[place]
        for place in cheap:
            more = min(view.capacity[place] - spot[place], left)
            spot[place] += more
            left -= more
        why = self._move_zones(spot, cheap)
        usd = sum([spot[place] * rates[place] for place in cheap])
        if not why:
            named = ", ".join(f"{spot[p]} in {self._zones[p]}" for p in cheap if spot[p])
            why = f"{named} at {usd:.2f} USD/h with their risk"
        return Site(region=region, spot=tuple(spot), usd_per_hour=usd, why=why)

    def _move_zones(self, spot: list[int], cheap: Sequence[int]) -> str:
        """Shift held nodes to cheaper zones of the region where that pays; says what it did."""
        view, rates = self._view, self._rates
        if sum([spot[place] > 0 for place in cheap]) == 1 and spot[cheap[0]]:
            return ""  # all in the cheapest
        for low in cheap:
            room = view.capacity[low] - spot[low]
            if room <= 0:
                continue
            for high in reversed(cheap):
                gain = rates[high] - rates[low]
                if gain <= 0:
                    break
                held = min(spot[high], view.on_spot[high])
                if not held:
                    continue
                saves = gain * self._stay_h(low)
                costs = self._overlap_usd(high)
                if saves > _PAYS * costs:
                    count = min(held, room)
                    spot[high] -= count
                    spot[low] += count
                    return (
                        f"{count} from {self._zones[high]} to {self._zones[low]}: saves "
                        f"{count * saves:.2f} USD, the move costs {count * costs:.2f}"
                    )
        return ""

    def _overlap_usd(self, place: int) -> float:
        """A node there, paid until the one in its place works: whole ticks."""
        ticks = math.ceil(self._job.pauses.launch_s / self._job.gap_s)
        return ticks * self._job.gap_s / 3600 * self._view.spot_usd_per_hour[place]

    def _stay_h(self, place: int) -> float:
        """How long a node will probably be there: until it is lost, or the work is done."""
        left_h = self._job.fastest_s(self._job.work_s - self._view.done_s) / 3600
        return self._outlook.stay_h(place, min(_LOOK_H, left_h))

    def back_pays(self, site: Site) -> bool:
        """Whether to go from the on-demand nodes that are held to spot ones of a site.

        They are paid on until the new ones work, and spot that goes again soon saves nothing.
        """
        held_usd = sum(
            count * place.on_demand_usd_per_hour
            for count, place in zip(self._view.on_demand, self._job.places, strict=True)
        )
        ticks = math.ceil(self._job.pauses.launch_s / self._job.gap_s)
        costs = held_usd * ticks * self._job.gap_s / 3600
        stays_h = min(self._stay_h(place) for place, count in enumerate(site.spot) if count)
        return (held_usd - site.usd_per_hour) * stays_h > _PAYS * costs

    def room(self, region: str) -> int:
        """Spot nodes that a region holds now."""
        return self._room.get(region, 0)

    def best(self, nodes: int, *, home: str = "", hurry: bool = False) -> Site | None:
        """The best site of all regions; None if none holds so many, or if it pays to wait.

        Args:
            nodes: how many, all in one region.
            home: where the job is, or was last: to leave costs a restart and the move of its
                data.
            hurry: every hour lost now is made up for on on-demand.
        """
        found = [site for region in self._by_region if (site := self.site(region, nodes))]
        if not found:
            return None
        there = next((site for site in found if site.region == home), None)
        cheapest = min(found, key=lambda site: site.usd_per_hour)
        if there is None:
            waits = self._job.move_usd > 0 and home in self._by_region and self._view.done_s > 0
            return None if waits and self._wait_pays(nodes, home, cheapest, hurry) else cheapest
        if cheapest is there:
            return cheapest
        first = next(place for place, count in enumerate(cheapest.spot) if count)
        saves = (there.usd_per_hour - cheapest.usd_per_hour) * self._stay_h(first)
        price = self._view.spot_usd_per_hour[first]
        costs = self._job.move_usd
        if self._view.working:
            costs += nodes * self._restart_usd(price)
        if saves <= _PAYS * costs:
            return there
        return Site(
            region=cheapest.region,
            spot=cheapest.spot,
            usd_per_hour=cheapest.usd_per_hour,
            why=f"{nodes} from {home} to {cheapest.region}: saves {saves:.2f} USD, the move "
            f"costs {costs:.2f}",
        )

    def _wait_pays(self, nodes: int, home: str, site: Site, hurry: bool) -> bool:
        """Whether spot will probably be back at home for less than the way of the data."""
        hours = self._outlook.back_h(self._by_region[home], _BACK_H)
        first = next(place for place, count in enumerate(site.spot) if count)
        price = self._view.spot_usd_per_hour[first]
        hour_usd = self._hour_usd(price, 1.0 if hurry else self._tightness)
        return self._job.move_usd > nodes * hour_usd * hours


def _fit(hazards: Hazards, market: Market) -> Fit:
    fit = hazards.of(market).fit
    return lambda age_h: fit.cumulative(age_h * 3600)
