"""What the benchmark of clusters says of its rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.clusters import run


def row(system: str, event: str, **more: Any) -> dict[str, Any]:
    given = {"launch_s": 2.0, "back_s": 10.0, "calls": 1, "refused": 0, "after_refusal_s": None}
    return {"system": system, "event": event, "repeat": 0, "limit_s": 90.0, **given, **more}


OUTAGE = [
    row("ray", "outage", back_s=None, launch_s=None, calls=75, refused=75),
    row("spotray", "outage", calls=4, refused=3, after_refusal_s=0.0123),
]


def test_who_never_got_a_worker_is_not_given_a_number() -> None:
    stock, ours = run.summary(OUTAGE).splitlines()[1:]
    assert stock.split() == ["outage", "type:", "aws", "-", "not", "in", "90", "75", "75", "-"]
    assert ours.split() == ["outage", "spotray", "2.0", "10.0", "4", "3", "12"]


def test_repetitions_are_one_line_with_its_least_and_most() -> None:
    rows = [row("ray", "silent", repeat=n, back_s=float(s)) for n, s in enumerate((9, 30, 12))]
    (line,) = run.summary(rows).splitlines()[1:]
    assert "12.0 (9.0-30.0)" in line


def test_a_jobs_rows_are_in_the_table_of_its_own() -> None:
    event = "job, in a row, silent"
    ours = [row("spotray", event, repeat=n, steps=90 + n, steps_back=0) for n in range(3)]
    assert run.summary([*OUTAGE, *ours]) == run.summary(OUTAGE)
    (line,) = run.job_summary([*OUTAGE, *ours]).splitlines()[1:]
    told = line.removeprefix(event).split()
    assert told[:2] == ["3", "2.0"]
    assert told[-5:] == ["-", "91", "(90-92)", "0", "(0-0)"]


def test_a_cluster_that_breaks_off_keeps_its_rows_and_does_not_end_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks_off() -> Iterator[dict[str, Any]]:
        yield OUTAGE[0]
        raise AssertionError("not in 180 s: one worker, on spot")

    rows: list[Any] = []
    found = [("the first", breaks_off()), ("the second", iter(OUTAGE[1:]))]
    assert not run.collect(found, tmp_path / "rows.json", rows)
    assert rows == OUTAGE == json.loads((tmp_path / "rows.json").read_text())
    assert "the first: broken off: not in 180 s" in capsys.readouterr().err


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert run.picture(tmp_path / "rows.svg", OUTAGE)
    assert "75 calls" in (tmp_path / "rows.svg").read_text()


def test_stock_differs_in_what_launches_not_in_what_is_launched() -> None:
    from tests.emulated.cluster import PRESET

    stock = yaml.safe_load(Path(run.STOCK).read_text())
    ours = yaml.safe_load(Path(f"cluster-configs/{PRESET}.yaml").read_text())
    for key in ("region", "availability_zone", "cache_stopped_nodes"):
        assert stock["provider"][key] == ours["provider"][key]
    types = stock["available_node_types"]
    assert (
        types["spot"]["node_config"]["InstanceType"]
        == (ours["available_node_types"]["gpu"]["node_config"]["InstanceType"])
    )
    assert (
        types["on-demand"]["node_config"]["InstanceType"]
        == (types["spot"]["node_config"]["InstanceType"])
    )
    assert stock["provider"]["type"] == "aws"
