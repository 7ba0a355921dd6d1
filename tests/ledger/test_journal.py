"""The journal keeps every event, in order, whatever storage and processes do."""

from __future__ import annotations

import io
import logging
import threading
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest

from spotray.errors import ConfigError, JournalError
from spotray.events import Event, NodeReady, Reported, Warned
from spotray.ledger import journal
from spotray.ledger.journal import JournalReader, JournalWriter, read_journal
from spotray.storage import Store


class Flaky(Store):
    """A local store that fails as long as ``broken``; ``as_objects`` forbids appending."""

    def __init__(self, root: Path, *, as_objects: bool = False) -> None:
        super().__init__(pafs.LocalFileSystem(), str(root), url=str(root))
        self.broken = False
        self.tries = 0
        self.as_objects = as_objects

    @property
    def can_append(self) -> bool:
        return not self.as_objects

    def append(self, name: str, data: bytes) -> None:
        self._fail_if_broken()
        super().append(name, data)

    def write(self, name: str, data: bytes) -> None:
        self._fail_if_broken()
        path = Path(self.root) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def _fail_if_broken(self) -> None:
        self.tries += 1
        if self.broken:
            raise OSError("no route to storage")


@pytest.fixture(params=["local", "objects"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Flaky:
    return Flaky(tmp_path / "journal", as_objects=request.param == "objects")


def warned(number: int) -> Event:
    return Warned(at_s=float(number), what=f"event {number}")


def test_what_was_appended_is_read_back_in_order(store: Flaky) -> None:
    with JournalWriter(store, writer="driver") as writer:
        for number in range(100):
            writer.append(warned(number))
    assert read_journal(store) == [warned(number) for number in range(100)]


def test_events_of_all_writers_come_by_time(store: Flaky) -> None:
    with JournalWriter(store, writer="a") as a, JournalWriter(store, writer="b-10.0.0.1") as b:
        a.append(warned(1))
        b.append(warned(2))
        a.append(warned(3))
    assert read_journal(store) == [warned(1), warned(2), warned(3)]


def test_events_of_one_time_keep_their_writers_order(store: Flaky) -> None:
    same = [NodeReady(at_s=5.0, node_id=f"n{i}") for i in range(10)]
    with JournalWriter(store, writer="a") as writer:
        for event in same:
            writer.append(event)
    assert read_journal(store) == same


def test_a_restarted_writer_goes_on_behind_what_is_there(store: Flaky) -> None:
    for number in range(3):
        with JournalWriter(store, writer="driver") as writer:
            writer.append(warned(number))
    assert read_journal(store) == [warned(0), warned(1), warned(2)]


def test_append_does_not_wait_for_the_interval_and_flush_does_not_either(store: Flaky) -> None:
    with JournalWriter(store, writer="w", flush_interval_s=3600) as writer:
        writer.append(warned(1))
        writer.flush(timeout_s=5)
        assert read_journal(store) == [warned(1)]


def test_the_thread_flushes_by_itself(store: Flaky) -> None:
    arrived = threading.Event()

    class Watched(Flaky):
        def append(self, name: str, data: bytes) -> None:
            super().append(name, data)
            arrived.set()

        def write(self, name: str, data: bytes) -> None:
            super().write(name, data)
            arrived.set()

    watched = Watched(Path(store.root), as_objects=store.as_objects)
    with JournalWriter(watched, writer="w", flush_interval_s=0.01) as writer:
        writer.append(warned(1))
        assert arrived.wait(5)


def test_storage_that_fails_for_a_while_loses_and_repeats_nothing(
    store: Flaky, caplog: pytest.LogCaptureFixture
) -> None:
    with JournalWriter(store, writer="w", flush_interval_s=0.01) as writer:
        writer.append(warned(0))
        writer.flush()
        store.broken = True
        writer.append(warned(1))
        with caplog.at_level(logging.WARNING), pytest.raises(JournalError, match="no route"):
            writer.flush(timeout_s=0.2)
        writer.append(warned(2))
        assert store.tries > 2
        store.broken = False
        writer.flush()
    assert read_journal(store) == [warned(0), warned(1), warned(2)]
    assert len([r for r in caplog.records if r.levelno == logging.WARNING]) == 1


def test_close_tells_what_could_not_be_written(store: Flaky) -> None:
    writer = JournalWriter(store, writer="w")
    store.broken = True
    writer.append(warned(0))
    with pytest.raises(JournalError, match="1 events of writer 'w' not written"):
        writer.close(timeout_s=0.1)
    writer.close()
    with pytest.raises(JournalError, match="closed"):
        writer.append(warned(1))


def test_many_threads_append_at_once(store: Flaky) -> None:
    with JournalWriter(store, writer="w", flush_interval_s=0.001) as writer:

        def work(start: int) -> None:
            for number in range(start, start + 200):
                writer.append(warned(number))

        threads = [threading.Thread(target=work, args=(i * 200,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert read_journal(store) == [warned(number) for number in range(800)]


def test_a_torn_last_line_is_left_out_and_does_not_hurt_the_next_writer(tmp_path: Path) -> None:
    store = Store.at(tmp_path)
    with JournalWriter(store, writer="w") as writer:
        writer.append(warned(0))
        writer.append(warned(1))
    path = tmp_path / "w.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    assert read_journal(store) == [warned(0)]
    with JournalWriter(store, writer="w") as writer:
        writer.append(warned(2))
    assert read_journal(store) == [warned(0), warned(2)]


def test_a_damaged_line_is_counted_and_the_rest_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store.at(tmp_path)
    with JournalWriter(store, writer="w") as writer:
        for number in range(3):
            writer.append(warned(number))
    lines = (tmp_path / "w.jsonl").read_bytes().split(b"\n")
    lines[1] = b"\xff\x00 not json"
    (tmp_path / "w.jsonl").write_bytes(b"\n".join(lines))
    reader = JournalReader(store)
    assert reader.poll() == [warned(0), warned(2)]
    assert reader.damaged == 1
    assert "w.jsonl" in caplog.text


def test_a_reader_polls_only_what_is_new(store: Flaky) -> None:
    reader = JournalReader(store)
    assert reader.poll() == []
    with JournalWriter(store, writer="w") as writer:
        for number in range(3):
            writer.append(warned(number))
            writer.flush()
            assert reader.poll() == [warned(number)]
            assert reader.poll() == []


def test_a_reader_waits_for_the_end_of_a_line(tmp_path: Path) -> None:
    store = Store.at(tmp_path)
    with JournalWriter(store, writer="w") as writer:
        writer.append(warned(0))
    whole = (tmp_path / "w.jsonl").read_bytes()
    reader = JournalReader(store)
    (tmp_path / "w.jsonl").write_bytes(whole[:10])
    assert reader.poll() == []
    (tmp_path / "w.jsonl").write_bytes(whole)
    assert reader.poll() == [warned(0)]
    assert reader.damaged == 0


def test_a_full_segment_is_left_alone(tmp_path: Path) -> None:
    store = Flaky(tmp_path, as_objects=True)
    big = Reported(at_s=1.0, step=1, epoch=0, metrics={"text": "x" * (journal.SEGMENT_BYTES // 2)})
    with JournalWriter(store, writer="w") as writer:
        for _ in range(5):
            writer.append(big)
            writer.flush()
    sizes = dict(store.list())
    assert sorted(sizes) == ["w.000000.jsonl", "w.000001.jsonl", "w.000002.jsonl"]
    assert max(sizes.values()) < 1.1 * journal.SEGMENT_BYTES
    assert read_journal(store) == [big] * 5


def test_an_event_that_json_cannot_hold_is_told_to_its_author(store: Flaky) -> None:
    value: Any = io.BytesIO()
    with JournalWriter(store, writer="w") as writer, pytest.raises(TypeError):
        writer.append(Reported(at_s=1.0, step=1, epoch=0, metrics={"x": value}))
    assert read_journal(store) == []


@pytest.mark.parametrize("name", ["", "a/b", "../x", "a b"])
def test_a_writer_needs_a_plain_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="journal writer"):
        JournalWriter(Store.at(tmp_path), writer=name)


def test_a_fact_that_two_writers_told_counts_once(tmp_path: Path) -> None:
    store = Store.at(tmp_path)
    told = NodeReady(at_s=3.5, node_id="n1")
    for writer in ("coordinator-1", "coordinator-2"):
        with JournalWriter(store, writer=writer) as journal:
            journal.append(told)
            journal.append(NodeReady(at_s=4.0, node_id=writer))
            assert journal.marks()[0] == 2
        assert journal.marks() == (2, 2)
    assert [e.node_id for e in read_journal(store)] == ["n1", "coordinator-1", "coordinator-2"]
