"""``spotray simulate [TRACE ...]``: what a job would cost under each policy."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spotray.cli import simulate_fleet
from spotray.errors import ConfigError, TraceError

if TYPE_CHECKING:
    from spotray.policy.job import JobPolicy
    from spotray.sim.compare import Case, Standing

_MADE_UP_ZONES, _MADE_UP_DAYS = 6, 15.0


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "simulate",
        help="what a job would cost under each policy, on spot traces",
        description="Replay one job at many places of spot traces, under each policy. "
        "A trace is a JSON file: how many nodes could be had, every so many seconds. "
        "Without one, zones are made up.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "traces", nargs="*", type=Path, metavar="TRACE", help="trace files, or folders of them"
    )
    parser.add_argument(
        "--policy",
        action="append",
        metavar="NAME",
        help="repeat it for several; a name with dots, package.module.Name, is your own; "
        "default: all that come with spotray, but spot-only",
    )
    parser.add_argument(
        "--hours", type=float, default=48.0, help="work of the job; default: %(default)g"
    )
    parser.add_argument(
        "--deadline", type=float, default=70.0, metavar="HOURS", help="default: %(default)g"
    )
    parser.add_argument(
        "--restart",
        type=float,
        default=3.0,
        metavar="MINUTES",
        help="useful time that a start or a change costs; default: %(default)g",
    )
    parser.add_argument(
        "--nodes",
        type=int,
        default=1,
        help="nodes the job needs, all or none; of a --fleet the most",
    )
    parser.add_argument("--on-demand-price", type=float, default=3.06, metavar="USD_PER_HOUR")
    parser.add_argument("--spot-price", type=float, default=0.9731, metavar="USD_PER_HOUR")
    parser.add_argument(
        "--starts",
        type=int,
        metavar="N",
        help="start the job at N places of each trace; default: as many as do not overlap",
    )
    parser.add_argument(
        "--why", action="store_true", help="print each change of the first job, and its reason"
    )
    parser.add_argument("--json", action="store_true", help="print the result object")
    simulate_fleet.add_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Simulate and print."""
    if args.fleet:
        return simulate_fleet.run(args)
    from spotray.cli.tables import print_json
    from spotray.sim.cases import cut, load_traces, made_up_traces
    from spotray.sim.compare import run_cases, standings
    from spotray.sim.named import POLICIES, policy

    names = args.policy or [name for name in POLICIES if name != "spot-only"]
    policies = {name: policy(name) for name in names}
    if args.traces:
        traces, source = load_traces(args.traces, nodes=args.nodes), "traces"
    else:
        if args.nodes != 1:
            raise ConfigError("made-up zones have one node: give traces to use --nodes")
        traces = made_up_traces(_MADE_UP_ZONES, days=_MADE_UP_DAYS)
        source = f"{_MADE_UP_ZONES} made-up zones: give traces to learn about a real market"
    cases = list(
        cut(
            traces,
            work_s=args.hours * 3600,
            deadline_s=args.deadline * 3600,
            overhead_s=args.restart * 60,
            starts=args.starts,
            on_demand_usd_per_hour=args.nodes * args.on_demand_price,
            spot_usd_per_hour=args.nodes * args.spot_price,
        )
    )
    if not cases:
        longest_h = max(gap_s * len(up) for gap_s, up in traces.values()) / 3600
        raise TraceError(
            f"no trace is as long as the deadline of {args.deadline:g} h (the longest: "
            f"{longest_h:.1f} h): give longer ones, or an earlier --deadline"
        )
    rows = run_cases(policies, cases)
    result = standings(rows, baseline="uniform-progress")
    if args.json:
        print_json({"source": source, "standings": result, "jobs": rows})
        return 0
    _show(args, result, source, len({case.trace for case in cases}))
    if args.why:
        for name, one in policies.items():
            _show_moments(name, one, cases[0])
    return 0


def _show(args: argparse.Namespace, result: list[Standing], source: str, traces: int) -> None:
    from spotray.cli.tables import print_table, usd

    if source != "traces":
        print(source)
    print(
        f"{result[0].jobs} jobs of {args.hours:g} h, to be done in {args.deadline:g} h, "
        f"{args.restart:g} min for a restart, on {traces} traces"
    )
    print_table(
        "Policies",
        [
            "policy",
            ">cost",
            ">of on-demand",
            ">vs uniform",
            ">above optimum",
            ">late",
            ">worst job",
        ],
        [
            [
                one.policy,
                usd(one.cost_usd),
                f"{100 * one.of_on_demand_frac:.1f} %",
                _signed(None if one.cheaper_frac is None else -one.cheaper_frac),
                _signed(one.above_optimum_frac),
                str(one.late),
                _signed(one.worst_regret_frac),
            ]
            for one in result
        ],
    )


def _signed(fraction: float | None) -> str:
    return "" if fraction is None else f"{100 * fraction:+.1f} %"


def _show_moments(name: str, policy: JobPolicy, case: Case) -> None:
    """When the first job changed what it ran on, and why."""
    from spotray.sim.single import Moment, simulate

    moments: list[Moment] = []
    outcome = simulate(policy, case.job, case.up, moments=moments)
    print(f"\n{name}, {case.trace} from tick {case.first_tick}: {outcome.cost_usd:.2f} USD")
    before = None
    for moment in moments:
        if moment.choice is not before:
            at_h, done_h = moment.tick * case.job.gap_s / 3600, moment.done_s / 3600
            print(f"  {at_h:7.2f} h  {done_h:7.2f} h done  {moment.why}")
        before = moment.choice
