from __future__ import annotations

import json
from pathlib import Path

import pytest

from spotray.errors import ConfigError, TraceError
from spotray.market.trace import Trace
from spotray.sim.cases import cut, load_traces, made_up_traces
from spotray.sim.windows import availability, windows


def write(path: Path, values: list[float], gap_s: float = 3600.0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"metadata": {"gap_seconds": gap_s}, "data": values}))
    return path


def test_availability_of_several_nodes_is_all_or_none() -> None:
    trace = Trace(gap_s=60, values=(4, 3, 0, 5))
    assert availability(trace) == bytes([1, 1, 0, 1])
    assert availability(trace, nodes=4) == bytes([1, 0, 0, 1])
    with pytest.raises(ConfigError, match="nodes is 0"):
        availability(trace, nodes=0)


def test_prices_are_no_availability() -> None:
    with pytest.raises(TraceError, match=r"data\[1\] is 0\.41"):
        availability(Trace(gap_s=60, values=(1, 0.41)))


def test_windows_lie_side_by_side_from_the_first_tick_to_the_last() -> None:
    up = bytes(range(10))
    assert list(windows(up, ticks=3)) == [
        (0, bytes([0, 1, 2])),
        (4, bytes([4, 5, 6])),
        (7, bytes([7, 8, 9])),
    ]


def test_more_windows_overlap_and_never_repeat() -> None:
    firsts = [first for first, _ in windows(bytes(10), ticks=8, starts=50)]
    assert firsts == [0, 1, 2]
    assert list(windows(bytes(10), ticks=11)) == []


def test_traces_of_a_folder_have_names_of_their_own(tmp_path: Path) -> None:
    write(tmp_path / "a" / "zone.json", [1, 0])
    write(tmp_path / "b" / "zone.json", [0, 0], gap_s=60.0)
    write(tmp_path / "b" / "other.json", [1, 1])
    found = load_traces([tmp_path])
    assert found == {
        "a/zone": (3600.0, b"\1\0"),
        "b/zone": (60.0, b"\0\0"),
        "other": (3600.0, b"\1\1"),
    }


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"none\.json: no such file"):
        load_traces([tmp_path / "none.json"])
    with pytest.raises(TraceError, match="no trace in it"):
        load_traces([tmp_path])


def test_a_job_is_as_long_as_its_deadline_and_short_traces_give_none(tmp_path: Path) -> None:
    traces = {"long": (3600.0, b"\1" * 10), "short": (3600.0, b"\1" * 3)}
    found = list(cut(traces, work_s=7200.0, deadline_s=4 * 3600.0, overhead_s=0.0))
    assert [(case.trace, case.first_tick, len(case.up)) for case in found] == [
        ("long", 0, 4),
        ("long", 6, 4),
    ]


def test_made_up_traces_differ_and_come_again() -> None:
    found = made_up_traces(3, days=2.0)
    assert len({up for _, up in found.values()}) == 3
    assert found == made_up_traces(3, days=2.0)
