"""A run's facts are found from its folder, with the cluster's where it names them."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotray.errors import ConfigError
from spotray.events import Event, JobStarted, NodeReady, Warned
from spotray.ledger.journal import JournalWriter
from spotray.ledger.rundir import RunReader, job_journal, load_run
from spotray.storage import Store


def write(store: Store, *events: Event, writer: str = "w") -> None:
    with JournalWriter(store, writer=writer) as journal:
        for event in events:
            journal.append(event)


def started(cluster_journal: str = "") -> JobStarted:
    return JobStarted(at_s=2.0, job="j", run_id="r", cluster_journal=cluster_journal)


NODE = NodeReady(at_s=1.0, node_id="n")


def test_both_journals_are_read_in_one_order(tmp_path: Path) -> None:
    cluster = Store.at(tmp_path / "cluster")
    write(cluster, NODE)
    write(job_journal(Store.at(tmp_path / "run")), started(cluster.url))
    run = load_run(tmp_path / "run")
    assert run.events == (NODE, started(cluster.url))
    assert run.missing == ()


def test_a_journals_own_folder_will_do(tmp_path: Path) -> None:
    write(Store.at(tmp_path), NODE)
    assert load_run(tmp_path).events == (NODE,)


def test_a_cluster_journal_that_is_gone_is_told(tmp_path: Path) -> None:
    write(job_journal(Store.at(tmp_path)), started(str(tmp_path / "gone")))
    run = load_run(tmp_path)
    assert len(run.events) == 1
    assert str(tmp_path / "gone") in run.missing[0]


def test_the_same_journal_is_not_read_twice(tmp_path: Path) -> None:
    own = job_journal(Store.at(tmp_path))
    write(own, NODE, started(own.url))
    assert len(load_run(tmp_path).events) == 2


def test_a_reader_follows_both_journals(tmp_path: Path) -> None:
    cluster, own = Store.at(tmp_path / "cluster"), job_journal(Store.at(tmp_path / "run"))
    write(own, started(cluster.url))
    reader = RunReader(tmp_path / "run")
    assert len(reader.poll().missing) == 1
    write(cluster, NODE)
    write(own, Warned(at_s=3.0, what="x"))
    run = reader.poll()
    assert [type(event).__name__ for event in run.events] == ["NodeReady", "JobStarted", "Warned"]
    assert run.missing == ()


def test_a_folder_without_a_journal_is_told_with_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"spotray/journal/\*\.jsonl") as caught:
        load_run(tmp_path)
    assert "\n" not in str(caught.value)
