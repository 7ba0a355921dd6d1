"""``spotray simulate`` on traces, on made-up zones, with one's own policy, and on bad input."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from spotray.cli.main import main

SMALL = ["--hours", "4", "--deadline", "8", "--restart", "10"]


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    folder = tmp_path / "traces"
    folder.mkdir()
    for name, run in (("zone-a", [1] * 5 + [0] * 3), ("zone-b", [2] * 2 + [0])):
        data = {"metadata": {"gap_seconds": 600}, "data": (run * 100)[:200]}
        (folder / f"{name}.json").write_text(json.dumps(data))
    return folder


def test_it_compares_all_policies_on_the_same_jobs(
    traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", str(traces), *SMALL]) == 0
    out = capsys.readouterr().out
    assert out.startswith("8 jobs of 4 h, to be done in 8 h, 10 min for a restart, on 2 traces")
    policies = [line.split()[0] for line in out.splitlines()[3:]]
    assert policies == [
        *("on-demand-only", "greedy", "loop-guard", "uniform-progress", "lookahead"),
    ]
    assert "made-up" not in out


def test_json_has_the_standings_and_every_job(
    traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--policy", "greedy", "--policy", "uniform-progress", "--starts", "3"]
    assert main(["simulate", str(traces), *SMALL, *asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["source"] == "traces"
    assert [one["policy"] for one in told["standings"]] == ["greedy", "uniform-progress"]
    assert len(told["jobs"]) == 2 * 3 * 2
    assert all(job["optimum_usd"] <= job["cost_usd"] + 1e-9 for job in told["jobs"])


def test_without_traces_it_says_that_the_zones_are_made_up(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["simulate", *SMALL, "--policy", "greedy", "--starts", "1"]) == 0
    assert "made-up zones: give traces" in capsys.readouterr().out


def test_why_tells_each_change_of_the_first_job(
    traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", str(traces), *SMALL, "--policy", "greedy", "--why"]) == 0
    out = capsys.readouterr().out
    assert "greedy, zone-a from tick 0:" in out
    assert "no spot, and slack is left" in out


def test_ones_own_policy_is_named_when_it_fails(
    traces: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "faulty_policy.py").write_text(
        "class Faulty:\n"
        "    def begin(self, job): return self\n"
        "    def decide(self, view): return 1 / (3 - view.tick)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["simulate", str(traces), *SMALL, "--policy", "faulty_policy.Faulty"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "Faulty failed at tick 0: AttributeError" in error


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--hours", "4", "--deadline", "4"], "cannot be met even on on-demand: 4 h of work"),
        (["--hours", "40", "--deadline", "80"], "no trace is as long as the deadline of 80 h"),
        ([*SMALL, "--spot-price", "-1"], "spot_usd_per_hour is -1"),
        ([*SMALL, "--policy", "gready"], "did you mean 'greedy'"),
        ([*SMALL, "--nodes", "0"], "nodes is 0"),
        ([*SMALL, "--starts", "0"], "cannot cut 0 windows"),
    ],
)
def test_bad_input_is_one_line(
    traces: Path, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", str(traces), *arguments]) == 1
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_a_missing_trace_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "nowhere.json"]) == 1
    assert "nowhere.json: no such file or folder" in capsys.readouterr().err
