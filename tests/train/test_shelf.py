"""Copies of snapshots on another node: what arrives, what is refused, what is given out."""

from __future__ import annotations

import shutil
import socket
import threading
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from spotray.clock import SystemClock, wait_until
from spotray.train.shelf import COPIES, Address, Copier, Shelf, fetch_copy
from spotray.train.snapshot import SnapshotSlots
from tests.train.test_snapshot import newest_step, state, write

RUN = "r1"


@pytest.fixture
def shelves(tmp_path: Path) -> Iterator[Callable[[str], Shelf]]:
    made: list[Shelf] = []

    def make(node: str) -> Shelf:
        made.append(Shelf(tmp_path / node, host="127.0.0.1", node_id=node))
        return made[-1]

    yield make
    for shelf in made:
        shelf.close()


class Sender:
    """A worker's slots whose snapshots go where it is told."""

    def __init__(self, folder: Path) -> None:
        self.where: Address | None = None
        self.held: list[Address] = []
        self.copier = Copier(RUN, lambda: self.where, self.held.append)
        self.slots = SnapshotSlots(folder / RUN)
        self.slots.on_sealed = self.copier.start

    def save(self, step: int, *, size: int = 1000) -> None:
        write(self.slots, step, size=size)
        self.copier.wait()


@pytest.fixture
def sender(tmp_path: Path) -> Sender:
    return Sender(tmp_path / "lost-node")


def copies(tmp_path: Path, node: str) -> Path:
    return tmp_path / node / RUN / COPIES


def test_a_copy_outlives_the_node_and_can_be_brought_to_a_third(
    tmp_path: Path, shelves: Callable[[str], Shelf], sender: Sender
) -> None:
    shelf = shelves("peer")
    sender.where = shelf.address
    for step in (3, 5, 8):
        sender.save(step)
    assert sender.held == [shelf.address] * 3
    assert shelf.has(RUN)
    assert not shelf.has("r2")
    shutil.rmtree(tmp_path / "lost-node")
    assert newest_step(copies(tmp_path, "peer")) == 8
    third = tmp_path / "third"
    assert fetch_copy(shelf.address, RUN, third, newer_than=7)
    assert newest_step(third) == 8
    assert not fetch_copy(shelf.address, RUN, third, newer_than=8), "there is none that is newer"
    assert not fetch_copy(shelf.address, "r2", third, newer_than=-1)


def test_also_a_nodes_own_snapshots_are_given_out(
    tmp_path: Path, shelves: Callable[[str], Shelf]
) -> None:
    write(SnapshotSlots(tmp_path / "peer" / RUN), 9)
    assert fetch_copy(shelves("peer").address, RUN, tmp_path / "here", newer_than=-1)
    assert newest_step(tmp_path / "here") == 9


def test_a_state_of_another_size_takes_the_place_of_the_older_one(
    tmp_path: Path, shelves: Callable[[str], Shelf], sender: Sender
) -> None:
    sender.where = shelves("peer").address
    for step, size in ((1, 10), (2, 100_000), (3, 10), (4, 0)):
        sender.save(step, size=size)
        if size:
            assert newest_step(copies(tmp_path, "peer")) == step
    files = sorted(path.name for path in copies(tmp_path, "peer").iterdir())
    assert files == ["slot-0.bin", "slot-0.json", "slot-1.bin", "slot-1.json"]


def test_a_copy_that_was_broken_off_leaves_the_one_before(
    tmp_path: Path, shelves: Callable[[str], Shelf], sender: Sender
) -> None:
    shelf = shelves("peer")
    sender.where = shelf.address
    sender.save(1)
    with socket.create_connection((shelf.address.host, shelf.address.port)) as peer:
        from spotray.train.shelf import _receive_head, _send_head

        head = {"token": shelf.address.token, "what": "put", "run_id": RUN}
        _send_head(peer, {**head, "size": 4096, "text_size": 4})
        assert _receive_head(peer) == {}
        peer.sendall(b"text" + b"some of it")
    assert newest_step(copies(tmp_path, "peer")) == 1
    sender.save(2)
    assert newest_step(copies(tmp_path, "peer")) == 2


def test_who_does_not_know_the_token_is_refused(
    tmp_path: Path, shelves: Callable[[str], Shelf], sender: Sender
) -> None:
    address = shelves("peer").address
    sender.where = replace(address, token="guessed")
    sender.save(1)
    assert "another shelf's token" in sender.copier.refused
    assert not sender.held
    assert not copies(tmp_path, "peer").exists()
    with pytest.raises(OSError, match="another shelf's token"):
        fetch_copy(replace(address, token="guessed"), RUN, tmp_path / "here", newer_than=-1)


@pytest.mark.parametrize("run_id", ["../up", "a/b", "", ".", "..", "x" * 200])
def test_a_run_cannot_lead_out_of_the_folder(
    tmp_path: Path, shelves: Callable[[str], Shelf], run_id: str
) -> None:
    with pytest.raises(OSError, match="ended before its last byte"):
        fetch_copy(shelves("peer").address, run_id, tmp_path / "here", newer_than=-1)


def test_a_shelf_without_room_says_so_once_and_takes_nothing(
    tmp_path: Path,
    shelves: Callable[[str], Shelf],
    sender: Sender,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(16_000, 0, 11_000))
    sender.where = shelves("peer").address
    sender.save(1, size=10)
    assert sender.held, "two of it fit, and leave a quarter"
    sender.save(2, size=1_000)
    sender.save(3, size=1_000)
    assert "no room" in sender.copier.refused
    assert len(sender.held) == 1
    assert sum("no copy of a snapshot" in message for message in caplog.messages) == 1
    assert newest_step(copies(tmp_path, "peer")) == 1


def test_copies_go_elsewhere_at_once_and_the_old_ones_are_given_back(
    tmp_path: Path, shelves: Callable[[str], Shelf], sender: Sender
) -> None:
    first, second = shelves("first"), shelves("second")
    assert not sender.copier.wants_one()
    sender.save(1)
    assert not sender.held
    assert sender.copier.cpu_s == 0.0
    for shelf in (first, second):
        sender.where = shelf.address
        assert sender.copier.wants_one()
        sender.save(2)
        assert not sender.copier.wants_one()
        assert 0 < sender.copier.cpu_s < 5, "its cost counts against that of saving"
    assert newest_step(copies(tmp_path, "second")) == 2
    sender.where = None
    assert sender.copier.cpu_s == 0.0, "what is not done costs nothing"
    sender.where = second.address
    assert wait_until(lambda: not first.has(RUN), timeout_s=5, clock=SystemClock())


def test_a_peer_that_is_gone_costs_no_more_than_the_copy(
    tmp_path: Path, shelves: Callable[[str], Shelf], sender: Sender
) -> None:
    gone, there = shelves("gone"), shelves("there")
    gone.close()
    sender.where = gone.address
    sender.save(1)
    assert sender.copier.refused
    assert newest_step(tmp_path / "lost-node" / RUN) == 1
    sender.where = there.address
    sender.save(2)
    assert sender.held == [there.address]


def test_a_frozen_peer_holds_up_nobody_who_is_in_a_hurry(sender: Sender) -> None:
    with socket.create_server(("127.0.0.1", 0)) as frozen:  # takes connections, reads nothing
        sender.where = Address("frozen", *frozen.getsockname()[:2], "token")
        write(sender.slots, 1)
        assert sender.copier.is_busy
        stopped = threading.Thread(target=sender.copier.stop)
        stopped.start()
        stopped.join(timeout=2.0)
        assert not stopped.is_alive(), "it waits for the frozen one's time-out"
        assert not sender.copier.is_busy
        assert sender.copier.refused == "", "what was broken off is no refusal"


def test_what_is_damaged_on_the_way_is_found_by_who_reads_it(
    tmp_path: Path, shelves: Callable[[str], Shelf], sender: Sender
) -> None:
    shelf = shelves("peer")
    sender.where = shelf.address
    sender.save(1)
    sender.save(2)
    data = max(copies(tmp_path, "peer").glob("slot-*.bin"), key=lambda p: p.stat().st_mtime_ns)
    raw = bytearray(data.read_bytes())
    raw[0] ^= 1
    data.write_bytes(raw)
    assert fetch_copy(shelf.address, RUN, tmp_path / "here", newer_than=-1)
    told: list[str] = []
    assert SnapshotSlots(tmp_path / "here").newest(lambda path, why: told.append(why)) is None
    assert told == ["the checksum of its data disagrees"]
    assert state(2).size_bytes <= len(raw)
