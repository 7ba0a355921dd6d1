from __future__ import annotations

import os
from pathlib import Path

import pytest

from spotray.cluster.telling import Teller
from spotray.events import LaunchWaited
from spotray.ledger.journal import read_journal
from spotray.storage import Store

WAITED = LaunchWaited(at_s=1.0, node_type="gpu", wanted=1, until_s=61.0, why="all out")


def test_facts_go_to_the_journal_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTRAY_JOURNAL", str(tmp_path / "journal"))
    teller = Teller("aws")
    teller(WAITED)
    assert teller.close()
    assert read_journal(Store.at(tmp_path / "journal")) == [WAITED]
    (file,) = (tmp_path / "journal").iterdir()
    assert file.name.startswith("launches-aws-")
    assert str(os.getpid()) in file.name


def test_without_a_journal_facts_are_dropped_and_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPOTRAY_JOURNAL", raising=False)
    monkeypatch.chdir(tmp_path)
    teller = Teller("aws")
    teller(WAITED)
    assert teller.close()
    assert list(tmp_path.iterdir()) == []
