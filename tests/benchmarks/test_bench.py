"""What the benchmarks share. Nothing here measures anything."""

from __future__ import annotations

import argparse
import json
import signal
from pathlib import Path

import pytest

from benchmarks import bench


def test_rows_go_beside_the_benchmark_unless_told_otherwise(tmp_path: Path) -> None:
    parser = bench.parser(str(tmp_path / "run.py"), "A claim.\n\nIts method.")
    assert parser.parse_args([]).json == tmp_path / "out" / "rows.json"
    assert parser.parse_args(["--json", "x.json"]).json == Path("x.json")
    assert parser.parse_args(["--quick"]).quick
    assert "Its method" not in parser.format_help()


def test_names_are_some_of_the_known_ones_each_once() -> None:
    read = bench.names(["ray-train", "torchrun"])
    assert read("torchrun, ray-train,torchrun") == ("torchrun", "ray-train")
    with pytest.raises(argparse.ArgumentTypeError, match="did you mean 'torchrun'"):
        read("ray-train,torchrum")
    with pytest.raises(argparse.ArgumentTypeError, match="give some of ray-train,torchrun"):
        read(",")


@pytest.mark.parametrize("text", ["0", "1.5", "many"])
def test_a_count_below_the_least_or_no_number_is_refused(text: str) -> None:
    assert bench.at_least(1)("3") == 3
    with pytest.raises(argparse.ArgumentTypeError, match="whole number of 1 or more"):
        bench.at_least(1)(text)


def test_rows_are_one_json_list_that_replaces_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rows.json"
    bench.write_rows(path, [{"system": "a", "seconds": 1.5}, {"system": "b", "seconds": None}])
    rows = json.loads(path.read_text())
    assert rows == [{"system": "a", "seconds": 1.5}, {"system": "b", "seconds": None}]
    with pytest.raises(ValueError, match="JSON compliant"):
        bench.write_rows(path, [{"seconds": float("nan")}])
    assert json.loads(path.read_text()) == rows
    bench.write_rows(path, [])
    assert json.loads(path.read_text()) == []
    assert [file.name for file in path.parent.iterdir()] == ["rows.json"]


def test_a_spread_is_median_and_ends_or_quartiles() -> None:
    values = [5.0, 1.0, 2.0, 3.0, 4.0]
    assert bench.spread(values) == bench.Spread(count=5, median=3.0, low=1.0, high=5.0)
    assert bench.spread(values, inner=True) == bench.Spread(count=5, median=3.0, low=2.0, high=4.0)
    assert bench.spread([]) is None
    alone = bench.spread([2.0], inner=True)
    assert alone is not None
    assert alone.text() == "2.0"


def test_rows_of_one_key_come_together_in_their_order() -> None:
    rows = [{"s": "b", "n": 1}, {"s": "a", "n": 2}, {"s": "b", "n": 3}]
    groups = bench.by_key(rows, "s")
    assert list(groups) == [("b",), ("a",)]
    assert [row["n"] for row in groups["b",]] == [1, 3]


def test_a_table_aligns_its_columns() -> None:
    text = bench.table(["system", "s"], [["ray-train", "72.4"], ["ours", "1.25"]])
    assert text == "system        s\nray-train  72.4\nours       1.25"


def test_sigterm_ends_a_benchmark_as_ctrl_c_does() -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        bench.end_like_ctrl_c()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("log_scale", [True, False])
def test_a_picture_names_every_bar_and_part(tmp_path: Path, log_scale: bool) -> None:
    pytest.importorskip("matplotlib")
    given = [
        bench.Bar(group="node", label="ray-train", parts=(("", 72.4),)),
        bench.Bar(group="node", label="ours", parts=(("detect", 0.1), ("agree", 1.1))),
        bench.Bar(group="all", label="torchrun", parts=(), note="no such thing"),
    ]
    path = tmp_path / "new" / "bars.svg"
    assert bench.bars(path, given, title="Seconds", unit="s", log_scale=log_scale)
    # matplotlib writes each text as a comment beside its drawn letters.
    drawn = path.read_text()
    for text in ("ray-train", "ours", "torchrun", "72.4", "detect", "agree", "no such thing"):
        assert f"<!-- {text}" in drawn or f"<!--  {text}" in drawn
