"""The jobs of a comparison: cut from trace files, or from made-up zones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from spotray.errors import TraceError
from spotray.market.trace import Trace
from spotray.market.zones import generate_zone
from spotray.policy.job import Job
from spotray.sim.compare import Case
from spotray.sim.windows import availability, windows


def trace_files(paths: Sequence[Path]) -> list[Path]:
    """The trace files among ``paths``, and those under its folders; sorted, each once.

    Raises:
        TraceError: a path is not there, or a folder has no ``.json`` file.
    """
    found: set[Path] = set()
    for path in paths:
        if path.is_dir():
            inside = list(path.rglob("*.json"))
            if not inside:
                raise TraceError(f"{path}: no trace in it: give a folder with .json files")
            found.update(inside)
        elif path.exists():
            found.add(path)
        else:
            raise TraceError(f"{path}: no such file or folder")
    return sorted(found)


def load_traces(paths: Sequence[Path], *, nodes: int = 1) -> dict[str, tuple[float, bytes]]:
    """Tick length and availability of ``nodes`` nodes, by the trace's name.

    A name is the file's, with the folder's before it where two files would share one.

    Raises:
        TraceError: a file is no trace, or a price trace.
    """
    files = trace_files(paths)
    names = [file.stem for file in files]
    found = {}
    for file, name in zip(files, names, strict=True):
        if names.count(name) > 1:
            name = f"{file.parent.name}/{name}"
        trace = Trace.load(file)
        found[name] = (trace.gap_s, availability(trace, nodes=nodes))
    return found


def made_up_traces(
    count: int, *, days: float, gap_s: float = 300.0, seed: int = 0
) -> dict[str, tuple[float, bytes]]:
    """As `load_traces`, of made-up zones: nothing is known of real markets from them."""
    return {
        f"made-up-{index}": (
            gap_s,
            availability(generate_zone(index, duration_s=days * 86400, gap_s=gap_s)),
        )
        for index in range(seed, seed + count)
    }


def cut(
    traces: dict[str, tuple[float, bytes]],
    *,
    work_s: float,
    deadline_s: float,
    overhead_s: float,
    starts: int | None = None,
    on_demand_usd_per_hour: float = 3.06,
    spot_usd_per_hour: float = 0.9731,
) -> Iterator[Case]:
    """One job for each window of each trace, as long as the deadline.

    Args:
        traces: from `load_traces` or `made_up_traces`.
        work_s, deadline_s, overhead_s: of each job, seconds.
        starts: windows of a trace, which then may overlap; without it, side by side.
        on_demand_usd_per_hour, spot_usd_per_hour: prices of one node.

    Raises:
        ConfigError: the deadline cannot be met even on on-demand, or a value is out of range.
    """
    for name, (gap_s, up) in traces.items():
        job = Job(
            gap_s=gap_s,
            work_s=work_s,
            deadline_s=deadline_s,
            overhead_s=overhead_s,
            on_demand_usd_per_hour=on_demand_usd_per_hour,
            spot_usd_per_hour=spot_usd_per_hour,
        )
        for first, window in windows(up, ticks=job.ticks_in(deadline_s), starts=starts):
            yield Case(trace=name, first_tick=first, job=job, up=window)
