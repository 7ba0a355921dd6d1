"""Which checkpoint a run goes on from, and what storage that fails means for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from spotray.errors import CheckpointError
from spotray.train.capture import Captured, put_together, take_apart
from spotray.train.restoring import Stored, newest_stored, send
from spotray.train.world import World
from tests.train.test_checkpointer import FailingStore, checkpointer
from tests.train.workers import WorkerPool

ALONE = World()


class DeafStore(FailingStore):
    """Storage that does not answer the first times."""

    def __init__(self, url: str, silences: list[int]) -> None:
        super().__init__(url, [])
        self.silences = silences  # shared with all children

    def child(self, *parts: str) -> DeafStore:
        return DeafStore(super().child(*parts).url, self.silences)

    def _check(self, operation: str, name: str) -> None:
        if operation == "list" and self.silences[0] > 0:
            self.silences[0] -= 1
            raise OSError(110, "Connection timed out")


class Found:
    """What `newest_stored` finds in a folder, and whom it tells of what."""

    def __init__(self, folder: Path, *, newer_than: int = -1, silences: int = 0) -> None:
        self.rejected: list[str] = []
        self.tried: list[int] = []
        self.told: list[str] = []
        self.left = [silences]
        self.stored: Stored | None = None
        checkpoints = checkpointer(DeafStore(str(folder), self.left), ALONE)
        try:
            self.stored = newest_stored(
                checkpoints,
                newer_than=newer_than,
                on_rejected=lambda name, why: self.rejected.append(name),
                on_found=lambda manifest: self.tried.append(manifest.step),
                on_unreadable=self.told.append,
                pauses_s=(0.0, 0.0),
            )
        except (OSError, CheckpointError) as exc:
            self.error: Exception | None = exc
        else:
            self.error = None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Checkpoints of the steps 3 and 5."""
    checkpoints = checkpointer(FailingStore(str(tmp_path), []), ALONE)
    for step in (3, 5):
        checkpoints.start(take_apart(state(step)), step=step, epoch=0)
        checkpoints.wait()
        assert not isinstance(checkpoints.outcome(), Exception)
    return tmp_path


def state(step: int) -> dict[str, Any]:
    return {"box": {"value": torch.full((7,), float(step)), "step": step}}


def damage(folder: Path, step: int) -> None:
    (file,) = (folder / f"step-{step:08}").glob("*.distcp")
    file.write_bytes(file.read_bytes()[:-1])


def test_the_newest_one_is_taken(folder: Path) -> None:
    found = Found(folder)
    assert found.stored is not None
    assert found.stored.step == 5
    assert found.stored.whence.endswith("step-00000005")
    assert put_together(found.stored.captured)["box"]["step"] == 5
    assert (found.tried, found.rejected, found.told) == ([5], [], [])


def test_none_is_read_that_a_snapshot_is_as_new_as(folder: Path) -> None:
    damage(folder, 5)  # reading it would say so
    found = Found(folder, newer_than=5)
    assert (found.stored, found.error, found.rejected) == (None, None, [])
    assert found.tried == [5], "its age says when the next one is due"


def test_behind_a_damaged_one_only_what_is_newer_than_the_snapshot_counts(folder: Path) -> None:
    damage(folder, 5)
    without, with_one = Found(folder), Found(folder, newer_than=4)
    assert without.stored is not None
    assert without.stored.step == 3
    assert (with_one.stored, with_one.error) == (None, None)
    assert without.rejected == with_one.rejected == ["step-00000005"]


def test_damaged_ones_alone_are_an_error_unless_there_is_a_snapshot(folder: Path) -> None:
    damage(folder, 3)
    damage(folder, 5)
    words = r"all checkpoints .* are damaged \(step-00000005, step-00000003\): bring one back"
    with pytest.raises(CheckpointError, match=words):
        raise Found(folder).error or AssertionError("no error")
    with_one = Found(folder, newer_than=0)
    assert (with_one.stored, with_one.error) == (None, None)


def test_a_job_that_stored_nothing_starts_afresh(tmp_path: Path) -> None:
    found = Found(tmp_path)
    assert (found.stored, found.error) == (None, None)


def test_storage_that_does_not_answer_is_asked_again_after_each_pause(folder: Path) -> None:
    patient, in_vain = Found(folder, silences=2), Found(folder, silences=3)
    assert patient.stored is not None
    assert patient.stored.step == 5
    assert isinstance(in_vain.error, OSError)
    assert in_vain.left == [0], "asked three times"


def test_with_a_snapshot_nobody_waits_for_storage(folder: Path) -> None:
    found = Found(folder, newer_than=0, silences=9)
    assert (found.stored, found.error) == (None, None)
    assert found.left == [8], "asked once"
    (what,) = found.told
    assert "the snapshot is taken" in what
    assert "Connection timed out" in what


def pass_on(world: World, source: int) -> dict[str, Any]:
    mine = take_apart(state(world.rank)) if world.rank == source else None
    captured: Captured = send(world, mine, source=source)
    return put_together(captured)


def test_all_workers_get_the_state_of_the_one_that_holds_it(workers: WorkerPool) -> None:
    for size, source in ((1, 0), (3, 2)):
        for result in workers.run(size, pass_on, source):
            assert result["box"]["step"] == source
            assert torch.equal(result["box"]["value"], torch.full((7,), float(source)))
