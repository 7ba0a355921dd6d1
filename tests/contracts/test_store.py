"""One suite for every kind of store: what `Store` promises wherever the files are."""

from __future__ import annotations

import hashlib
import pickle
import threading
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from spotray.checkpoint import manifest as manifests
from spotray.checkpoint.manifest import Manifest, Retention
from spotray.errors import ConfigError
from spotray.events import Warned
from spotray.ledger.journal import JournalReader, JournalWriter, read_journal
from spotray.storage import Store


@pytest.fixture(params=["local", "subtree", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "local":
        return Store.at(tmp_path / "run")
    if request.param == "subtree":
        fs = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
        return Store.at("run", filesystem=fs)
    server = request.getfixturevalue("s3_server")
    return Store.at(f"s3://{server.bucket}/runs/1")


def test_what_was_written_is_read(store: Store) -> None:
    store.write("a/b.bin", b"\x00one")
    store.write("empty", b"")
    assert store.read("a/b.bin") == b"\x00one"
    assert store.read("empty") == b""
    assert store.exists("a/b.bin")
    assert not store.exists("a")


def test_a_second_write_takes_the_place_of_the_first(store: Store) -> None:
    store.write("x", b"a long first version")
    store.write("x", b"second")
    assert store.read("x") == b"second"
    assert store.list() == [("x", 6)]


def test_a_missing_file_is_a_file_not_found_error(store: Store) -> None:
    with pytest.raises(FileNotFoundError):
        store.read("nothing/here")
    assert not store.exists("nothing/here")
    store.delete("nothing/here")
    store.delete_tree("nothing")


def test_a_list_names_files_with_sizes_in_order(store: Store) -> None:
    assert store.list() == []
    for name in ["b/two", "b/c/three", "a"]:
        store.write(name, name.encode())
    assert store.list() == [("a", 1), ("b/c/three", 9), ("b/two", 5)]
    assert store.list("b") == [("b/c/three", 9), ("b/two", 5)]
    assert store.list("b", recursive=False) == [("b/two", 5)]
    assert store.list("no such folder") == []


def test_folders_are_named_without_what_is_in_them(store: Store) -> None:
    assert store.folders() == store.folders("nothing") == []
    for name in ["a", "two/x", "one/y/z", "one/y/w"]:
        store.write(name, b"")
    assert store.folders() == ["one", "two"]
    assert store.folders("one") == ["y"]
    assert store.folders("two") == []


def test_a_child_sees_its_part_alone(store: Store) -> None:
    child = store.child("spotray", "journal")
    child.write("w.jsonl", b"1")
    assert child.list() == [("w.jsonl", 1)]
    assert store.read("spotray/journal/w.jsonl") == b"1"
    assert child.url.endswith("/spotray/journal")
    assert store.child() is store


def test_a_deleted_tree_is_gone_and_its_neighbours_are_not(store: Store) -> None:
    for name in ["step-1/a", "step-1/b/c", "step-10/a"]:
        store.write(name, b"x")
    store.delete_tree("step-1")
    assert store.list() == [("step-10/a", 1)]
    store.delete("step-10/a")
    assert store.list() == []


def test_a_stream_that_fails_leaves_no_half_file(store: Store) -> None:
    def fail_halfway() -> None:
        with store.open_output("half") as out:
            out.write(b"half of ")
            raise RuntimeError("disk on fire")

    with pytest.raises(RuntimeError, match="disk on fire"):
        fail_halfway()
    assert not store.exists("half")
    assert store.list() == []


def test_streams_seek_and_read(store: Store) -> None:
    with store.open_output("big") as out:
        for part in range(8):
            out.write(bytes([part]) * 1000)
    with store.open_input("big") as stream:
        stream.seek(7500)
        assert stream.read() == b"\x07" * 500


def test_a_pickled_store_finds_the_same_files(store: Store) -> None:
    store.write("x", b"1")
    again = pickle.loads(pickle.dumps(store))
    assert again.read("x") == b"1"
    assert again.url == store.url


def test_a_reader_never_sees_half_of_a_write(store: Store) -> None:
    versions = [bytes([65 + i]) * 20_000 for i in range(20)]
    store.write("x", versions[0])
    seen: list[bytes] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.append(store.read("x"))

    reader = threading.Thread(target=read)
    reader.start()
    for version in versions:
        store.write("x", version)
    done.set()
    reader.join()
    assert set(seen) <= set(versions)


def test_a_writable_store_passes_its_check_and_stays_empty(store: Store) -> None:
    store.check_writable()
    assert store.list() == []


def test_names_do_not_lead_out_of_the_store(store: Store) -> None:
    with pytest.raises(ValueError, match="leads out"):
        store.read("../secret")


def test_append_adds_to_local_files_alone(store: Store) -> None:
    if not store.can_append:
        with pytest.raises(ValueError, match="cannot be appended"):
            store.append("log", b"x")
        return
    store.append("logs/log", b"one\n")
    store.append("logs/log", b"two\n")
    assert store.read("logs/log") == b"one\ntwo\n"


def test_a_journal_is_kept_in_any_store(store: Store) -> None:
    facts = [Warned(at_s=float(i), what=f"fact {i}") for i in range(5)]
    reader = JournalReader(store)
    for fact in facts:  # as a writer that is started anew each time
        with JournalWriter(store, writer="w") as writer:
            writer.append(fact)
        assert reader.poll() == [fact]
    assert read_journal(store) == facts


def test_a_checkpoint_is_kept_in_any_store(store: Store) -> None:
    for step in (1, 2, 3):
        folder = store.child(manifests.folder_name(step))
        folder.write("data", b"weights %d" % step)
        files = {"data": (9, hashlib.sha256(b"weights %d" % step).hexdigest())}
        manifests.write(
            folder,
            Manifest(run_id="r", step=step, epoch=0, world_size=1, created_at_s=1.0, files=files),
        )
    store.write("step-00000003/data", b"damage!!!")
    rejected: list[str] = []
    found = manifests.newest_valid(store, lambda name, why: rejected.append(name))
    assert found is not None
    assert (found[0], rejected) == ("step-00000002", ["step-00000003"])
    assert manifests.retain(store, Retention(last=2)) == ["step-00000001"]
    assert [step for step, _ in manifests.list_checkpoints(store)] == [3, 2]


@pytest.mark.usefixtures("s3_server")
def test_a_bucket_that_is_not_there_is_told_in_one_line() -> None:
    with pytest.raises(ConfigError, match="create the bucket first") as caught:
        Store.at("s3://spotray-nobody-made-this/runs").check_writable()
    assert "\n" not in str(caught.value)
    assert "s3://spotray-nobody-made-this/runs" in str(caught.value)
