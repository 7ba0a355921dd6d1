"""What a job on several nodes costs when it may move between zones, and choose how many nodes.

    python benchmarks/policy/fleet.py [--worlds N] [--quick] [--json FILE]

Worlds are made up: no public trace has prices and several nodes of several zones at one time. In
each, a job of 48 h runs for every deadline under every policy, side by side. With ``--year``
one fleet of a thousand nodes runs for a year instead (with ``--quick`` for 30 days), to see how
long the simulator takes.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import bench
from spotray.policy.fleet import FleetJob
from spotray.sim.fleet import simulate_fleet
from spotray.sim.fleet_cases import FleetCase, Zones, cut_fleet, made_up_zones
from spotray.sim.fleet_compare import FleetRan, fleet_standings, run_fleet_cases
from spotray.sim.fleet_market import FleetMarket
from spotray.sim.fleet_named import FLEET_BASELINE, FLEET_POLICIES, fleet_policy

WORK_H = 48.0
DEADLINES_H = (52.0, 70.0, 92.0)
NODES = 4
SPEED_EXPONENTS = (1.0, 0.8)  # of the speed in the number of nodes
SILENT = (0.0, 0.5)  # of the preemptions, in turns of worlds
MOVE_USD = 2.0  # 100 GB to another region at 0.02 USD each
ON_DEMAND_USD = 1.006  # g5.xlarge
_FIRST_SEED = 1000  # worlds on which nothing was tried out


def cases(
    worlds: int, *, days: float, exponents: Sequence[float] = SPEED_EXPONENTS
) -> Iterator[tuple[float, FleetCase]]:
    """Every job, with the exponent of its speeds."""
    for index in range(worlds):
        zones = world(_FIRST_SEED + index, nodes=NODES, days=days)
        for exponent in exponents:
            for deadline_h in DEADLINES_H:
                job = fleet_job(zones, exponent, deadline_h)
                silent = SILENT[index % len(SILENT)]
                for case in cut_fleet(zones, job, silent_frac=silent):
                    yield exponent, case


def world(
    seed: int,
    *,
    nodes: int,
    days: float,
    zones: int = 3,
    gap_s: float = 600.0,
    limit_s: float = math.inf,
) -> Zones:
    """Three regions with so many zones each."""
    return made_up_zones(
        seed,
        nodes=nodes,
        days=days,
        zones=zones,
        gap_s=gap_s,
        on_demand_usd_per_hour=ON_DEMAND_USD,
        limit_s=limit_s,
    )


def fleet_job(zones: Zones, exponent: float, deadline_h: float) -> FleetJob:
    """The work that all nodes do in `WORK_H` hours."""
    speeds = (0.0, *(count**exponent for count in range(1, NODES + 1)))
    return FleetJob(
        gap_s=zones.gap_s,
        work_s=WORK_H * 3600 * speeds[-1],
        speeds=speeds,
        places=zones.places,
        deadline_s=deadline_h * 3600,
        move_usd=MOVE_USD,
    )


def at_one_price(case: FleetCase) -> FleetCase:
    """The same job where spot costs the same everywhere: what is left is when spot is there."""
    market = case.market
    rows = [*zip(*market.usd_per_hour, strict=True)]
    mean = sum(map(sum, rows)) / sum(map(len, rows))
    flat = FleetMarket(
        market.places,
        [*zip(*market.capacity, strict=True)],
        [[mean] * market.ticks for _ in market.places],
        gap_s=market.gap_s,
        notice_s=market.notice_s,
    )
    flat.silent = market.silent
    return dataclasses.replace(case, market=flat)


def summary(found: Sequence[tuple[str, FleetRan]]) -> str:
    """The policies over all jobs, and by part."""
    header = (
        *("jobs of", "policy", "jobs", "late", "of on-demand", "cheaper than one zone"),
        *("95 % by world", "worst job", "restarts", "moves", "hours"),
    )
    parts = {"all": [row for _, row in found]}
    for part, row in found:
        parts.setdefault(part, []).append(row)
        parts.setdefault(f"{row.deadline_s / 3600:g} h", []).append(row)
    lines = []
    for name, rows in parts.items():
        for one in fleet_standings(rows, baseline=FLEET_BASELINE) if rows else []:
            low, high = one.cheaper_low_frac, one.cheaper_high_frac
            lines.append(
                (
                    name,
                    one.policy,
                    str(one.jobs),
                    str(one.late),
                    f"{100 * one.of_on_demand_frac:.1f} %",
                    f"{100 * (one.cheaper_frac or 0):+.1f} %",
                    "" if low is None or high is None else f"{100 * low:+.1f} to {100 * high:+.1f}",
                    f"{100 * (one.worst_regret_frac or 0):+.1f} %",
                    f"{one.restarts:.1f}",
                    f"{one.moves:.1f}",
                    f"{one.hours:.1f}",
                )
            )
    return bench.table(header, lines)


def fleet_of_a_thousand(days: float, *, limit_s: float) -> None:
    """A fleet of a thousand nodes for so many days under each policy, timed."""
    nodes = 1000
    began_s = time.process_time()
    zones = world(_FIRST_SEED, nodes=nodes // 3, days=days, zones=4, gap_s=300.0, limit_s=limit_s)
    market = zones.market(0, zones.ticks, silent_frac=0.3)
    print(f"traces of {zones.ticks} ticks: {time.process_time() - began_s:.1f} s of CPU time")
    speeds = (0.0, *(count**0.9 for count in range(1, nodes + 1)))
    for name in FLEET_POLICIES:
        job = FleetJob(
            gap_s=zones.gap_s,
            work_s=0.6 * days * 86400 * speeds[-1],
            speeds=speeds,
            places=zones.places,
            deadline_s=zones.ticks * zones.gap_s,
        )
        began_s = time.process_time()
        outcome = simulate_fleet(fleet_policy(name), job, market)
        took_s = time.process_time() - began_s
        ended_s = outcome.ended_s or zones.ticks * zones.gap_s
        print(
            f"{name}: {took_s:.1f} s of CPU time for {ended_s / 86400:.0f} days, "
            f"{outcome.launches} launches, {outcome.preemptions} preemptions, of these "
            f"{outcome.at_limit} at the limit"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = bench.parser(__file__, __doc__)
    parser.add_argument("--worlds", type=bench.at_least(1), default=20)
    parser.add_argument(
        "--year", action="store_true", help="time a fleet of a thousand nodes for a year"
    )
    parser.add_argument(
        "--node-limit",
        type=bench.at_least(1),
        metavar="HOURS",
        help="with --year: age at which each spot node ends, as Google's preemptible ones at 24",
    )
    parser.set_defaults(json=Path(__file__).parent / "out" / "fleet.json")
    args = parser.parse_args(arguments)
    bench.end_like_ctrl_c()
    if args.year:
        limit_s = math.inf if args.node_limit is None else 3600.0 * args.node_limit
        fleet_of_a_thousand(30.0 if args.quick else 365.0, limit_s=limit_s)
        return 0
    worlds, days = (2, 4.0) if args.quick else (args.worlds, 8.0)
    exponents = SPEED_EXPONENTS[1:] if args.quick else SPEED_EXPONENTS
    policies = {name: fleet_policy(name) for name in FLEET_POLICIES}
    found: list[tuple[str, FleetRan]] = []
    for done, (exponent, case) in enumerate(cases(worlds, days=days, exponents=exponents), start=1):
        sides = [("own prices", case)]
        if exponent == exponents[-1]:
            sides.append(("one price", at_one_price(case)))
        for price, one in sides:
            part = f"{price}, speed n^{exponent:g}"
            found += [(part, row) for row in run_fleet_cases(policies, [one])]
        if done % 20 == 0:
            bench.say(f"{done} jobs")
    print(summary(found))
    rows = [
        {
            "part": part,
            "world": row.world,
            "first_tick": row.first_tick,
            "policy": row.policy,
            "deadline_h": row.deadline_s / 3600,
            "all_on_demand_usd": row.on_demand_usd,
            **dataclasses.asdict(row.outcome),
        }
        for part, row in found
    ]
    bench.write_rows(args.json, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
