"""Lives from the journals under a folder, and from those that they name."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotray.errors import ConfigError
from spotray.events import JobStarted, NodeDown, NodeUp, encode
from spotray.ledger.lifetimes import gather

SPOT = "aws/us-east-1a/g5.xlarge/spot"


def write(folder: Path, *events: object) -> None:
    folder.mkdir(parents=True)
    lines = "".join(encode(one) + "\n" for one in events)  # type: ignore[arg-type]
    (folder / "agent.jsonl").write_text(lines)


def life(name: str, seconds: float) -> tuple[NodeUp, NodeDown]:
    return (
        NodeUp(at_s=10.0, node_id=name, name=name, market=SPOT, spot=True),
        NodeDown(at_s=10.0 + seconds, node_id=name, cause="preemption"),
    )


def test_all_journals_below_a_folder_are_read_and_those_that_they_name(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    write(elsewhere, *life("i-far", 40))
    started = JobStarted(at_s=1.0, job="j", run_id="r", cluster_journal=str(elsewhere))
    write(tmp_path / "runs" / "one" / "spotray" / "journal", started, *life("i-a", 20))
    write(tmp_path / "runs" / "clusters" / "two", *life("i-b", 30))
    found = gather([str(tmp_path / "runs")])
    lives = {one.name: one.seconds for told in found.told for one in told.lives}
    assert lives == {"i-a": 20, "i-b": 30, "i-far": 40}
    assert len(found.told) == 3
    assert found.missing == ()


def test_a_cluster_journal_that_cannot_be_read_is_named_and_the_rest_counts(
    tmp_path: Path,
) -> None:
    started = JobStarted(at_s=1.0, job="j", run_id="r", cluster_journal="nowhere://x/y")
    write(tmp_path / "run", started, *life("i-a", 20))
    found = gather([str(tmp_path)])
    assert [one.name for told in found.told for one in told.lives] == ["i-a"]
    assert len(found.missing) == 1
    assert found.missing[0].startswith("cluster journal nowhere://x/y: ")


def test_a_folder_without_a_journal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no journal in .* or below it"):
        gather([str(tmp_path)])
