"""One suite for every tracker: one run through all starts, each step once, events as marks.

What was written is read back with the tracker's own reader, or from its own file.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spotray.events import Event
from spotray.ledger.journal import JournalWriter
from spotray.ledger.rundir import job_journal
from spotray.storage import Store
from spotray.track.fake import FakeTracker
from spotray.track.following import Following
from spotray.track.tracker import RunAbout, Tracker, tracker
from tests.ledger.story import Story

Series = dict[str, list[tuple[int, float]]]
ABOUT = RunAbout(run_id="0123456789abcdef", name="vit", url="/runs/vit", config={"lr": 0.1})


class Backend:
    """A tracker with the run's folder, and what can be read of it afterwards."""

    def __init__(
        self,
        home: Store,
        make: Callable[[], Tracker],
        read: Callable[[], tuple[int, Series, list[str]]],
    ) -> None:
        self.home, self.make, self.read = home, make, read


def read_tensorboard(folder: Path) -> tuple[int, Series, list[str]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    found.Reload()
    tags = found.Tags()
    series = {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in tags["scalars"]}
    notes = [
        event.tensor_proto.string_val[0].decode()
        for tag in tags["tensors"]
        if tag.startswith("events/")
        for event in found.Tensors(tag)
    ]
    return 1, series, notes


def tensorboard(home: Store) -> Backend:
    folder = Path(home.root) / "tensorboard"
    return Backend(
        home,
        lambda: tracker("tensorboard", ABOUT, run_dir=home),
        lambda: read_tensorboard(folder),
    )


def tensorboard_in_a_bucket(home: Store, tmp_path: Path) -> Backend:
    def read() -> tuple[int, Series, list[str]]:
        there = home.child("tensorboard")
        for name, _ in there.list():
            (tmp_path / name).write_bytes(there.read(name))
        return read_tensorboard(tmp_path)

    return Backend(home, lambda: tracker("tensorboard", ABOUT, run_dir=home), read)


def mlflow(home: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Backend:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/mlruns")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "spot")

    def read() -> tuple[int, Series, list[str]]:
        from mlflow import MlflowClient

        client = MlflowClient()
        runs = client.search_runs([client.get_experiment_by_name("spot").experiment_id])
        run = runs[0]
        assert run.data.params == {"lr": "0.1"}
        assert (run.info.run_name, run.info.status) == ("vit", "FINISHED")
        series = {
            name: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)]
            for name in run.data.metrics
        }
        return len(runs), series, run.data.tags["mlflow.note.content"].splitlines()

    return Backend(home, lambda: tracker("mlflow", ABOUT, run_dir=home), read)


def records(data: bytes) -> Iterator[bytes]:
    """The records of a file of Weights & Biases: LevelDB's log format behind seven bytes."""
    at, whole = 7, b""
    while at < len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield whole
            whole = b""


def wandb(home: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Backend:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_RUN_ID", "of-another-run")

    def read() -> tuple[int, Series, list[str]]:
        from wandb.proto.wandb_internal_pb2 import Record

        ids, rows, notes = set(), [], []
        series: Series = {}
        for file in sorted(tmp_path.glob("wandb/offline-run-*/*.wandb")):
            for data in records(file.read_bytes()):
                record = Record.FromString(data)
                if record.HasField("run"):
                    ids.add(record.run.run_id)
                if not record.HasField("history"):
                    continue
                row = {
                    "/".join(item.nested_key) or item.key: json.loads(item.value_json)
                    for item in record.history.item
                }
                rows.append(row["_step"])
                for name, value in row.items():
                    if name.startswith("events/"):
                        notes.append(value)
                    elif not name.startswith("_"):
                        series.setdefault(name, []).append((row["step"], value))
        assert ids == {ABOUT.run_id}
        assert rows == sorted(set(rows)), "rows of one start would hide those of another"
        del series["step"]
        return len(ids), series, notes

    return Backend(home, lambda: tracker("wandb", ABOUT, run_dir=home), read)


def fake(home: Store) -> Backend:
    one = FakeTracker()

    def read() -> tuple[int, Series, list[str]]:
        series: Series = {}
        for point in one.points:
            series.setdefault(point.series, []).append((point.step, point.value))
        return 1, series, [note.text for note in one.notes]

    return Backend(home, lambda: one, read)


@pytest.fixture(params=["fake", "tensorboard", "tensorboard-s3", "mlflow", "wandb"])
def backend(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Backend:
    home, other = Store.at(tmp_path / "run"), tmp_path / "other"
    other.mkdir()
    if request.param == "fake":
        return fake(home)
    if request.param == "tensorboard":
        return tensorboard(home)
    if request.param == "tensorboard-s3":
        server = request.getfixturevalue("s3_server")
        return tensorboard_in_a_bucket(Store.at(f"s3://{server.bucket}/run"), other)
    return (mlflow if request.param == "mlflow" else wandb)(home, monkeypatch, other)


def follow(backend: Backend, events: list[Event], *, writer: str, until_s: float) -> None:
    """One start of a driver: its facts come in two looks, and it ends."""
    journal = job_journal(backend.home)
    following = Following(
        backend.home,
        backend.home.child("spotray", "tracking"),
        [backend.make()],
        now_s=lambda: until_s,
    )
    half = len(events) // 2
    for part, some in enumerate((events[:half], events[half:])):
        with JournalWriter(journal, writer=f"{writer}{part}") as out:
            for event in some:
                out.append(event)
        following.look()
    following.close("finished")


def test_one_run_through_a_preemption_and_a_restart_of_the_driver(backend: Backend) -> None:
    story = Story()
    story.node_up("n1", "n2")
    story.job_starts()
    story.group("n1", "n2", restored=0, source="fresh")
    story.steps(12)
    story.silent_loss("n2")
    story.group("n1", restored=6, source="snapshot", reached=12)
    story.steps(10)  # to 16: 7 to 12 are done again
    follow(backend, story.events, writer="a", until_s=story.now_s)
    story.events = []
    story.wait(60)
    story.job_starts()  # a driver that was started again
    story.group("n1", restored=10, source="checkpoint")
    story.steps(12)  # to 22: 11 to 16 are done again
    story.done()
    follow(backend, story.events, writer="b", until_s=story.now_s)

    runs, series, notes = backend.read()
    assert runs == 1
    for name, found in series.items():
        steps = [step for step, _ in found]
        assert steps == sorted(set(steps)), name
    assert [step for step, _ in series["train/loss"]] == [4, 8, 12, 14, 16, 18, 22]
    # Of a step that was done twice, the first time counts; both are equal, bit for bit.
    assert dict(series["train/loss"])[12] == pytest.approx(2.0 / 9)
    assert {value for _, value in series["spotray/workers"]} == {1.0, 2.0}
    assert series["spotray/preemptions"][-1][1] == 1
    assert 0 < series["spotray/goodput"][-1][1] < 1
    assert series["spotray/cost_usd"][-1][1] > 0
    assert sum("down: preemption" in note for note in notes) == 1
    assert sum("job vit started" in note for note in notes) == 2
