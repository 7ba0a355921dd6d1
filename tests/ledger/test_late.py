from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spotray.events import NodeDown, RebalanceHint
from spotray.ledger.journal import read_journal
from spotray.ledger.late import LateJournal
from spotray.storage import Store

HINT = RebalanceHint(at_s=1.0, node_id="n1")
DOWN = NodeDown(at_s=2.0, node_id="n1", cause="shutdown")


def test_what_was_appended_is_there_after_close(tmp_path: Path) -> None:
    journal = LateJournal(str(tmp_path / "j"), writer="agent-n1")
    journal.append(HINT)
    journal.append(DOWN)
    assert journal.close(timeout_s=10)
    assert read_journal(Store.at(tmp_path / "j")) == [HINT, DOWN]


def test_without_an_event_nothing_is_made(tmp_path: Path) -> None:
    assert LateJournal(str(tmp_path / "j"), writer="agent-n1").close(timeout_s=10)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_is_said_and_holds_nobody_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    journal = LateJournal("nowhere://bucket/j", writer="agent-n1")
    journal.append(HINT)
    journal.append(DOWN)
    assert journal.close(timeout_s=10)
    assert caplog.text.count("cannot be opened") == 1
    assert "this node's facts are lost" in caplog.text


def test_an_idle_agent_has_loaded_no_ray_no_torch_and_no_pyarrow() -> None:
    code = (
        "import sys, spotray.agent.__main__ as main\n"
        "main.LateJournal('/nowhere', writer='agent-n1')\n"
        "print([m for m in ('ray', 'torch', 'pyarrow', 'numpy') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert out.stdout.strip() == "[]"
