"""``spotray report`` writes one page, whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spotray.cli.main import main
from spotray.ledger.journal import JournalWriter
from spotray.ledger.rundir import job_journal
from spotray.storage import Store
from tests.ledger.story import four_losses
from tests.report.test_page import Seen


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "vit"
    with JournalWriter(job_journal(Store.at(folder)), writer="w") as writer:
        for event in four_losses().events:
            writer.append(event)
    return folder


def test_the_page_has_the_numbers_of_cost_and_status(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page.html"
    assert main(["report", str(run_dir), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}: vit: finished; open it in a browser\n"
    page = Seen()
    page.feed(out.read_text())
    assert main(["cost", str(run_dir), "--json"]) == 0
    assert page.json["report-data"]["cost"] == json.loads(capsys.readouterr().out)
    assert main(["status", str(run_dir), "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert page.json["report-data"]["goodput"] == status["goodput"]
    assert page.json["report-data"]["recovery"] == status["recovery"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "vit"]


def test_a_page_goes_to_standard_output_or_beside_its_reader(
    run_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert main(["report", str(run_dir), "--out", "-"]) == 0
    assert capsys.readouterr().out.startswith("<!DOCTYPE html>")
    monkeypatch.chdir(tmp_path)
    assert main(["report", "vit/"]) == 0
    assert (tmp_path / "vit-report.html").exists()


@pytest.mark.parametrize(
    ("run", "out", "words"),
    [("nothing", "page.html", "no journal in"), ("vit", "no/folder/page.html", "give --out FILE")],
)
def test_what_cannot_be_written_is_told_in_one_line(
    run_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    run: str,
    out: str,
    words: str,
) -> None:
    assert main(["report", str(tmp_path / run), "--out", str(tmp_path / out)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
