"""A sweep's folder shows one line for each trial, and what the sweep cost in all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spotray.cli import status
from spotray.cli.main import main
from spotray.cli.sweep import headline
from spotray.clock import FakeClock
from spotray.events import Event
from spotray.ledger.charges import FREE
from spotray.ledger.journal import JournalWriter
from spotray.ledger.rundir import job_journal
from spotray.ledger.sweep import summarize_sweep
from spotray.ledger.sweepdir import SweepReader, load_sweep
from spotray.report.page import to_html
from spotray.report.sweep_page import page_of_sweep
from spotray.storage import Store
from tests.ledger.sweep_story import SweepStory, two_trials
from tests.report.test_page import Seen


def write(store: Store, *events: Event) -> None:
    with JournalWriter(store, writer="w") as journal:
        for event in events:
            journal.append(event)


def write_sweep(folder: Path, story: SweepStory) -> None:
    home = Store.at(folder)
    described = {"name": "vit", "metric": "val/loss", "mode": "min"}
    home.write("spotray/sweep.json", json.dumps(described).encode())
    write(home.child("spotray", "nodes"), *story.nodes)
    for run, events in story.runs.items():
        write(job_journal(home.child("trials", run)), *events)


@pytest.fixture
def sweep_dir(tmp_path: Path) -> Path:
    write_sweep(tmp_path, two_trials())
    return tmp_path


def words(line: str) -> str:
    return " ".join(line.split())


def test_status_has_a_line_for_each_trial_and_the_sums(
    sweep_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", str(sweep_dir)]) == 0
    lines = [words(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ("vit: ended, 2 trials: 1 finished, 1 interrupted; best val/loss 0.25 (one)")
    assert "losses 0 preemptions with notice, 1 without; 2 steps lost" in lines
    assert "cost $7.00 (head $2.00), on demand $22.00, saved 68.2 %" in lines
    assert (
        "trial state step val/loss workers market preemptions steps lost goodput cost saved"
        in lines
    )
    rows = [line for line in lines if line.startswith(("one ", "two "))]
    assert rows[0].startswith("one finished 40 0.25 - - 0 0 ")
    assert rows[1].startswith("two interrupted 30 0.75 - - 1 2 ")
    assert rows[0].endswith("$2.50 75.0 %")
    assert "two: stopped by the scheduler" in lines


def test_status_as_json_has_the_same_result(
    sweep_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", str(sweep_dir), "--json"]) == 0
    result = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert (result["name"], result["state"], result["best"]) == ("vit", "ended", "one")
    one, two = result["trials"]
    assert (one["trial"], one["metric"], one["goodput"]["steps"]) == ("one", 0.25, 40)
    assert two["presence"]["preemptions_silent"] == 1
    assert two["bill"]["money"]["cost_usd"] == pytest.approx(2.5)
    assert result["cost"]["total"]["total"]["cost_usd"] == pytest.approx(7.0)


def test_cost_is_told_by_trial_with_what_nobody_used(
    sweep_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cost", str(sweep_dir)]) == 0
    lines = [words(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "cost $7.00 (head $2.00), on demand $22.00, saved 68.2 %"
    assert "one finished 2 h 30 min $2.50 $10.00" in lines
    assert "two interrupted 2 h 30 min $2.50 $10.00" in lines
    assert "head 4 h 0 min $2.00 $2.00" in lines
    assert "spot 5 h 0 min $5.00 $20.00" in lines
    assert {"By cause", "head 4 h 0 min $2.00 $2.00"} <= set(lines)
    assert main(["cost", str(sweep_dir), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["total"]["billed_usd"] == pytest.approx(7.0)
    causes = {name: money["cost_usd"] for name, money in result["total"]["by_cause"].items()}
    assert sum(causes.values()) == pytest.approx(7.0)
    assert result["overhead_frac"] == pytest.approx(2 / 5)
    assert result["trials"]["one"]["money"]["cost_usd"] == pytest.approx(2.5)
    assert result["idle"]["cost_usd"] is None
    assert result["head"]["cost_usd"] == pytest.approx(2.0)


def test_cost_of_a_sweep_and_its_page_tell_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    story = SweepStory()
    story.up("a", "b")
    story.starts("one", "a", "b")
    story.at(0.5).down("b")
    story.at(10).ends("one")
    write_sweep(tmp_path, story)
    assert main(["cost", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    page = Seen()
    page.feed(to_html(page_of_sweep(load_sweep(tmp_path))))
    assert page.json["report-data"]["cost"] == told
    assert main(["cost", str(tmp_path)]) == 0
    lines = [words(line) for line in capsys.readouterr().out.splitlines()]
    assert f"bill $10.00: node time $10.50, -$0.5000 (1 nodes: {FREE})" in lines
    assert "startup 10 h 30 min $10.50 $42.00" in lines
    assert "By cause" in page.text
    assert FREE in page.text


def test_unknown_prices_and_damage_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    story = SweepStory()
    story.up("a", usd=None, on_demand=None)
    story.starts("one", "a", cluster_journal=str(tmp_path / "gone"))
    story.at(1).ends("one")
    write_sweep(tmp_path, story)
    (tmp_path / "spotray" / "nodes" / "x.jsonl").write_text("nonsense\n")
    for command in ("status", "cost"):
        assert main([command, str(tmp_path)]) == 0
        text = capsys.readouterr().out
        assert "unknown, on demand unknown, saved unknown; no price known for 1 h 0 min" in text
        assert f"cluster journal {tmp_path / 'gone'} is empty or gone" in text
        assert "1 damaged journal lines were left out" in text


def test_a_trials_own_folder_is_an_ordinary_run(
    sweep_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", str(sweep_dir / "trials" / "one")]) == 0
    assert "one: finished, step 40" in capsys.readouterr().out


def test_recoveries_of_a_sweep_are_asked_of_its_trials(
    sweep_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", str(sweep_dir), "--recoveries"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert f"{sweep_dir}/trials/RUN" in captured.err


def test_a_sweep_is_followed_to_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    story = SweepStory()
    story.starts("one", "a")
    write_sweep(tmp_path, story)
    reader = SweepReader(tmp_path)

    class Playing(FakeClock):
        def sleep(self, duration_s: float) -> None:
            story.at(story.now_s / 3600 + 1)
            if "two" not in story.runs:
                story.starts("two", "a")
                write(job_journal(Store.at(tmp_path / "trials" / "two")), *story.runs["two"])
                return
            for run in story.runs:
                story.ends(run)
                write(job_journal(Store.at(tmp_path / "trials" / run)), story.runs[run][-1])

    def look() -> tuple[str, bool]:
        summary = summarize_sweep(reader.poll())
        return headline(summary), summary.state == "running"

    status.follow(look, clock=Playing())
    assert capsys.readouterr().out.splitlines() == [
        "vit: running, 1 trials: 1 running",
        "vit: running, 2 trials: 2 running",
        "vit: ended, 2 trials: 2 finished",
    ]
