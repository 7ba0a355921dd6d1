"""How long a training job stands still when a node is lost, and how many steps it repeats.

The same small job of four workers runs under each system, and one thing happens to it.
Each measurement has a job, and a Ray cluster where the system needs one, of its own.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from benchmarks import bench
from benchmarks.recovery import measure
from benchmarks.recovery.jobs import STEP_S, WORKERS
from benchmarks.recovery.measure import Line, Lines
from benchmarks.recovery.systems import SYSTEMS, Site, System
from spotray.errors import LabError
from spotray.lab import processes
from spotray.ledger.recovery import recoveries
from spotray.ledger.rundir import load_run

BASELINE = "ray-train"
START_LIMIT_S = 120.0  # for a job to get going, which nobody measures
WARM_STEPS = 45  # of all workers together, before anything happens
NOTICE_S = 10.0
REPLACEMENT_S = 3.0
SETTLED_STEPS = 15  # new ones after which a job is back
SIZE_PATIENCE_S = 20.0  # longer for it to reach the number of workers that there can be
_REMARK_CHARS = 200
_JOURNAL_S = 15.0  # for facts to get from memory into the journal


@dataclass(frozen=True, kw_only=True)
class Happening:
    """One thing that happens to the job, by the ranks of the workers that it hits."""

    name: str
    what: str
    workers: int = WORKERS  # at the start
    expected: int = WORKERS - 1  # workers that there can be afterwards
    is_loss: bool = True  # at once, so that time counts from then
    replacement_s: float | None = None
    strike: Callable[[Site, dict[int, Line]], None]

    @property
    def is_growth(self) -> bool:
        return self.expected > self.workers


def _kill_nodes(*ranks: int) -> Callable[[Site, dict[int, Line]], None]:
    def strike(site: Site, members: dict[int, Line]) -> None:
        site.kill([members[rank].node for rank in ranks])

    return strike


_VICTIM = 2  # neither the first rank nor the last
EVENTS = {
    one.name: one
    for one in (
        Happening(
            name="process",
            what="a worker's process is killed, its node lives",
            expected=WORKERS,
            strike=lambda site, members: os.kill(members[_VICTIM].pid, signal.SIGKILL),
        ),
        Happening(
            name="node",
            what="a node vanishes with all its processes",
            strike=_kill_nodes(_VICTIM),
        ),
        Happening(
            name="frozen",
            what="a node falls silent, its sockets stay open",
            strike=lambda site, members: site.freeze(members[_VICTIM].node),
        ),
        Happening(
            name="noticed",
            what=f"a node goes {NOTICE_S:g} s after a notice",
            is_loss=False,
            strike=lambda site, members: site.notice(members[_VICTIM].node, NOTICE_S),
        ),
        Happening(name="rank0", what="the node of rank 0 vanishes", strike=_kill_nodes(0)),
        Happening(
            name="two",
            what="two nodes vanish at once",
            expected=WORKERS - 2,
            strike=_kill_nodes(1, _VICTIM),
        ),
        Happening(
            name="all",
            what=f"all nodes vanish at once; others start {REPLACEMENT_S:g} s later",
            expected=WORKERS,
            replacement_s=REPLACEMENT_S,
            strike=_kill_nodes(*range(WORKERS)),
        ),
        Happening(
            name="growth",
            what="a node is added to three",
            workers=WORKERS - 1,
            expected=WORKERS,
            is_loss=False,
            strike=lambda site, members: site.add(),
        ),
    )
}
QUICK = (
    (BASELINE, "node"),
    ("spotray-restart", "node"),
    ("spotray-live", "node"),
    ("spotray-live", "noticed"),
    ("spotray-live", "growth"),
)


def measure_one(
    system: System, event: Happening, *, repeat: int, limit_s: float, logs: Path
) -> dict[str, Any]:
    """Run one job through one event; the row of it. ``logs`` takes those of a job that failed."""
    row: dict[str, Any] = {"system": system.name, "event": event.name, "repeat": repeat}
    why = system.missing()
    if not why and event.name == "noticed" and not system.hears_notices:
        why = "it hears no notice, and loses the node as in the event 'node'"
    if why:
        return row | {"outcome": f"not supported: {why}"}
    with _folder() as folder:
        try:
            with _job(system, event, folder) as site:
                row |= _go_through(system, event, folder, site, limit_s)
        except LabError as exc:
            row["outcome"] = f"did not start: {exc}"
        if row["outcome"] != "ok":
            place = logs / f"{system.name}-{event.name}-{repeat}"
            place.mkdir(parents=True, exist_ok=True)
            for log in folder.glob("*.log"):
                shutil.copy(log, place)
    return row


def _go_through(
    system: System, event: Happening, folder: Path, site: Site, limit_s: float
) -> dict[str, Any]:
    """Let the event happen to a job that starts; outcome and costs."""
    lines = Lines(folder / "lines")
    started = _wait(lambda: _is_warm(lines.read(), event.workers), site, START_LIMIT_S)
    if started is not True:
        return {"outcome": f"did not start: {started or f'not in {START_LIMIT_S:g} s'}"}
    event_s = time.time()
    event.strike(site, measure.members(lines.all))
    loss_s = event_s + (NOTICE_S if event.name == "noticed" else 0.0)

    def is_back() -> bool:
        return measure.new_steps_since(lines.read(), loss_s) >= SETTLED_STEPS

    def is_whole() -> bool:
        return is_back() and lines.all[-1].world_size == event.expected

    if event.is_growth:
        back = _wait(is_whole, site, limit_s)
    else:
        back = _wait(is_back, site, limit_s)
        if back is True:
            _wait(is_whole, site, SIZE_PATIENCE_S)
    outcome = "ok"
    if back is not True:
        why = back or ("no more workers" if event.is_growth else "no new step")
        outcome = f"gave up after {time.time() - event_s:.0f} s: {why}"
    cost = measure.cost(
        lines.read(), event_s=event_s, is_loss=event.is_loss, world_expected=event.expected
    )
    row = {"outcome": outcome, **asdict(cost)}
    if back is True and system.name.startswith("spotray"):
        row |= _parts(folder, event_s, site)
    return row


def _is_warm(lines: Sequence[Line], workers: int) -> bool:
    """Whether all workers have done enough steps together."""
    if not lines or lines[-1].world_size != workers:
        return False
    group = [line for line in lines if line.world_size == workers]
    return (
        len(measure.members(lines)) == workers
        and group[-1].step - group[0].step >= WARM_STEPS
        and measure.new_steps_since(lines, time.time() - 2 * STEP_S - 1.0) > 0
    )


def _wait(
    ready: Callable[[], bool], site: Site, limit_s: float, look_s: float = 0.05
) -> bool | str:
    """True, or why it will not be; False where time ran out.

    The workers' files are looked at again and again: nobody announces a step.
    """
    pause = threading.Event()
    until_s = time.monotonic() + limit_s
    while not ready():
        if time.monotonic() > until_s:
            return False
        if why := site.ended():
            return why
        pause.wait(look_s)
    return True


def _parts(folder: Path, event_s: float, site: Site) -> dict[str, Any]:
    """How spotray's own journal takes the recovery apart: columns of seconds, and its mode."""
    run_dir, columns = folder / "storage" / "job", {}

    def is_told() -> bool:
        after = [
            one
            for one in recoveries(load_run(run_dir).events)
            if one.resumed_at_s is not None and one.resumed_at_s > event_s
        ]
        if after:
            columns["mode"] = after[0].mode
            columns.update({f"{part}_s": seconds for part, seconds in after[0].parts.items()})
        return bool(after)

    _wait(is_told, site, limit_s=_JOURNAL_S, look_s=0.5)
    return columns


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="spotray-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _job(system: System, event: Happening, folder: Path) -> Iterator[Site]:
    try:
        site = system.start(folder, workers=event.workers, replacement_s=event.replacement_s)
        try:
            yield site
        finally:
            site.close()
    finally:
        bench.end_descendants()


def summary(rows: Sequence[bench.Row]) -> str:
    """One line for each event and system: median (least-most), and how often plain Ray Train's."""
    lines, remarks = [], []
    for (event, system), group in bench.by_key(rows, "event", "system").items():
        good = [row for row in group if row["outcome"] == "ok"]
        plain = [r for r in rows if (r["system"], r["event"]) == (BASELINE, event)]
        cells = [
            _text(good, "seconds_to_next_step", 2),
            _ratio(good, plain),
            _text(good, "longest_pause_s", 2),
            _text(good, "steps_redone", 0),
            _text(good, "seconds_to_size", 1),
            _worlds(good),
        ]
        lines.append([f"{event:8} {system}", *cells, f"{len(good)}/{len(group)}"])
        bad = dict.fromkeys(str(row["outcome"]) for row in group if row["outcome"] != "ok")
        remarks += [f"{event}, {system}: {text[:_REMARK_CHARS]}" for text in bad]
    head = ["event    system", "next step s", "ratio", "pause s", "redone", "to size s"]
    return "\n".join([bench.table([*head, "workers", "ok"], lines), *remarks])


def _ratio(good: Sequence[bench.Row], plain: Sequence[bench.Row]) -> str:
    """Median seconds to the next step as a fraction of plain Ray Train's."""
    mine, base = _spread(good, "seconds_to_next_step"), _spread(plain, "seconds_to_next_step")
    return "-" if not mine or not base else f"{mine.median / base.median:.3f}"


def _spread(rows: Sequence[bench.Row], column: str) -> bench.Spread | None:
    return bench.spread(row[column] for row in rows if row.get(column) is not None)


def _text(rows: Sequence[bench.Row], column: str, digits: int) -> str:
    found = _spread(rows, column)
    return found.text(digits) if found else "-"


def _worlds(rows: Sequence[bench.Row]) -> str:
    if not rows:
        return "-"
    after = "/".join(str(w) for w in sorted({row["world_after"] for row in rows}))
    return f"{rows[0]['world_before']} -> {after}"


_COLUMNS = ("system", "event", "repeat", "outcome", *(f.name for f in fields(measure.Cost)))


def picture(path: Path, rows: Sequence[bench.Row]) -> bool:
    """Median seconds to the next new step; ours in the parts that the journal tells."""
    bars = []
    for (event, system), group in bench.by_key(rows, "event", "system").items():
        good = [row for row in group if row["outcome"] == "ok"]
        whole = _spread(good, "seconds_to_next_step")
        parts: tuple[tuple[str, float], ...] = (("", whole.median if whole else 0.0),)
        names = [n for row in good for n in row if n.endswith("_s") and n not in _COLUMNS]
        told = [(name, _spread(good, name)) for name in dict.fromkeys(names)]
        if whole and sum(part.median for _, part in told if part) > 0:
            given = [(name.removesuffix("_s"), part.median) for name, part in told if part]
            scale = whole.median / sum(length for _, length in given)
            parts = tuple((name, length * scale) for name, length in given)
        note = "" if whole else str(group[0]["outcome"]).split(":")[0]
        bars.append(bench.Bar(group=event, label=system, parts=parts, note=note))
    return bench.bars(
        path,
        bars,
        title="From the event to the first new step",
        unit="seconds, log scale (noticed, growth: the pause)",
        log_scale=True,
    )


def plan(arguments: Any) -> list[tuple[str, str]]:
    """Which system goes through which event, in order; each pair once."""
    if arguments.quick:
        chosen = list(QUICK)
    else:
        chosen = [(system, event) for event in EVENTS for system in SYSTEMS]
    if arguments.systems and arguments.events:
        return [(s, e) for e in arguments.events for s in arguments.systems]
    chosen = [(s, e) for s, e in chosen if not arguments.systems or s in arguments.systems]
    return [(s, e) for s, e in chosen if not arguments.events or e in arguments.events]


def main(argv: Sequence[str] | None = None) -> int:
    parser = bench.parser(__file__, __doc__)
    parser.add_argument(
        "--systems", type=bench.names(SYSTEMS), metavar="A,B", help=f"of {', '.join(SYSTEMS)}"
    )
    parser.add_argument(
        "--events", type=bench.names(EVENTS), metavar="X,Y", help=f"of {', '.join(EVENTS)}"
    )
    parser.add_argument("--repeat", type=bench.at_least(1), default=1, metavar="N")
    parser.add_argument(
        "--limit",
        type=bench.at_least(10),
        default=120,
        metavar="S",
        help="seconds after which a job counts as given up; default: %(default)s",
    )
    arguments = parser.parse_args(argv)
    bench.end_like_ctrl_c()
    processes.adopt_orphans()
    pairs = plan(arguments)
    rows: list[dict[str, Any]] = []
    try:
        for repeat in range(arguments.repeat):
            for system, event in pairs:
                bench.say(f"{system}: {EVENTS[event].what} ({repeat + 1}/{arguments.repeat})")
                row = measure_one(
                    SYSTEMS[system],
                    EVENTS[event],
                    repeat=repeat,
                    limit_s=arguments.limit,
                    logs=arguments.json.parent / "logs",
                )
                rows.append(row)
                bench.write_rows(arguments.json, rows)
                took = row.get("seconds_to_next_step")
                bench.say(f"    {row['outcome']}" + ("" if took is None else f", {took:.2f} s"))
    except KeyboardInterrupt:
        bench.say("interrupted: all nodes are ended; the rows so far are kept")
    print(summary(rows))
    print(bench.machine())
    drawn = arguments.json.with_suffix(".svg")
    print(f"rows: {arguments.json}" + (f", picture: {drawn}" if picture(drawn, rows) else ""))
    return 0 if len(rows) == len(pairs) * arguments.repeat else 130


if __name__ == "__main__":
    sys.exit(main())
