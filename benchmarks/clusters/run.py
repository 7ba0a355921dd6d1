"""What a cluster does when spot is taken or out: with spotray's node provider, and with Ray's own.

Each system's cluster comes up by the real `ray up` in an emulated cloud of its own, where
somebody wants one worker all the time. Then spotray's goes through more with a training job
of two workers. Needs root and Linux; see `tests/emulated`.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import bench
from benchmarks.clusters import job
from benchmarks.clusters.job import NO_CAPACITY, NOTICE_S, TAKEN_AFTER_S
from tests.emulated.cloud import Cloud, emulated_cloud, wait_for
from tests.emulated.cluster import Cluster, Demand
from tests.emulated.needs import missing

START_LIMIT_S = 180.0
STOCK = "benchmarks/clusters/stock.yaml"
IN_A_ROW = 20
PARTS = ("worker", "job", "row")
_SETTLE_S = 3.0  # a new worker's agent is up then, and Ray has looked at it once


@dataclass(frozen=True, kw_only=True)
class Event:
    """One thing that happens to the worker, by its name, and what it is measured by."""

    what: str
    strike: Callable[[Cloud, str, float], None]
    notice_s: float = 0.0


def _notice(cloud: Cloud, name: str, notice_s: float) -> None:
    cloud.do("notice", name=name, seconds=notice_s)


def _lose(cloud: Cloud, name: str, notice_s: float) -> None:
    cloud.do("kill", name=name)


def _take(cloud: Cloud, name: str, notice_s: float) -> None:
    cloud.do("take", after_s=TAKEN_AFTER_S)
    cloud.do("kill", name=name)


def _outage(cloud: Cloud, name: str, notice_s: float) -> None:
    cloud.do("refuse", code=NO_CAPACITY, spot=True)
    cloud.do("kill", name=name)


EVENTS = {
    "notice": Event(what="a notice of 30 s, then the reclaim", strike=_notice, notice_s=NOTICE_S),
    "silent": Event(what="the worker is lost without a word", strike=_lose),
    "outage": Event(what="the worker is lost, and there is no spot anywhere", strike=_outage),
    "taken": Event(what="the worker is lost, and all spot is taken at once", strike=_take),
}
JOB_EVENTS = {
    "job, notice": "a notice of 30 s",
    "job, outage": "a worker is lost, and there is no spot anywhere",
    "job, outage, the other": "the other one as well",
    "job, return": "spot is back, until no worker is on demand",
    "job, in a row, silent": "one zone: lost without a word",
    "job, in a row, notice": "one zone: a notice of 30 s",
    "job, taken": "one zone: a worker is lost, and all spot is taken at once",
}


def _stock(cloud: Cloud) -> Cluster:
    # Its file names the profiles that ours makes, so that both have the same rights.
    cloud.run("spotray", "cluster", "prepare", Cluster(cloud).file)
    return Cluster(cloud, file=STOCK)


SYSTEMS: dict[str, Callable[[Cloud], Cluster]] = {"ray": _stock, "spotray": Cluster}
TITLES = {"ray": "type: aws", "spotray": "spotray"}


def measure(system: str, *, repeat: int, limit_s: float) -> Iterator[dict[str, Any]]:
    """All events, one after the other, on one cluster; a row for each."""
    with emulated_cloud() as cloud, tempfile.TemporaryDirectory() as folder:
        cloud.do("make_bucket", name="emulated")
        cluster = SYSTEMS[system](cloud)
        start_s = time.monotonic()
        cluster.up()
        bench.say(f"    ray up took {time.monotonic() - start_s:.1f} s")
        demand = cluster.demand(1, log=Path(folder) / "log")
        demand.wait_for_workers(1, timeout_s=START_LIMIT_S)
        for name, event in EVENTS.items():
            _on_spot(cloud, cluster, demand)
            row = _go_through(cloud, demand, event, limit_s=limit_s)
            row |= {"system": system, "event": name, "repeat": repeat}
            bench.say(f"    {name}: {_told(row)}")
            yield row
        demand.end()


def _on_spot(cloud: Cloud, cluster: Cluster, demand: Demand) -> None:
    """One worker, on spot, and nothing remembered of the last event."""
    cluster.forget()
    for one in cloud.workers(spot=False):
        cloud.do("kill", name=one["name"])
    (worker,) = wait_for(
        lambda: _only(cloud.workers(spot=True)), "one worker, on spot", timeout_s=START_LIMIT_S
    )
    demand.wait_for_worker(worker["ip"], timeout_s=START_LIMIT_S)
    time.sleep(_SETTLE_S)


def _go_through(cloud: Cloud, demand: Demand, event: Event, *, limit_s: float) -> dict[str, Any]:
    """Let it happen; what it led to. Seconds count from the loss's first sign."""
    (worker,) = cloud.workers()
    calls, event_s = len(cloud.launches()), time.time()
    event.strike(cloud, worker["name"], event.notice_s)
    try:
        back_s: float | None = demand.wait_for_workers(
            1, after_s=event_s, without=worker["ip"], timeout_s=limit_s
        )
    except AssertionError:
        back_s = None
    made = cloud.launches()[calls:]
    refused = [one for one in made if one["error"]]
    launched = [one for one in made if not one["error"]]
    cloud.do("allow")
    cloud.do("spare")
    return {
        "notice_s": event.notice_s,
        "limit_s": limit_s,
        "calls": len(made),
        "refused": len(refused),
        "launch_s": launched[-1]["at_s"] - event_s if launched and back_s else None,
        "after_refusal_s": launched[0]["at_s"] - refused[0]["at_s"]
        if launched and refused and back_s
        else None,
        "back_s": back_s - event_s if back_s else None,
        "on_demand": not launched[-1]["spot"] if launched and back_s else None,
    }


def parts(
    only: Sequence[str], *, systems: Sequence[str], repeats: int, limit_s: float, in_a_row: int
) -> Iterator[tuple[str, Iterator[dict[str, Any]]]]:
    """A cluster each: what it is for, and its rows as they come."""
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(repeats):
            told = f"({repeat + 1}/{repeats})"
            for system in systems if "worker" in only else ():
                title = f"one worker, {TITLES[system]} {told}"
                yield title, measure(system, repeat=repeat, limit_s=limit_s)
            if "job" in only:
                title = f"a job of two workers {told}"
                yield title, job.as_configured(Path(folder), repeat=repeat)
        if "row" in only:
            title = f"a job of two workers: {in_a_row} preemptions in a row"
            yield title, job.in_a_row(Path(folder), count=in_a_row)


def collect(
    found: Iterable[tuple[str, Iterable[bench.Row]]], path: Path, rows: list[bench.Row]
) -> bool:
    """Add all rows to ``rows`` and to a file as they come; whether no part was broken off."""
    whole = True
    for title, made in found:
        bench.say(title)
        try:
            for row in made:
                rows.append(row)
                bench.write_rows(path, rows)
        except (AssertionError, RuntimeError) as exc:  # of one cluster; the next is another one
            whole = False
            bench.say(f"{title}: broken off: {exc}")
    return whole


def _only(workers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return workers if len(workers) == 1 else []


def _told(row: bench.Row) -> str:
    calls = f"{row['calls']} calls, {row['refused']} refused"
    if row["back_s"] is None:
        return f"no worker in {row['limit_s']:.0f} s; {calls}"
    return f"another worker after {row['back_s']:.1f} s; {calls}"


def summary(rows: Sequence[bench.Row]) -> str:
    """A line for each event and system: medians, with the least and the most."""
    lines = []
    for (event, system), group in bench.by_key(_of(EVENTS, rows), "event", "system").items():
        back = _spread(group, "back_s")
        lines.append(
            [
                f"{event:7} {TITLES[system]}",
                _text(group, "launch_s", 1),
                back.text(1) if back else f"not in {group[0]['limit_s']:.0f}",
                _text(group, "calls", 0),
                _text(group, "refused", 0),
                _text([_in_ms(row) for row in group], "after_refusal_ms", 0),
            ]
        )
    head = ["event   provider", "launch s", "worker s", "calls", "refused", "to on-demand ms"]
    return bench.table(head, lines)


def job_summary(rows: Sequence[bench.Row]) -> str:
    """A line for each event of the job."""
    lines = []
    for (event,), group in bench.by_key(_of(JOB_EVENTS, rows), "event").items():
        columns = [("launch_s", 1), ("back_s", 1), ("calls", 0), ("refused", 0)]
        columns += [("after_refusal_ms", 0), ("steps", 0), ("steps_back", 0)]
        values = [{**row, **_in_ms(row)} for row in group]
        texts = (_text(values, column, digits) for column, digits in columns)
        lines.append([event, f"{len(group)}", *texts])
    head = ["event", "times", "launch s", "step of both s", "calls", "refused", "to on-demand ms"]
    return bench.table([*head, "steps", "steps back"], lines)


def _of(events: Iterable[str], rows: Sequence[bench.Row]) -> list[bench.Row]:
    known = frozenset(events)
    return [row for row in rows if row["event"] in known]


def _in_ms(row: bench.Row) -> dict[str, Any]:
    seconds = row["after_refusal_s"]
    return {"after_refusal_ms": None if seconds is None else seconds * 1000}


def _spread(rows: Sequence[bench.Row], column: str) -> bench.Spread | None:
    return bench.spread(row[column] for row in rows if row.get(column) is not None)


def _text(rows: Sequence[bench.Row], column: str, digits: int) -> str:
    found = _spread(rows, column)
    return found.text(digits) if found else "-"


def picture(path: Path, rows: Sequence[bench.Row]) -> bool:
    """Median seconds until there is another worker."""
    bars = []
    for (event, system), group in bench.by_key(_of(EVENTS, rows), "event", "system").items():
        back = _spread(group, "back_s")
        length = back.median if back else float(group[0]["limit_s"])
        note = "" if back else f"none in {length:.0f} s, {group[0]['calls']} calls"
        bars.append(
            bench.Bar(
                group=EVENTS[event].what, label=TITLES[system], parts=(("", length),), note=note
            )
        )
    return bench.bars(
        path, bars, title="Until there is another worker", unit="seconds", log_scale=False
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = bench.parser(__file__, __doc__)
    parser.add_argument("--repeat", type=bench.at_least(1), metavar="N", help="default: 3")
    parser.add_argument("--systems", type=bench.names(SYSTEMS), default=tuple(SYSTEMS))
    parser.add_argument(
        "--limit",
        type=bench.at_least(10),
        metavar="S",
        help="seconds after which nobody waits for a worker; default: 90, with --quick 60",
    )
    parser.add_argument(
        "--in-a-row",
        type=bench.at_least(1),
        metavar="N",
        help=f"preemptions of one zone; default: {IN_A_ROW}, with --quick 4",
    )
    parser.add_argument("--only", type=bench.names(PARTS), default=PARTS, metavar=",".join(PARTS))
    arguments = parser.parse_args(argv)
    if words := missing():
        print(f"not measured: an emulated cloud {words}")
        return 0
    bench.end_like_ctrl_c()
    rows: list[bench.Row] = []
    found = parts(
        arguments.only,
        systems=arguments.systems,
        repeats=arguments.repeat or (1 if arguments.quick else 3),
        limit_s=float(arguments.limit or (60 if arguments.quick else 90)),
        in_a_row=arguments.in_a_row or (4 if arguments.quick else IN_A_ROW),
    )
    try:
        code = 0 if collect(found, arguments.json, rows) else 1
    except KeyboardInterrupt:
        code = 130
        bench.say("interrupted: the cloud is gone; the rows so far are kept")
    print(summary(rows))
    print(job_summary(rows))
    print(bench.machine())
    drawn = arguments.json.with_suffix(".svg")
    print(f"rows: {arguments.json}" + (f", picture: {drawn}" if picture(drawn, rows) else ""))
    return code


if __name__ == "__main__":
    sys.exit(main())
