"""Zones for jobs on several nodes: from trace files side by side, or made up."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from spotray.errors import ConfigError, TraceError
from spotray.market.offer import Market
from spotray.market.regions import generate_regions
from spotray.market.trace import Trace
from spotray.policy.fleet import FleetJob, Place
from spotray.sim.cases import trace_files
from spotray.sim.fleet_market import FleetMarket


@dataclass(frozen=True, kw_only=True)
class Zones:
    """Places with their availability and prices over one time."""

    name: str  # of the world that they are from
    gap_s: float
    places: tuple[Place, ...]
    capacity: tuple[tuple[int, ...], ...]  # by place, then tick
    usd_per_hour: tuple[tuple[float, ...], ...]

    @property
    def ticks(self) -> int:
        return len(self.capacity[0])

    def market(
        self,
        first_tick: int,
        ticks: int,
        *,
        silent_frac: float = 0.0,
        notice_s: float = 120.0,
        seed: int = 0,
    ) -> FleetMarket:
        """The market from a tick on, for so many ticks; see `FleetMarket`."""
        window = slice(first_tick, first_tick + ticks)
        return FleetMarket(
            self.places,
            [row[window] for row in self.capacity],
            [row[window] for row in self.usd_per_hour],
            gap_s=self.gap_s,
            silent_frac=silent_frac,
            notice_s=notice_s,
            seed=seed,
        )


@dataclass(frozen=True, kw_only=True)
class FleetCase:
    """One job at one place of the time of some zones."""

    world: str  # the unit of confidence
    first_tick: int
    job: FleetJob
    market: FleetMarket


def load_zones(
    paths: Sequence[Path],
    *,
    prices: Path | None = None,
    on_demand_usd_per_hour: float,
    spot_usd_per_hour: float,
    cloud: str = "aws",
    instance_type: str = "node",
    limit_s: float = math.inf,
) -> Zones:
    """One zone for each availability trace, all over the same time.

    A zone is called as its file up to the first ``_``: ``us-east-1a_v100_1.json`` is
    us-east-1a.

    Args:
        paths: files and folders of availability traces, in nodes.
        prices: a folder with a trace of spot prices, USD an hour of one node, for every zone,
            named as the zone's; without it spot costs ``spot_usd_per_hour`` everywhere.
        on_demand_usd_per_hour, spot_usd_per_hour: of one node.
        cloud, instance_type: of all zones.
        limit_s: age at which the cloud ends a spot node, such as 24 h of Google's preemptible
            machines; infinite: never.

    Raises:
        TraceError: a file is no trace, or another length or step than the others, or a price
            is missing or not above 0; the message names file and place.
        ConfigError: two files of one zone.
    """
    files = trace_files(paths)
    traces = [Trace.load(file) for file in files]
    zones = [file.stem.partition("_")[0] for file in files]
    for zone, file in zip(zones, files, strict=True):
        if zones.count(zone) > 1:
            raise ConfigError(
                f"{file}: another file is of zone {zone}, too: give one for each zone"
            )
    _check_alike(traces)
    capacity = [_whole(trace) for trace in traces]
    if prices is None:
        rows = [(spot_usd_per_hour,) * len(row) for row in capacity]
    else:
        rows = [_prices_of(zone, prices, traces[0]) for zone in zones]
    return Zones(
        name=", ".join(zones),
        gap_s=traces[0].gap_s,
        places=tuple(
            Place(
                market=Market(cloud=cloud, zone=zone, instance_type=instance_type, spot=True),
                on_demand_usd_per_hour=on_demand_usd_per_hour,
                limit_s=limit_s,
            )
            for zone in zones
        ),
        capacity=tuple(capacity),
        usd_per_hour=tuple(rows),
    )


def _check_alike(traces: Sequence[Trace]) -> None:
    first = traces[0]
    for trace in traces[1:]:
        if (trace.gap_s, len(trace.values)) != (first.gap_s, len(first.values)):
            raise TraceError(
                f"{trace.source}: {len(trace.values)} values every {trace.gap_s:g} s, "
                f"{first.source} has {len(first.values)} every {first.gap_s:g} s: "
                "zones side by side need traces of one length and step"
            )


def _whole(trace: Trace) -> tuple[int, ...]:
    for index, value in enumerate(trace.values):
        if value != int(value):
            raise TraceError(
                f"{trace.source}: data[{index}] is {value!r}: availability is a number of nodes"
            )
    return tuple(map(int, trace.values))


def _prices_of(zone: str, folder: Path, like: Trace) -> tuple[float, ...]:
    files = [file for file in trace_files([folder]) if file.stem.partition("_")[0] == zone]
    if len(files) != 1:
        raise TraceError(
            f"{folder}: {len(files)} price traces of zone {zone}: give one, named {zone}.json"
        )
    trace = Trace.load(files[0])
    for index, value in enumerate(trace.values):
        if value <= 0:
            raise TraceError(f"{trace.source}: data[{index}] is {value!r}: a price is above 0")
    _check_alike([like, trace])
    return tuple(map(float, trace.values))


def made_up_zones(
    seed: int,
    *,
    nodes: int,
    days: float,
    on_demand_usd_per_hour: float,
    regions: int = 3,
    zones: int = 3,
    gap_s: float = 300.0,
    cloud: str = "aws",
    instance_type: str = "node",
    limit_s: float = math.inf,
) -> Zones:
    """As `load_zones`, of made-up regions: nothing is known of real markets from them."""
    found = generate_regions(
        seed, regions=regions, zones=zones, nodes=nodes, duration_s=days * 86400, gap_s=gap_s
    )
    return Zones(
        name=f"made-up world {seed}",
        gap_s=gap_s,
        places=tuple(
            Place(
                market=Market(cloud=cloud, zone=one.zone, instance_type=instance_type, spot=True),
                on_demand_usd_per_hour=on_demand_usd_per_hour,
                limit_s=limit_s,
            )
            for one in found
        ),
        capacity=tuple(_whole(one.capacity) for one in found),
        usd_per_hour=tuple(
            tuple(part * on_demand_usd_per_hour for part in one.price_frac.values) for one in found
        ),
    )


def cut_fleet(
    zones: Zones,
    job: FleetJob,
    *,
    starts: int | None = None,
    silent_frac: float = 0.0,
    notice_s: float = 120.0,
) -> Iterator[FleetCase]:
    """The job at several times: windows as long as its deadline, all of it without one.

    Args:
        zones: where.
        job: on the zones' places and ticks.
        starts: windows, which then may overlap; without it, side by side.
        silent_frac, notice_s: see `FleetMarket`.
    """
    if starts is not None and starts < 1:
        raise ConfigError(f"cannot cut {starts} windows: give at least 1")
    ticks = -int(-job.deadline_s // job.gap_s) if job.has_deadline else zones.ticks
    room = zones.ticks - ticks
    if room < 0:
        return
    count = zones.ticks // ticks if starts is None else min(starts, room + 1)
    for index in range(count):
        first = round(index * room / (count - 1)) if count > 1 else 0
        market = zones.market(first, ticks, silent_frac=silent_frac, notice_s=notice_s, seed=first)
        yield FleetCase(world=zones.name, first_tick=first, job=job, market=market)
