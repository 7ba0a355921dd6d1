"""``spotray simulate --fleet``: a job on several nodes that may spread over zones, and move."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spotray.errors import ConfigError, TraceError

if TYPE_CHECKING:
    from spotray.market.hazards import Hazards
    from spotray.policy.fleet import FleetPolicy
    from spotray.sim.fleet_cases import FleetCase, Zones
    from spotray.sim.fleet_compare import FleetStanding

_WORLDS, _DAYS = 3, 8.0  # where no traces are given
_EACH_MORE = 0.9  # exponent of the speed in the number of nodes, where none is given


def add_arguments(parser: Any) -> None:
    """Register the options that only a fleet has."""
    group = parser.add_argument_group(
        "a fleet", "All traces are zones of one time; the policies are other ones."
    )
    group.add_argument(
        "--fleet", action="store_true", help="the job runs on up to --nodes nodes in all zones"
    )
    group.add_argument(
        "--speeds",
        metavar="S1,S2,...",
        help="how fast 1, 2, ... nodes are, beside one; 0 for numbers it cannot train on; "
        f"default: --nodes of them, n to the power of {_EACH_MORE}",
    )
    group.add_argument(
        "--prices", type=Path, metavar="DIR", help="a price trace for every zone, ZONE.json"
    )
    group.add_argument(
        "--silent", type=float, default=0.0, metavar="PART", help="of preemptions without notice"
    )
    group.add_argument(
        "--book",
        metavar="FOLDER",
        help="of your own nodes' lives (spotray hazards --book), in place of public traces",
    )
    group.add_argument(
        "--node-limit",
        type=float,
        metavar="HOURS",
        help="age at which the cloud ends every spot node: 24 for Google's preemptible machines; "
        "default: none, or what a --book shows",
    )
    group.add_argument("--notice", type=float, default=120.0, metavar="SECONDS")
    group.add_argument(
        "--time-price",
        type=float,
        default=0.0,
        metavar="USD_PER_HOUR",
        help="what an hour is worth",
    )
    group.add_argument(
        "--move-price", type=float, default=0.0, metavar="USD", help="to move to another region"
    )
    group.add_argument(
        "--cloud",
        choices=("aws", "gcp", "azure"),
        default="aws",
        help="whose billing; default: %(default)s",
    )


def run(args: argparse.Namespace) -> int:
    """Simulate and print."""
    from spotray.cli.hazards import read_book
    from spotray.cli.tables import print_json
    from spotray.market.hazards import learn
    from spotray.policy.fleet import FleetJob, Pauses
    from spotray.sim.fleet_cases import cut_fleet, load_zones, made_up_zones
    from spotray.sim.fleet_compare import fleet_standings, run_fleet_cases
    from spotray.sim.fleet_named import FLEET_BASELINE, FLEET_POLICIES, fleet_policy

    hazards = learn(read_book(args.book)) if args.book else None
    policies = {name: fleet_policy(name, hazards) for name in args.policy or FLEET_POLICIES}
    speeds = _speeds(args)
    if not 0 <= args.silent <= 1:
        raise ConfigError(f"--silent is {args.silent!r}: give a part between 0 and 1")
    if not args.notice >= 0:
        raise ConfigError(f"--notice is {args.notice!r}: give seconds of at least 0")
    limit_s = _limit_s(args, hazards)
    if args.traces:
        worlds = [
            load_zones(
                args.traces,
                prices=args.prices,
                on_demand_usd_per_hour=args.on_demand_price,
                spot_usd_per_hour=args.spot_price,
                cloud=args.cloud,
                limit_s=limit_s,
            )
        ]
        source = "traces"
    else:
        if args.prices:
            raise ConfigError("--prices are of traces: give those, too")
        worlds = [
            made_up_zones(
                seed,
                nodes=len(speeds) - 1,
                days=_DAYS,
                on_demand_usd_per_hour=args.on_demand_price,
                cloud=args.cloud,
                limit_s=limit_s,
            )
            for seed in range(_WORLDS)
        ]
        source = f"{_WORLDS} made-up worlds of 3 regions with 3 zones each, prices made up, too: "
        source += "give traces to learn about a real market"
    cases: list[FleetCase] = []
    for zones in worlds:
        job = FleetJob(
            gap_s=zones.gap_s,
            work_s=args.hours * 3600 * speeds[-1],
            speeds=speeds,
            places=zones.places,
            deadline_s=args.deadline * 3600,
            time_usd_per_hour=args.time_price,
            move_usd=args.move_price,
            pauses=Pauses(launch_s=args.restart * 60),
        )
        cases += cut_fleet(
            zones, job, starts=args.starts, silent_frac=args.silent, notice_s=args.notice
        )
    if not cases:
        raise TraceError(
            f"no trace is as long as the deadline of {args.deadline:g} h (the longest: "
            f"{_longest_h(worlds):.1f} h): give longer ones, or an earlier --deadline"
        )
    rows = run_fleet_cases(policies, cases)
    result = fleet_standings(rows, baseline=FLEET_BASELINE)
    if args.json:
        print_json({"source": source, "standings": result, "jobs": rows})
        return 0
    if source != "traces":
        print(source)
    if math.isfinite(limit_s):
        print(f"every spot node ends after {limit_s / 3600:g} h at most")
    until = f"to be done in {args.deadline:g} h, " if math.isfinite(args.deadline) else ""
    print(
        f"{len(cases)} jobs of {args.hours:g} h on {len(speeds) - 1} nodes, {until}"
        f"{args.restart:g} min for a launch, {len(worlds[0].places)} zones"
    )
    _show(result)
    if args.why:
        for name, one in policies.items():
            _show_moments(name, one, cases[0])
    return 0


def _speeds(args: argparse.Namespace) -> tuple[float, ...]:
    if args.speeds is None:
        if args.nodes < 1:
            raise ConfigError(f"nodes is {args.nodes}: give at least 1")
        return (0.0, *(count**_EACH_MORE for count in range(1, args.nodes + 1)))
    try:
        return (0.0, *map(float, args.speeds.split(",")))
    except ValueError as exc:
        raise ConfigError(
            f"--speeds is {args.speeds!r}: give numbers with commas, such as 1,1.9,2.7,3.4"
        ) from exc


def _limit_s(args: argparse.Namespace, hazards: Hazards | None) -> float:
    """The age at which a spot node is ended: said, or seen in the lives of one's own nodes."""
    if args.node_limit is not None:
        if not 0 < args.node_limit < math.inf:
            raise ConfigError(f"--node-limit is {args.node_limit:g}: give hours above 0")
        return float(args.node_limit) * 3600
    level = None if hazards is None else hazards.levels.get(args.cloud)
    return math.inf if level is None else level.fit.limit_s


def _longest_h(worlds: list[Zones]) -> float:
    return max(zones.ticks * zones.gap_s for zones in worlds) / 3600


def _show(result: list[FleetStanding]) -> None:
    from spotray.cli.tables import print_table, usd

    print_table(
        "Policies",
        [
            "policy",
            ">cost",
            ">of on-demand",
            ">vs one zone",
            ">hours",
            ">late",
            ">worst job",
            ">nodes taken",
            ">restarts",
            ">moves",
        ],
        [
            [
                one.policy,
                usd(one.cost_usd),
                f"{100 * one.of_on_demand_frac:.1f} %",
                "" if one.cheaper_frac is None else f"{-100 * one.cheaper_frac:+.1f} %",
                f"{one.hours:.1f}",
                str(one.late),
                "" if one.worst_regret_frac is None else f"{100 * one.worst_regret_frac:+.1f} %",
                f"{one.preemptions:.1f}",
                f"{one.restarts:.1f}",
                f"{one.moves:.1f}",
            ]
            for one in result
        ],
    )


def _show_moments(name: str, policy: FleetPolicy, case: FleetCase) -> None:
    """When the first job changed its nodes, and why."""
    from spotray.sim.fleet import FleetMoment, simulate_fleet

    moments: list[FleetMoment] = []
    outcome = simulate_fleet(policy, case.job, case.market, moments=moments)
    print(f"\n{name}, {case.world} from tick {case.first_tick}: {outcome.cost_usd:.2f} USD")
    before = None
    for moment in moments:
        nodes = (moment.spot, moment.on_demand)
        if nodes != before:
            at_h, done_h = moment.tick * case.job.gap_s / 3600, moment.done_s / 3600
            print(f"  {at_h:7.2f} h  {done_h:7.2f} h done  {moment.usd:8.2f} USD  {moment.why}")
        before = nodes
