"""The commands print what the journal says, and fail in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spotray.cli import status, tables
from spotray.cli.main import main
from spotray.clock import FakeClock
from spotray.events import (
    Event,
    JobEnded,
    JobStarted,
    NodeDown,
    NodeUp,
    Restored,
    StepsDone,
    Warned,
    WorkerGroupLost,
    WorkerGroupStarted,
)
from spotray.ledger.journal import JournalWriter
from spotray.ledger.rundir import RunReader, job_journal
from spotray.ledger.summary import summarize
from spotray.storage import Store


def node(node_id: str) -> NodeUp:
    return NodeUp(
        at_s=0.0,
        node_id=node_id,
        name=f"i-{node_id}",
        market="m/[spot]",  # brackets are markup to some printers
        spot=True,
        usd_per_hour=1.0,
        on_demand_usd_per_hour=4.0,
    )


def steps(generation: int, first: int, last: int, at_s: float, loss: float = 0.5) -> StepsDone:
    return StepsDone(
        at_s=at_s,
        generation=generation,
        first_step=first,
        last_step=last,
        seconds=float(last - first + 1),
        samples=last - first + 1,
        world_size=2,
        loss=loss,
    )


RUNNING: list[Event] = [
    node("a"),
    node("b"),
    JobStarted(at_s=0.0, job="vit", run_id="r1", min_workers=1, max_workers=2),
    WorkerGroupStarted(at_s=5.0, generation=1, world_size=2, node_ids=("a", "b")),
    steps(1, 1, 10, 20.0),
    NodeDown(at_s=20.0, node_id="b", cause="preemption"),
    WorkerGroupLost(at_s=24.0, generation=1, cause="loss"),
    WorkerGroupStarted(at_s=26.0, generation=2, world_size=1, node_ids=("a",)),
    Restored(at_s=27.0, generation=2, step=8, source="snapshot", reached_step=10),
    steps(2, 9, 20, 40.0, loss=float("nan")),
]
ENDED = JobEnded(at_s=3600.0, job="vit", status="failed", why="out of luck")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    write(tmp_path, *RUNNING, ENDED)
    return tmp_path


def write(run_dir: Path, *events: Event) -> None:
    with JournalWriter(job_journal(Store.at(run_dir)), writer="w") as writer:
        for event in events:
            writer.append(event)


def test_status_tells_where_a_run_stands(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(run_dir), "--recoveries"]) == 0
    text = capsys.readouterr().out
    for words in [
        "vit: failed, step 20",
        "out of luck",
        "1 without (at most 2 steps lost",
        "m/[spot]",
        "preempted",
        "2 -> 1",
        "silent",
    ]:
        assert words in text, words
    assert "\x1b" not in text


def test_status_as_json_has_the_same_result(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", str(run_dir), "--json"]) == 0
    result = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert result["state"] == "failed"
    assert result["loss"] is None  # NaN is not JSON
    assert result["goodput"]["goodput_frac"] == pytest.approx(20 / 3600)
    assert result["recovery"]["steps_lost_silent_max"] == 2
    assert result["recovery"]["recoveries"][0]["kind"] == "silent"
    assert result["recovery"]["recoveries"][0]["seconds"] == pytest.approx(11.0)


def test_cost_tells_what_was_paid_and_saved(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cost", str(run_dir)]) == 0
    text = capsys.readouterr().out
    assert "saved 75.0 %" in text
    assert "i-a" in text
    assert main(["cost", str(run_dir), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["total"]["cost_usd"] == pytest.approx((3600 + 20) / 3600)
    assert result["saved_frac"] == pytest.approx(0.75)


def test_an_unknown_price_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, JobStarted(at_s=0.0, job="j", run_id="r"), NodeUp(at_s=0.0, node_id="n"))
    write(tmp_path, Warned(at_s=60.0, what="no agent on node n"))
    assert main(["cost", str(tmp_path)]) == 0
    assert "cost unknown, on demand unknown, saved unknown; no price known for 1 min 0 s" in (
        capsys.readouterr().out
    )
    assert main(["status", str(tmp_path)]) == 0
    assert "no agent on node n" in capsys.readouterr().out


def test_the_costs_of_several_runs_add_up_by_run_week_and_label(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [str(tmp_path / name) for name in ("one", "two")]
    for folder, team in zip(folders, ("vision", "speech"), strict=True):
        start = JobStarted(at_s=0.0, job="j", run_id="r", labels={"team": team})
        write(Path(folder), node(team), start, ENDED)
    assert main(["cost", *folders]) == 0
    text = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0] == "cost $2.00 for 2 runs, billed $2.00, on demand $8.00"
    for row in ("1970-W01 2 h 0 min $2.00 $8.00", "vision 1 h 0 min $1.00 $4.00"):
        assert row in lines, row
    assert main(["cost", *folders, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["by_run"][folders[0]]["cost_usd"] == pytest.approx(1.0)
    assert result["by_label"]["team"]["speech"]["cost_usd"] == pytest.approx(1.0)
    assert result["billed_usd"] == pytest.approx(2.0)


def test_cost_tells_the_bill_and_where_the_money_went(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cost", str(run_dir), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    causes = result["by_cause"]
    assert sum(one["seconds"] for one in causes.values()) == pytest.approx(3620)
    assert causes["useful"]["seconds"] == pytest.approx(8 * 2 + 12)
    assert result["billed_usd"] == pytest.approx(result["total"]["cost_usd"])
    assert main(["cost", str(run_dir)]) == 0
    text = capsys.readouterr().out
    assert "the same steps on demand, undisturbed: $0.0" in text
    assert "By cause" in text


@pytest.mark.parametrize("command", ["status", "cost"])
def test_a_folder_without_a_journal_is_one_line_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert main([command, str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert f"no journal in {tmp_path}" in captured.err


@pytest.mark.parametrize(
    "argv", [[], ["nonsense"], ["status"], ["status", "x", "--json", "--follow"]]
)
def test_wrong_usage_is_exit_code_2(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2


def test_following_prints_a_line_for_each_change_until_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, *RUNNING[:5])
    later: Iterator[Event | None] = iter([None, RUNNING[5], ENDED])

    class Playing(FakeClock):
        def sleep(self, duration_s: float) -> None:
            if (event := next(later)) is not None:
                write(tmp_path, event)

    reader = RunReader(tmp_path)

    def look() -> tuple[str, bool]:
        summary = summarize(reader.poll())
        return status.headline(summary), summary.state == "running"

    status.follow(look, clock=Playing())
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("; ")[1] for line in lines] == [
        "step 10 done, loss 0.5",
        "node b down: preemption, without notice",
        "job vit failed: out of luck",
    ]


def test_ctrl_c_is_exit_code_130(monkeypatch: pytest.MonkeyPatch, run_dir: Path) -> None:
    def interrupted(args: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("spotray.cli.cost.run", interrupted)
    assert main(["cost", str(run_dir)]) == 130


def test_help_and_version_load_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from spotray.cli.main import main\n"
        "try:\n    main([sys.argv[1]])\n"
        "except SystemExit as end:\n    assert end.code == 0\n"
        "assert not {'ray', 'torch', 'pyarrow', 'rich', 'numpy'} & set(sys.modules)\n"
    )
    for flag in ("--help", "--version"):
        done = subprocess.run(
            [sys.executable, "-c", code, flag], capture_output=True, text=True, check=True
        )
        assert "spotray" in done.stdout


def test_a_reader_that_has_seen_enough_is_no_error(run_dir: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "spotray.cli.main", "cost", str(run_dir)],
            stdout=write_end,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(write_end)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_plain_table_is_aligned() -> None:
    lines = tables.plain_table("T", ["a", ">n"], [["x", "1"], ["long", "22"]])
    assert lines == ["T", "  a      n", "  x      1", "  long  22"]
