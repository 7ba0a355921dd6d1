"""TensorBoard: event files beside the run, also in a bucket."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spotray.storage import Store
from spotray.track.facts import Note, Point
from spotray.track.tracker import RunAbout, flat

FOLDER = "tensorboard"  # inside of the run's folder
SEGMENT_BYTES = 1 << 20  # an object is written whole each time: then the next one begins


class TensorBoardTracker:
    """Writes the files that ``tensorboard --logdir`` reads.

    Each start of a run writes files of its own; TensorBoard takes a folder's files for one run.
    """

    name = "tensorboard"

    def __init__(self, about: RunAbout, *, run_dir: Store) -> None:
        from tensorboardX import summary
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event

        self._about = about
        self._store = run_dir.child(FOLDER)
        self._writer, self._event, self._summary = EventsWriter, Event, summary
        self._folder: tempfile.TemporaryDirectory[str] | None = None  # of a bucket's file
        self._file: Any = None

    def begin(self) -> str:
        if not self._store.list():  # else an earlier start has told it
            told = "\n".join(f"    {k}: {v}" for k, v in flat(self._about.config).items())
            self._write(self._summary.text("config", told or "none"), 0, time.time())
            self._show()
        return f"tensorboard --logdir {self._store.url}"

    def tell(self, points: Sequence[Point], notes: Sequence[Note], *, rows: int) -> None:
        for point in points:
            self._write(self._summary.scalar(point.series, point.value), point.step, point.at_s)
        for note in notes:
            self._write(self._summary.text(f"events/{note.kind}", note.text), note.step, note.at_s)
        self._show()

    def end(self, status: str) -> None:
        if self._file is not None:
            self._show()
        self._close()

    def _write(self, summary: Any, step: int, at_s: float) -> None:
        if self._file is None:
            self._open()
        self._file.write_event(self._event(step=step, wall_time=at_s, summary=summary))

    def _open(self) -> None:
        folder = self._store.root
        if self._store.can_append:
            os.makedirs(folder, exist_ok=True)
        else:
            self._folder = tempfile.TemporaryDirectory(prefix="spotray-tensorboard-")
            folder = self._folder.name
        # The library's own name has the second only: a quick restart would write over the file,
        # and TensorBoard reads files by name.
        suffix = f".{time.time_ns()}"
        self._file = self._writer(os.path.join(folder, "events"), filename_suffix=suffix)

    def _show(self) -> None:
        """Let readers see what was written."""
        if self._file is None:
            return
        self._file.flush()
        if self._folder is None:
            return
        (path,) = Path(self._folder.name).iterdir()
        data = path.read_bytes()
        self._store.write(path.name, data)
        if len(data) >= SEGMENT_BYTES:
            self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
