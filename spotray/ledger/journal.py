"""The journal: an append-only log of events in the run's storage, by many writers.

Each writer has its own files, so nobody waits for anybody: ``<writer>.jsonl`` on a
local disk, and segments ``<writer>.<number>.jsonl`` where objects can only be put
whole. One event is one line; order within a writer is the order of `append`.
"""

from __future__ import annotations

import logging
import re
import threading
from types import TracebackType

from spotray.errors import ConfigError, JournalError
from spotray.events import Event, decode, encode
from spotray.storage import Store

log = logging.getLogger(__name__)

SEGMENT_BYTES = 256 * 1024  # an object is rewritten until it is that long
_MAX_BACKOFF_S = 30.0
_EAGER_S = 0.5  # the longest back-off while somebody waits in `flush`
_WRITER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_FILE = re.compile(r"(?P<writer>.+?)(?:\.(?P<number>\d{6}))?\.jsonl")


class JournalWriter:
    """Writes events to storage from a thread of its own.

    `append` never waits for storage. While storage fails, events stay in memory and
    are tried again, with back-off; a process that dies loses at most the last
    ``flush_interval_s`` seconds of them.
    """

    def __init__(self, store: Store, *, writer: str, flush_interval_s: float = 2.0) -> None:
        """Start writing to a journal.

        Args:
            store: the journal's folder.
            writer: this writer's name, letters, digits, ``.``, ``_`` and ``-``. No two
                processes that live at one time may share it; one that is restarted
                may: it goes on behind what is there.
            flush_interval_s: longest time that an event waits in memory, seconds, > 0.

        Raises:
            ConfigError: the name has other characters, or the interval is not positive.
        """
        if not _WRITER.fullmatch(writer):
            raise ConfigError(f"journal writer {writer!r}: use letters, digits, '.', '_' and '-'")
        if flush_interval_s <= 0:
            raise ConfigError(f"flush_interval_s is {flush_interval_s}: it must be above 0")
        self.writer = writer
        self._store = store
        self._flush_interval_s = flush_interval_s
        self._sink = _LocalSink(store, writer) if store.can_append else _ObjectSink(store, writer)
        self._changed = threading.Condition()
        self._pending: list[bytes] = []
        self._accepted = 0  # events given to `append`
        self._written = 0  # events that storage holds
        self._flush_wanted = False
        self._flushing = 0  # callers that wait in `flush`
        self._closing = False
        self._given_up = False
        self._last_error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name=f"journal-{writer}", daemon=True)
        self._thread.start()

    def append(self, event: Event) -> None:
        """Take an event; safe from any thread, returns at once.

        Raises:
            JournalError: the writer is closed.
            TypeError: the event holds something that JSON cannot.
        """
        line = (encode(event) + "\n").encode()
        with self._changed:
            if self._closing:
                raise JournalError(f"journal writer {self.writer!r} is closed")
            self._pending.append(line)
            self._accepted += 1

    def marks(self) -> tuple[int, int]:
        """How many events were appended so far, and how many of them storage holds."""
        with self._changed:
            return self._accepted, self._written

    def flush(self, timeout_s: float = 10.0) -> None:
        """Return when storage holds all that was appended before.

        Raises:
            JournalError: it does not after ``timeout_s`` seconds; the events are kept
                and tried again.
        """
        with self._changed:
            goal = self._accepted
            self._flush_wanted = True
            self._flushing += 1
            self._changed.notify_all()
            done = self._changed.wait_for(lambda: self._written >= goal, timeout_s)
            self._flushing -= 1
            if not done:
                raise JournalError(
                    f"journal {self._store.url}: {goal - self._written} events of writer "
                    f"{self.writer!r} not written after {timeout_s:g} s: {self._last_error}"
                ) from self._last_error

    def close(self, timeout_s: float = 10.0) -> None:
        """Flush and end the thread. A second call does nothing.

        Raises:
            JournalError: storage did not take the last events in ``timeout_s`` seconds;
                they are lost.
        """
        with self._changed:
            if self._closing:
                return
            self._closing = True
        try:
            self.flush(timeout_s)
        finally:
            with self._changed:
                self._given_up = True  # of what is left, if anything
                self._changed.notify_all()
            self._thread.join(timeout_s)

    def __enter__(self) -> JournalWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _work(self) -> None:
        failures = 0
        while True:
            with self._changed:
                longest_s = _EAGER_S if self._flushing else _MAX_BACKOFF_S
                wait_s = min(self._flush_interval_s * 2**failures, longest_s)
                self._changed.wait_for(self._is_due, wait_s)
                self._flush_wanted = False
                batch, self._pending = self._pending, []
                if self._given_up or (self._closing and not batch):
                    return
            if not batch:
                continue
            error = self._try_write(batch, failures)
            with self._changed:
                self._last_error = error
                if error is None:
                    self._written += len(batch)
                else:
                    self._pending[:0] = batch
                self._changed.notify_all()
            failures = min(failures + 1, 10) if error else 0

    def _is_due(self) -> bool:
        return self._flush_wanted or self._given_up or (self._closing and not self._pending)

    def _try_write(self, batch: list[bytes], failures: int) -> Exception | None:
        try:
            self._sink.write(b"".join(batch))
        except Exception as exc:  # the loop must live: storage comes back
            if failures == 0:
                log.warning(
                    "journal %s: %d events wait in memory, storage failed: %s",
                    self._store.url,
                    len(batch),
                    exc,
                    exc_info=not isinstance(exc, OSError),
                )
            return exc
        if failures:
            log.info("journal %s: storage is back, %d events written", self._store.url, len(batch))
        return None


class _LocalSink:
    def __init__(self, store: Store, writer: str) -> None:
        self._store, self._name = store, f"{writer}.jsonl"
        self._is_clean = False  # whether the file is known to end with a whole line

    def write(self, lines: bytes) -> None:
        if not self._is_clean and self._ends_torn():
            lines = b"\n" + lines  # a writer of this name died in the middle of a line
        self._is_clean = False
        self._store.append(self._name, lines)
        self._is_clean = True

    def _ends_torn(self) -> bool:
        if not self._store.exists(self._name):
            return False
        with self._store.open_input(self._name) as stream:
            size = stream.seek(0, 2)
            if size == 0:
                return False
            stream.seek(size - 1)
            return stream.read(1) != b"\n"


class _ObjectSink:
    def __init__(self, store: Store, writer: str) -> None:
        self._store, self._writer = store, writer
        self._number: int | None = None  # of the current segment; None: not looked up yet
        self._segment = b""

    def write(self, lines: bytes) -> None:
        if self._number is None:
            mine = [number for writer, number, _ in _files(self._store) if writer == self._writer]
            self._number = max(mine, default=-1) + 1
        whole = self._segment + lines
        self._store.write(f"{self._writer}.{self._number:06d}.jsonl", whole)
        self._segment = whole
        if len(whole) >= SEGMENT_BYTES:
            self._number, self._segment = self._number + 1, b""


class JournalReader:
    """Reads a journal bit by bit, as it grows. ``damaged`` counts the lines left out.

    A line that two writers wrote counts once: whoever told the fact did not know that the
    first one had come to write it.
    """

    def __init__(self, store: Store) -> None:
        self.damaged = 0
        self._store = store
        self._offsets: dict[str, int] = {}  # bytes read of each file, whole lines
        self._told_by: dict[int, str] = {}  # hash of a line -> its writer
        self._torn: set[str] = set()  # files whose last line has no end

    @property
    def unfinished(self) -> int:
        """Lines without an end, which are left out so far."""
        return len(self._torn)

    def poll(self) -> list[Event]:
        """Events that came since the last call, by time; at first all there are.

        A line without its end is left for the next call: its writer is still at it, or
        died there. One listing, and one read of each file that grew.

        Raises:
            JournalError: storage could not be read.
        """
        events: list[Event] = []
        try:
            for writer, _, (name, size) in _files(self._store):
                if size > self._offsets.get(name, 0):
                    events += self._read(writer, name)
        except OSError as exc:
            raise JournalError(f"cannot read the journal {self._store.url}: {exc}") from exc
        return sorted(events, key=lambda event: event.at_s)  # stable: writers keep their order

    def _read(self, writer: str, name: str) -> list[Event]:
        start = self._offsets.get(name, 0)
        with self._store.open_input(name) as stream:
            stream.seek(start)
            data = stream.read()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            self._torn.add(name)
        else:
            self._torn.discard(name)
        data = whole
        events = []
        for line in data.split(b"\n"):
            if not line.strip():
                continue
            if self._told_by.setdefault(hash(line), writer) != writer:
                continue
            try:
                events.append(decode(line.decode()))
            except (JournalError, UnicodeDecodeError) as exc:
                self.damaged += 1
                log.warning("journal %s, %s: a line is left out: %s", self._store.url, name, exc)
        self._offsets[name] = start + len(data)
        return events


def read_journal(store: Store) -> list[Event]:
    """All events of a journal, of all its writers, by time; empty if there is none.

    Damaged lines are logged and left out.

    Raises:
        JournalError: storage could not be read.
    """
    return JournalReader(store).poll()


def has_journal(store: Store) -> bool:
    """Whether a folder holds the files of any writer."""
    return bool(_files(store))


def _files(store: Store) -> list[tuple[str, int, tuple[str, int]]]:
    """Journal files as (writer, number, (name, bytes)), each writer's in their order."""
    found = []
    for name, size in store.list(recursive=False):
        if match := _FILE.fullmatch(name):
            found.append((match["writer"], int(match["number"] or -1), (name, size)))
    return sorted(found)
