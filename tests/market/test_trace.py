import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotray.errors import TraceError
from spotray.market.trace import Trace, generate

REAL = Path(__file__).parents[3] / "shared" / "spot-traces"

traces = st.builds(
    Trace,
    gap_s=st.integers(1, 1000).map(float),
    values=st.lists(st.integers(0, 9).map(float), min_size=1, max_size=40).map(tuple),
)


def write(path: Path, data: Any, gap: Any = 300) -> Path:
    path.write_text(json.dumps({"metadata": {"gap_seconds": gap}, "data": data}))
    return path


def test_a_value_holds_until_the_next_one(tmp_path: Path) -> None:
    trace = Trace.load(write(tmp_path / "t.json", [4, 3, 0]))
    assert [trace.capacity_at(s) for s in (0, 299.9, 300, 600, 10_000)] == [4, 4, 3, 0, 0]
    assert trace.duration_s == 900


def test_a_price_trace_has_values_and_no_capacity() -> None:
    trace = Trace(gap_s=60, values=(0.41, 0.39))
    assert trace.value_at(60) == 0.39
    with pytest.raises(TraceError, match=r"0\.41"):
        trace.capacity_at(0)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ([1, -2], r"data\[1\] is -2"),
        ([1, 2, float("nan")], r"data\[2\] is nan"),
        ([float("inf")], r"data\[0\] is inf"),
        ([1, "3"], r"data\[1\] is '3'"),
        ([True], r"data\[0\] is True"),
        ([None], r"data\[0\] is None"),
        ([], "no data"),
        ({"a": 1}, "data is dict"),
        (None, "data is NoneType"),
    ],
)
def test_a_damaged_trace_is_refused_with_file_index_and_value(
    tmp_path: Path, data: Any, named: str
) -> None:
    path = write(tmp_path / "damaged.json", data)
    with pytest.raises(TraceError, match=f"damaged.json.*{named}"):
        Trace.load(path)


@pytest.mark.parametrize("gap", [0, -1, "300", None, float("nan")])
def test_a_gap_that_is_no_time_is_refused(tmp_path: Path, gap: Any) -> None:
    with pytest.raises(TraceError, match="gap_seconds"):
        Trace.load(write(tmp_path / "t.json", [1], gap))


@pytest.mark.parametrize("text", ["", "[1, 2]", "{}", '{"metadata": 5, "data": [1]}', "\ufffd"])
def test_what_is_no_trace_is_refused_with_the_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=r"t\.json"):
        Trace.load(path)


def test_a_missing_file_is_a_trace_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        Trace.load(tmp_path / "none.json")


@given(traces)
def test_a_trace_is_the_same_after_json_and_back(trace: Trace) -> None:
    again = Trace._from_json(json.loads(trace.to_json()), trace.source)
    assert again == trace


@given(traces)
def test_the_changes_rebuild_the_trace(trace: Trace) -> None:
    changes = list(trace.changes())
    for index, value in enumerate(trace.values):
        assert [v for at_s, v in changes if at_s <= index * trace.gap_s][-1] == value


def test_a_generated_trace_depends_on_its_seed_alone() -> None:
    def make(seed: int) -> Trace:
        return generate(seed, nodes=4, duration_s=86_400, mean_up_s=3600, mean_down_s=600)

    assert make(1) == make(1)
    assert make(1).values != make(2).values


def test_a_generated_trace_is_available_as_often_as_asked() -> None:
    trace = generate(0, nodes=8, duration_s=40 * 86_400, mean_up_s=3600, mean_down_s=1200)
    assert trace.values[0] == 8
    assert sum(trace.values) / len(trace.values) / 8 == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize(
    "wrong", [{"nodes": 0}, {"duration_s": 0}, {"gap_s": -1}, {"mean_up_s": 10}]
)
def test_a_trace_cannot_be_generated_from_nonsense(wrong: dict[str, Any]) -> None:
    with pytest.raises(TraceError, match=next(iter(wrong))):
        generate(0, **({"nodes": 2, "duration_s": 600.0} | wrong))


@pytest.mark.skipif(not REAL.is_dir(), reason="no real traces on this machine")
def test_real_traces_load() -> None:
    files = sorted(REAL.rglob("*.json"))
    assert files
    for file in files:
        trace = Trace.load(file)
        assert max(trace.values) <= 16
        assert trace.duration_s > 86_400
