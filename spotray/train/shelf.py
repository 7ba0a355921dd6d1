"""Copies of snapshots in another node's memory, for workers that are all on one node.

Such workers lose their snapshots together with the node. So each snapshot of theirs goes to
another node too: to the *shelf* of a process that is there anyway, a thread that puts it into
that node's memory, in the form that `spotray.train.snapshot` has there itself. Who goes on with
the run takes it from there; its checksum is looked at then, as any snapshot's.
"""

from __future__ import annotations

import contextlib
import json
import logging
import mmap
import os
import re
import secrets
import shutil
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

COPIES = "copies"  # folder of a run's copies from elsewhere, inside of its own on this node
_CALL_S = 5.0  # for the far side to take or give the next bytes
_LEFT_FRAC = 0.25  # of this node's memory-backed folder: what is kept free for its own workers
_LENGTH = struct.Struct("!I")
_LONGEST = 1 << 26  # bytes of a head; an index of a very large state has some MB
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True)
class Address:
    """Where a shelf is."""

    node_id: str
    host: str
    port: int
    token: str  # only who was told of it may use the shelf


@dataclass(frozen=True)
class _Slot:
    number: int
    step: int
    text: bytes  # of the file that makes it valid


class Shelf:
    """Takes copies for this node's memory, and gives them out again.

    Args:
        home: Memory-backed folder of this node, where runs have theirs.
        host: This node's address, as other nodes know it.
        node_id: As the job's coordinator knows it.
    """

    def __init__(self, home: Path, *, host: str, node_id: str) -> None:
        self._home = home
        self._listener = socket.create_server((host, 0), backlog=64)
        port = int(self._listener.getsockname()[1])
        self.address = Address(node_id, host, port, secrets.token_hex(16))
        self._thread = threading.Thread(target=self._serve, name="shelf", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take nothing more. What is there stays."""
        with contextlib.suppress(OSError):  # it wakes the thread, where the system knows how
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(timeout=_CALL_S)

    def has(self, run_id: str) -> bool:
        """Whether there is a copy of a run."""
        return bool(_slots(self._folder(run_id)))

    def forget(self, run_id: str) -> None:
        """Give back what a run has here."""
        shutil.rmtree(self._folder(run_id), ignore_errors=True)

    # -- inside ----------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:  # closed
                return
            # One at a time would let a peer that is frozen hold up all others.
            threading.Thread(target=self._answer, args=(peer,), name="shelf", daemon=True).start()

    def _answer(self, peer: socket.socket) -> None:
        with peer:
            peer.settimeout(_CALL_S)
            try:
                head = _receive_head(peer)
                given, run_id = str(head.get("token")), str(head.get("run_id"))
                if not secrets.compare_digest(given, self.address.token):
                    _send_head(peer, {"why": "another shelf's token"})
                elif head.get("what") == "put":
                    self._put(peer, run_id, head)
                elif head.get("what") == "get":
                    self._get(peer, run_id, int(head["newer_than"]))
                elif head.get("what") == "drop":
                    self.forget(run_id)
                    _send_head(peer, {})
                else:
                    _send_head(peer, {"why": f"{head.get('what')!r} is nothing to ask for"})
            except (OSError, ValueError, KeyError) as exc:
                # Its sender ended, or was told to; what it had sent is not valid.
                log.info("a copy was not taken or given: %r", exc)

    def _put(self, peer: socket.socket, run_id: str, head: Mapping[str, Any]) -> None:
        folder, size = self._folder(run_id), int(head["size"])
        if why := self._lacks_room(folder, size):
            _send_head(peer, {"why": why})
            return
        _send_head(peer, {})
        _receive_slot(peer, folder, size=size, text_size=int(head["text_size"]))
        _send_head(peer, {"cpu_s": time.thread_time()})  # the thread lives for this copy alone

    def _get(self, peer: socket.socket, run_id: str, newer_than: int) -> None:
        """The newest that is here, a run's own snapshots included."""
        found = [
            (slot, folder)
            for folder in (self._folder(run_id), self._folder(run_id).parent)
            for slot in _slots(folder)
            if slot.step > newer_than
        ]
        if not found:
            _send_head(peer, {"size": -1})
            return
        slot, folder = max(found, key=lambda one: one[0].step)
        with open(folder / f"slot-{slot.number}.bin", "rb") as file:
            size = os.fstat(file.fileno()).st_size
            _send_head(peer, {"size": size, "text_size": len(slot.text)})
            peer.sendall(slot.text)
            peer.sendfile(file)

    def _folder(self, run_id: str) -> Path:
        if not _RUN.fullmatch(run_id):
            raise ValueError(f"{run_id!r} is no run's id")
        return self._home / run_id / COPIES

    def _lacks_room(self, folder: Path, size: int) -> str:
        self._home.mkdir(parents=True, exist_ok=True)
        disk = shutil.disk_usage(self._home)
        has = sum(file.stat().st_size for file in folder.glob("slot-*.bin"))
        if 2 * size <= disk.free + has - _LEFT_FRAC * disk.total:
            return ""
        return f"{self._home} on node {self.address.node_id[:8]} has no room for two of {size} B"


def newest_step(home: Path, run_id: str) -> int:
    """Of what a node's memory holds of a run, its own or copies; -1: nothing."""
    own = home / run_id
    return max((slot.step for at in (own, own / COPIES) for slot in _slots(at)), default=-1)


def fetch_copy(address: Address, run_id: str, folder: Path, *, newer_than: int) -> bool:
    """Bring the newest copy of a run from another node; whether there was one.

    Args:
        address: Of the shelf.
        run_id: Whose.
        folder: Where to put it.
        newer_than: Of an older step, or of this one, none is brought.

    Raises:
        OSError: the far side did not give it, or this node cannot take it.
    """
    with _open(address) as peer:
        _send_head(
            peer,
            {"token": address.token, "what": "get", "run_id": run_id, "newer_than": newer_than},
        )
        told = _answer_of(peer)
        size = int(told["size"])
        if size < 0:
            return False
        _receive_slot(peer, folder, size=size, text_size=int(told["text_size"]))
        return True


class Copier:
    """Sends one worker's snapshots to a shelf, each beside training.

    Args:
        run_id: Whose.
        where: The shelf that it should go to now; None: nobody needs copies, or has room.
        on_held: Called with the shelf when a copy arrived.
    """

    def __init__(
        self,
        run_id: str,
        where: Callable[[], Address | None],
        on_held: Callable[[Address], None],
    ) -> None:
        self._run_id, self._where, self._on_held = run_id, where, on_held
        self._thread: threading.Thread | None = None
        self._peer: socket.socket | None = None
        self._lock = threading.Lock()
        self._is_stopped = False
        self._tried: Address | None = None  # where the last one was to go
        self._held_by: Address | None = None  # who has the newest that arrived
        self._cpu_s = 0.0  # of the last copy, on both sides
        self.refused = ""  # why the last one did not arrive

    @property
    def is_busy(self) -> bool:
        """Whether a copy is under way."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def cpu_s(self) -> float:
        """CPU time that a copy takes, on both sides, as the last one did; 0: none is needed."""
        return self._cpu_s if self._where() is not None else 0.0

    def wants_one(self) -> bool:
        """Whether a copy is to go where none was tried to be sent yet."""
        where = self._where()
        return where is not None and where != self._tried

    def start(self, text: bytes, data: memoryview) -> None:
        """Begin to send a snapshot, if it has somewhere to go.

        Args:
            text: Of the file that makes it valid.
            data: Its bytes; they must stay as they are until `stop` or the end of it.
        """
        where = self._where()
        if where is None or self.is_busy:
            return
        self._tried, self._is_stopped = where, False
        self._thread = threading.Thread(
            target=self._run, args=(where, text, data), name="snapshot-copy", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Return when no copy is under way."""
        if self._thread is not None:
            self._thread.join()

    def stop(self) -> None:
        """Break off what is under way: its bytes are about to change."""
        with self._lock:
            self._is_stopped = True
            if self._peer is not None:
                with contextlib.suppress(OSError):  # it came to its end by itself
                    self._peer.shutdown(socket.SHUT_RDWR)
        self.wait()

    def _run(self, where: Address, text: bytes, data: memoryview) -> None:
        there_s = 0.0
        try:
            there_s = self._send(where, text, data)
        except (OSError, ValueError) as exc:
            if not self._is_stopped and str(exc) != self.refused:
                self.refused = str(exc)
                log.warning("no copy of a snapshot at node %s: %s", where.node_id[:8], exc)
        else:
            self.refused = ""
            before, self._held_by = self._held_by, where
            self._on_held(where)
            if before is not None and before.node_id != where.node_id:
                self._drop(before)
        self._cpu_s = there_s + time.thread_time()  # this thread, too, lives for one copy

    def _send(self, where: Address, text: bytes, data: memoryview) -> float:
        """CPU time that it took where it arrived."""
        with _open(where) as peer:
            with self._lock:
                if self._is_stopped:
                    raise ConnectionAbortedError("broken off before it began")
                self._peer = peer
            try:
                head = {"token": where.token, "what": "put", "run_id": self._run_id}
                _send_head(peer, {**head, "size": len(data), "text_size": len(text)})
                _answer_of(peer)
                peer.sendall(text)
                peer.sendall(data)
                return float(_answer_of(peer).get("cpu_s", 0.0))
            finally:
                with self._lock:
                    self._peer = None

    def _drop(self, before: Address) -> None:
        """The copies that are older than what another node has now only take its memory."""
        try:
            with _open(before) as peer:
                head = {"token": before.token, "what": "drop", "run_id": self._run_id}
                _send_head(peer, head)
                _answer_of(peer)
        except OSError as exc:  # most often that node is gone
            log.debug("old copies at node %s stay: %s", before.node_id[:8], exc)


# -- on the wire, and in a folder -------------------------------------------------------------


def _open(address: Address) -> socket.socket:
    return socket.create_connection((address.host, address.port), timeout=_CALL_S)


def _send_head(peer: socket.socket, head: Mapping[str, Any]) -> None:
    raw = json.dumps(head).encode()
    peer.sendall(_LENGTH.pack(len(raw)) + raw)


def _receive_head(peer: socket.socket) -> dict[str, Any]:
    (length,) = _LENGTH.unpack(_receive(peer, _LENGTH.size))
    if length > _LONGEST:
        raise ValueError(f"a head of {length} bytes")
    head = json.loads(_receive(peer, length))
    if not isinstance(head, dict):
        raise ValueError("a head that is no JSON object")
    return head


def _answer_of(peer: socket.socket) -> dict[str, Any]:
    told = _receive_head(peer)
    if why := told.get("why"):
        raise OSError(str(why))
    return told


def _receive(peer: socket.socket, size: int) -> bytes:
    if size > _LONGEST:
        raise ValueError(f"{size} bytes at once")
    image = bytearray(size)
    _receive_into(peer, memoryview(image))
    return bytes(image)


def _receive_into(peer: socket.socket, view: memoryview) -> None:
    done = 0
    while done < len(view):
        # No slice outlives its line: an error would keep it, and with it the mapping.
        count = peer.recv_into(view[done:])
        if not count:
            raise ConnectionResetError("the far side ended before its last byte")
        done += count


def _receive_slot(peer: socket.socket, folder: Path, *, size: int, text_size: int) -> None:
    """Put what comes into the older one of a folder's two slots."""
    text = _receive(peer, text_size)
    folder.mkdir(parents=True, exist_ok=True)
    steps = {slot.number: slot.step for slot in _slots(folder)}
    number = min((0, 1), key=lambda one: steps.get(one, -1))
    meta, path = folder / f"slot-{number}.json", folder / f"slot-{number}.bin"
    meta.unlink(missing_ok=True)
    if not path.exists() or path.stat().st_size != size:
        path.unlink(missing_ok=True)
    with open(path, "a+b") as file:
        # For real: a sparse file in a full /dev/shm would end the process with SIGBUS.
        os.posix_fallocate(file.fileno(), 0, max(size, 1))
        if size:
            with mmap.mmap(file.fileno(), size) as image, memoryview(image) as view:
                _receive_into(peer, view)
    temporary = folder / f".slot-{number}.json"
    temporary.write_bytes(text)
    temporary.rename(meta)


def _slots(folder: Path) -> list[_Slot]:
    """The slots in a folder whose small file is sound."""
    found = []
    for number in (0, 1):
        try:
            text = (folder / f"slot-{number}.json").read_bytes()
            own_crc32, _, rest = text.partition(b"\n")
            if own_crc32.decode() == f"{zlib.crc32(rest):08x}":
                found.append(_Slot(number, int(json.loads(rest)["step"]), text))
        except (FileNotFoundError, ValueError, KeyError):
            continue
    return found
