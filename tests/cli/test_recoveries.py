"""``spotray status --recoveries`` shows each recovery, its phases, and what went wrong."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from spotray.cli.main import main
from spotray.cli.recoveries import recovery_lines
from spotray.events import Event, FellBack, MemberFencedOut
from spotray.ledger.journal import JournalWriter
from spotray.ledger.recovery import RecoverySummary, summarize_recoveries
from spotray.ledger.rundir import job_journal
from spotray.storage import Store
from tests.ledger.story import Story, four_losses


def told() -> Story:
    """Four losses that cost restarts, then one that survivors recovered from live."""
    story = four_losses()
    story.silent_loss("g", detected_after_s=0.05)
    story.live_group("f", restored=story.step)
    story.steps(2)
    why = "two workers are left and this job needs four of them, so it waits for others"
    story.note(FellBack(at_s=story.now_s, generation=7, why=why, to="restart"))
    story.note(MemberFencedOut(at_s=story.now_s, generation=7, node_id="g", why="no heartbeat"))
    return story


def lines(story: Story, width: int = 100) -> list[str]:
    summary = summarize_recoveries(story.events)
    return [text for text, _ in recovery_lines(summary, began_s=1030.0, width=width)]


def test_a_recovery_is_a_row_and_its_phases() -> None:
    text = lines(told())
    row = next(index for index, line in enumerate(text) if " live " in line)
    assert " ".join(text[row].split()) == "1 min 48 s silent live 2 -> 1 1.75 s 2.75 s 0 peers"
    assert text[row + 1].strip() == (
        "detect 0.05 + agree 0.90 + connect 0.10 + heal 0.20 + first step 0.50; nodes g"
    )


def test_one_that_is_not_over_says_so() -> None:
    story = told()
    story.silent_loss("f")
    story.group("h", restored=0, source="fresh", reached=90)
    assert any(line.strip() == "not over yet; nodes f" for line in lines(story))


def test_each_kind_and_mode_has_its_sums() -> None:
    found = [line.split() for line in lines(told())]
    assert ["silent", "restart", "2", "25.0", "s", "41.0", "s", "22.5", "s", "37.5", "s", "7"] in (
        found
    )
    assert ["silent", "live", "1", "1.75", "s", "1.75", "s", "2.75", "s", "2.75", "s", "0"] in found


def test_what_live_recovery_could_not_do_is_told() -> None:
    text = "\n".join(lines(told()))
    assert "generation 7 fell back (restart): two workers are left" in text
    assert "generation 7 goes on without node g: no heartbeat" in text


def test_a_log_has_no_line_above_100_columns() -> None:
    assert max(map(len, lines(told()))) <= 100


@pytest.mark.parametrize("width", [1, 40, 60])
def test_a_narrow_terminal_breaks_no_phase_from_its_seconds(width: int) -> None:
    text = "\n".join(lines(told(), width))
    assert len(re.findall(r"first step \d\.\d\d", text)) == 6
    assert len(re.findall(r"detect \d\.\d\d", text)) == 6
    if width > 30:
        below = [line for line in lines(told(), width) if "detect" in line]
        assert max(map(len, below)) <= width


def test_a_job_without_recoveries_prints_nothing() -> None:
    assert list(recovery_lines(summarize_recoveries([]), began_s=0.0, width=100)) == []


def write(run_dir: Path, events: list[Event]) -> None:
    with JournalWriter(job_journal(Store.at(run_dir)), writer="w") as writer:
        for event in events:
            writer.append(event)


def test_json_has_the_same_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    story = told()
    write(tmp_path, story.events)
    assert main(["status", str(tmp_path), "--recoveries", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["recovery"]
    summary: RecoverySummary = summarize_recoveries(story.events)
    assert [one["mode"] for one in found["recoveries"]] == ["restart"] * 5 + ["live"]
    for one, expected in zip(found["recoveries"], summary.recoveries, strict=True):
        assert list(one["parts"].items()) == list(expected.parts.items())
        assert one["seconds"] == sum(one["parts"].values())
        assert one["pause_s"] == expected.pause_s
    assert [(one["kind"], one["mode"], one["count"]) for one in found["spreads"]] == [
        (one.kind, one.mode, one.count) for one in summary.spreads
    ]
    assert found["fallbacks"][0]["to"] == "restart"
    assert found["fenced_out"][0]["node_id"] == "g"


def on_terminal(run_dir: Path, **env: str) -> str:
    """What the command writes to a terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "spotray.cli.main", "status", str(run_dir), "--recoveries"]
    clean = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    process = subprocess.Popen(
        command, stdout=theirs, env=clean | {"TERM": "xterm", "COLUMNS": "120"} | env
    )
    os.close(theirs)
    seen = b""
    try:
        while block := os.read(ours, 4096):
            seen += block
    except OSError:  # how Linux says that the other side has closed
        pass
    os.close(ours)
    assert process.wait() == 0
    return seen.decode()


def test_colours_are_for_terminals_that_want_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, told().events)
    assert main(["status", str(tmp_path), "--recoveries"]) == 0
    assert "\x1b" not in capsys.readouterr().out
    yellow = "\x1b[33m"
    assert yellow in on_terminal(tmp_path)
    assert yellow not in on_terminal(tmp_path, NO_COLOR="1")
