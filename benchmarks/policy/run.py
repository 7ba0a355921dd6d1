"""What each policy costs, on the same jobs, against Uniform Progress and the optimum.

    python benchmarks/policy/run.py [--traces DIR] [--quick] [--json FILE]

Each trace is cut into windows; in each, a job of 48 h is run for every deadline and overhead
under every policy. Without traces the zones are made up, and the table says so.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import bench
from spotray.sim.cases import cut, load_traces, made_up_traces, trace_files
from spotray.sim.compare import Case, Ran, run_cases, standings
from spotray.sim.named import POLICIES, policy

WORK_H = 48.0
DEADLINES_H = (52.0, 70.0, 92.0)
OVERHEADS_H = (0.02, 0.05, 0.1, 0.2, 0.4)
BASELINE = "uniform-progress"
COMPARED = tuple(name for name in POLICIES if name != "spot-only")  # which is late on purpose
_MADE_UP_ZONES, _MADE_UP_DAYS = 8, 16.0

Traces = dict[str, tuple[float, bytes]]


def sets_of(folders: Sequence[Path], *, part: str) -> dict[str, Traces]:
    """The traces by set: one for each folder that has some."""
    by_folder: dict[Path, list[Path]] = {}
    for file in trace_files(folders):
        by_folder.setdefault(file.parent, []).append(file)
    found = {}
    for folder, files in by_folder.items():
        name = folder.name
        if any(other != folder and other.name == name for other in by_folder):
            name = f"{folder.parent.name}/{name}"
        found[name] = {
            trace: (gap_s, _part(up, part)) for trace, (gap_s, up) in load_traces(files).items()
        }
    return found


def _part(up: bytes, part: str) -> bytes:
    half = len(up) // 2
    return {"all": up, "first": up[:half], "second": up[half:]}[part]


def cases(
    sets: dict[str, Traces],
    *,
    starts: int | None,
    deadlines_h: Sequence[float],
    overheads_h: Sequence[float],
) -> Iterator[tuple[str, Case]]:
    """Every job, with the name of its set."""
    # Overheads first, for what a policy works out for jobs of one size then serves all traces.
    for name, overhead_h, deadline_h in itertools.product(sets, overheads_h, deadlines_h):
        for case in cut(
            sets[name],
            work_s=WORK_H * 3600,
            deadline_s=deadline_h * 3600,
            overhead_s=overhead_h * 3600,
            starts=starts,
        ):
            yield name, case


def summary(rows: Sequence[bench.Row]) -> str:
    """The policies over all jobs; the default by set, deadline, overhead and availability."""
    header = (
        *("policy", "jobs", "late", "of on-demand", "cheaper than UP", "95 % by trace"),
        *("above optimum", "dearer jobs", "worst job"),
    )
    parts = [bench.table(header, _lines(rows))]
    for column, title in (
        ("set", "set"),
        ("deadline_h", "deadline, h"),
        ("overhead_h", "overhead, h"),
        ("availability", "availability"),
    ):
        lines = []
        for (value,), group in bench.by_key(sorted(rows, key=lambda r: r[column]), column).items():
            own = [line for line in _lines(group) if line[0] == "lookahead"]
            lines += [[str(value), *line[1:]] for line in own]
        parts.append(bench.table((f"lookahead by {title}", *header[1:]), lines))
    return "\n\n".join(parts)


def _lines(rows: Sequence[bench.Row]) -> list[list[str]]:
    fields = {field.name for field in dataclasses.fields(Ran)}
    ran = [
        Ran(
            **{k: v for k, v in row.items() if k in fields and k != "trace"},
            trace=f"{row['set']}/{row['trace']}",
        )
        for row in rows
    ]
    return [
        [
            one.policy,
            str(one.jobs),
            str(one.late),
            _percent(one.of_on_demand_frac),
            _percent(one.cheaper_frac, sign=True),
            f"{_percent(one.cheaper_low_frac, sign=True)} to "
            f"{_percent(one.cheaper_high_frac, sign=True)}",
            _percent(one.above_optimum_frac),
            _percent(one.dearer_jobs_frac),
            _percent(one.worst_regret_frac, sign=True),
        ]
        for one in standings(ran, baseline=BASELINE)
    ]


def _percent(fraction: float | None, *, sign: bool = False) -> str:
    if fraction is None:
        return "-"
    return f"{100 * fraction:{'+' if sign else ''}.1f} %"


def picture(path: Path, rows: Sequence[bench.Row]) -> bool:
    """Cost over on-demand of each policy, by set."""
    drawn = []
    for (name,), group in bench.by_key(rows, "set").items():
        for (who,), mine in bench.by_key(group, "policy").items():
            cost = sum(r["cost_usd"] for r in mine) / sum(r["on_demand_usd"] for r in mine)
            late = sum(r["is_late"] for r in mine)
            note = f"{100 * cost:.1f} %" + (f", {late} late" if late else "")
            drawn.append(bench.Bar(group=name, label=who, parts=(("", 100 * cost),), note=note))
        best = sum(r["optimum_usd"] for r in mine) / sum(r["on_demand_usd"] for r in mine)
        drawn.append(bench.Bar(group=name, label="optimum", parts=(("", 100 * best),)))
    title = "Cost of the same jobs"
    return bench.bars(path, drawn, title=title, unit="% of on-demand", log_scale=False)


def main(argv: Sequence[str] | None = None) -> int:
    parser = bench.parser(__file__, __doc__)
    parser.add_argument("--traces", type=Path, action="append", metavar="DIR")
    parser.add_argument(
        "--part",
        choices=("all", "first", "second"),
        default="all",
        help="of each trace; the default policy was fitted to the first half of some",
    )
    parser.add_argument("--leave-out", action="append", default=[], metavar="TRACE")
    parser.add_argument(
        "--starts",
        type=bench.at_least(1),
        metavar="N",
        help="windows of each trace, which may overlap; default: as many as lie side by side",
    )
    parser.add_argument(
        "--policy", action="append", metavar="NAME", help="more of them: package.module.Name"
    )
    arguments = parser.parse_args(argv)
    bench.end_like_ctrl_c()
    if arguments.traces:
        sets = sets_of(arguments.traces, part=arguments.part)
    else:
        bench.say("no --traces: made-up zones, which say nothing about a real market")
        zones = 2 if arguments.quick else _MADE_UP_ZONES
        sets = {"made up": made_up_traces(zones, days=_MADE_UP_DAYS)}
    for traces in sets.values():
        for name in [n for n in traces if any(part in n for part in arguments.leave_out)]:
            del traces[name]
    policies = {name: policy(name) for name in (*COMPARED, *(arguments.policy or ()))}
    wanted = list(
        cases(
            sets,
            starts=1 if arguments.quick else arguments.starts,
            deadlines_h=DEADLINES_H,
            overheads_h=(0.05, 0.4) if arguments.quick else OVERHEADS_H,
        )
    )
    short = [n for n, traces in sets.items() if not any(s == n for s, _ in wanted)]
    if short:
        bench.say(f"too short for {min(DEADLINES_H):g} h, left out: {', '.join(short)}")
    if not wanted:
        parser.error(f"no trace is as long as {min(DEADLINES_H):g} h")
    rows: list[bench.Row] = []
    ups = {(s, t): sum(up) / len(up) for s, traces in sets.items() for t, (_, up) in traces.items()}
    try:
        for done, (name, case) in enumerate(wanted, start=1):
            share = ups[name, case.trace]
            for ran in run_cases(policies, [case]):
                rows.append(
                    {
                        "set": name,
                        "deadline_h": ran.deadline_s / 3600,
                        "overhead_h": round(ran.overhead_s / 3600, 4),
                        "availability": f"{math.floor(share * 4) / 4:.2f} and more",
                        **dataclasses.asdict(ran),
                    }
                )
            if done % 100 == 0 or done == len(wanted):
                bench.say(f"{done} of {len(wanted)} jobs")
    except KeyboardInterrupt:
        bench.say("interrupted: the rows so far are kept")
        bench.write_rows(arguments.json, rows)
        return 130
    bench.write_rows(arguments.json, rows)
    print(summary(rows))
    print(bench.machine())
    drawn = arguments.json.with_suffix(".svg")
    print(f"rows: {arguments.json}" + (f", picture: {drawn}" if picture(drawn, rows) else ""))
    return 0 if not any(r["is_late"] for r in rows if r["policy"] == "lookahead") else 1


if __name__ == "__main__":
    sys.exit(main())
