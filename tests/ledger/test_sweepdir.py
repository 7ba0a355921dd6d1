"""A sweep's facts are found from its folder, and followed as trials begin."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spotray.errors import ConfigError
from spotray.events import Event, JobEnded, JobStarted, NodeDown, NodeUp, Warned
from spotray.ledger.journal import JournalWriter
from spotray.ledger.rundir import job_journal
from spotray.ledger.sweepdir import SweepReader, is_sweep, load_sweep
from spotray.storage import Store

NODE = NodeUp(at_s=1.0, node_id="a")


def write(store: Store, *events: Event) -> None:
    with JournalWriter(store, writer="w") as journal:
        for event in events:
            journal.append(event)


def started(run: str, cluster_journal: str = "", at_s: float = 2.0) -> JobStarted:
    return JobStarted(at_s=at_s, job=run, run_id=run, cluster_journal=cluster_journal)


def write_run(sweep: Path, run: str, *events: Event) -> None:
    write(job_journal(Store.at(sweep / "trials" / run)), *events)


def describe(sweep: Path, text: str) -> None:
    (sweep / "spotray").mkdir(parents=True, exist_ok=True)
    (sweep / "spotray" / "sweep.json").write_text(text)


def test_runs_nodes_and_the_sweeps_own_words_are_read(tmp_path: Path) -> None:
    describe(tmp_path, json.dumps({"name": "vit", "metric": "loss", "mode": "min"}))
    write(Store.at(tmp_path / "spotray" / "nodes"), NODE)
    write_run(tmp_path, "one", started("one"))
    write_run(tmp_path, "one-0123abcd", started("one", at_s=3.0), Warned(at_s=4.0, what="x"))
    sweep = load_sweep(tmp_path)
    assert (sweep.name, sweep.metric, sweep.mode) == ("vit", "loss", "min")
    assert sweep.shared == (NODE,)
    assert {run: len(events) for run, events in sweep.runs.items()} == {"one": 1, "one-0123abcd": 2}
    assert sweep.missing == ()


def test_the_clusters_journal_is_read_once_for_all_trials(tmp_path: Path) -> None:
    cluster = Store.at(tmp_path / "cluster")
    of_another_job = [started("other"), JobEnded(at_s=9.0, job="other", status="finished")]
    write(cluster, NODE, *of_another_job)
    for run in ("one", "two"):
        write_run(tmp_path / "sweep", run, started(run, cluster.url))
    assert load_sweep(tmp_path / "sweep").shared == (NODE,)


def test_the_sweep_itself_may_name_the_clusters_journal(tmp_path: Path) -> None:
    cluster = Store.at(tmp_path / "cluster")
    write(cluster, NODE)
    own = started("vit", cluster.url)
    write(job_journal(Store.at(tmp_path / "sweep")), own)
    describe(tmp_path / "sweep", "{}")
    sweep = load_sweep(Store.at(tmp_path / "sweep"))
    assert (sweep.shared, sweep.runs, sweep.missing) == ((NODE, own), {}, ())


def test_the_sweeps_own_start_and_end_are_kept(tmp_path: Path) -> None:
    own = [started("vit"), JobEnded(at_s=9.0, job="vit", status="finished")]
    write(job_journal(Store.at(tmp_path)), *own)
    write_run(tmp_path, "one", started("one"))
    assert list(load_sweep(tmp_path).shared) == own


def test_a_reader_follows_runs_and_journals_that_come_later(tmp_path: Path) -> None:
    describe(tmp_path, "{}")
    cluster = Store.at(tmp_path / "cluster")
    reader = SweepReader(tmp_path)
    assert reader.poll().runs == {}
    write_run(tmp_path, "one", started("one", cluster.url))
    sweep = reader.poll()
    assert list(sweep.runs) == ["one"]
    assert cluster.url in sweep.missing[0]
    write(cluster, NODE)
    write_run(tmp_path, "two", started("two", cluster.url))
    write_run(tmp_path, "one", Warned(at_s=5.0, what="x"))
    sweep = reader.poll()
    assert {run: len(events) for run, events in sweep.runs.items()} == {"one": 2, "two": 1}
    assert (sweep.shared, sweep.missing) == ((NODE,), ())
    down = NodeDown(at_s=6.0, node_id="a", cause="failure")
    write(cluster, down)
    assert reader.poll().shared == (NODE, down)


def test_an_address_of_a_cluster_journal_that_is_wrong_is_told(tmp_path: Path) -> None:
    write_run(tmp_path, "one", started("one", "nonsense://x"))
    sweep = load_sweep(tmp_path)
    assert len(sweep.runs) == 1
    assert "nonsense://x" in sweep.missing[0]


@pytest.mark.parametrize("text", ["{", "[1]", '"name"'])
def test_a_damaged_description_costs_the_metric_only(tmp_path: Path, text: str) -> None:
    describe(tmp_path, text)
    write_run(tmp_path, "one", started("one"))
    sweep = load_sweep(tmp_path)
    assert (len(sweep.runs), sweep.metric) == (1, None)
    assert "sweep.json is damaged" in sweep.missing[0]


def test_damaged_lines_of_all_journals_are_counted(tmp_path: Path) -> None:
    describe(tmp_path, "{}")
    write_run(tmp_path, "one", started("one"))
    for folder in (tmp_path / "trials" / "one" / "spotray" / "journal", tmp_path / "spotray/nodes"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "other.jsonl").write_text("nonsense\n")
    assert load_sweep(tmp_path).damaged_lines == 2


def test_a_sweep_is_known_by_its_file_or_by_its_runs(tmp_path: Path) -> None:
    assert not is_sweep(tmp_path)
    (tmp_path / "trials" / "empty").mkdir(parents=True)
    assert not is_sweep(tmp_path)
    write_run(tmp_path, "one", started("one"))
    assert is_sweep(tmp_path)
    describe(tmp_path / "other", "{}")
    assert is_sweep(tmp_path / "other")


def test_a_folder_that_is_no_sweep_is_told_with_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sweep\.json and trials/\*/spotray/journal") as caught:
        load_sweep(tmp_path)
    assert "\n" not in str(caught.value)
