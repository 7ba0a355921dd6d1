"""Checkpoints: written by all, read by any, trusted only when every byte is right."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader

from spotray.checkpoint import manifest as manifests
from spotray.checkpoint.manifest import Manifest, Retention
from spotray.errors import CheckpointCorrupt, CheckpointError, FencedOut
from spotray.storage import Store
from spotray.train.capture import Captured, put_together, take_apart
from spotray.train.checkpoint_files import read_checkpoint
from spotray.train.checkpointer import Checkpointer, Committed
from spotray.train.world import World
from tests.conftest import S3Server
from tests.train.test_capture import same
from tests.train.workers import WorkerPool


def state(step: int) -> dict[str, Any]:
    torch.manual_seed(step)
    return {
        "model": {"w": torch.randn(50, 7), "half": torch.randn(9).to(torch.bfloat16)},
        "optimizer": {"state": {0: {"step": torch.tensor(float(step)), "none": torch.empty(0, 2)}}},
        "flags": torch.tensor([True, False]),
        "turns": torch.polar(torch.ones(2), torch.ones(2)),
        "strided": torch.arange(12.0).reshape(3, 4).t(),
        "position": {"step": step, "epoch": 1},
    }


def checkpointer(store: Store, world: World, *, keep: int = 2, **more: Any) -> Checkpointer:
    """One that takes it lightly where it meets a bad checkpoint, unless ``more`` says."""
    more = {"on_rejected": lambda name, why: None, **more}
    return Checkpointer(store, world, run_id="r", keep=Retention(last=keep), **more)


def save(
    world: World, url: str, steps: list[int], keep: int = 2
) -> list[Committed | Exception | None]:
    """Write a checkpoint for each step; what became of them."""
    checkpoints = checkpointer(Store.at(url), world, keep=keep)
    outcomes = []
    for step in steps:
        checkpoints.start(take_apart(state(step)), step=step, epoch=1)
        checkpoints.wait()
        outcomes.append(checkpoints.outcome())
        assert checkpoints.outcome() is None, "an outcome is told once"
    return outcomes


def newest(url: str) -> tuple[int | None, list[tuple[str, str]]]:
    """Step of the newest sound checkpoint, and what was rejected on the way."""
    rejected: list[tuple[str, str]] = []
    checkpoints = checkpointer(
        Store.at(url), World(), on_rejected=lambda name, why: rejected.append((name, why))
    )
    for name, manifest in checkpoints.newest():
        try:
            captured = checkpoints.read(name, manifest)
        except CheckpointCorrupt as exc:
            rejected.append((name, str(exc)))
            continue
        assert same(put_together(captured), state(manifest.step))
        return manifest.step, rejected
    return None, rejected


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_what_some_workers_wrote_any_process_reads(
    workers: WorkerPool, tmp_path: Path, world_size: int
) -> None:
    url = str(tmp_path)
    for outcomes in workers.run(world_size, save, url, [3]):
        (done,) = outcomes
        assert isinstance(done, Committed), done
        assert (done.step, done.name) == (3, "step-00000003")
        assert done.seconds >= done.blocked_s >= 0
    assert newest(url) == (3, [])
    (_, manifest) = next(iter(checkpointer(Store.at(url), World()).newest()))
    assert manifest.world_size == world_size
    on_disk = {f.name for f in (tmp_path / "step-00000003").iterdir()} - {manifests.MANIFEST}
    assert on_disk == set(manifest.files)


def test_the_state_is_that_of_the_start_not_of_the_end(tmp_path: Path) -> None:
    live = torch.zeros(100_000)
    checkpoints = checkpointer(Store.at(tmp_path), World())
    checkpoints.start(take_apart({"w": live}), step=1, epoch=0)
    live.fill_(1)
    checkpoints.wait()
    captured = read_checkpoint(Store.at(tmp_path / "step-00000001"))
    assert not put_together(captured)["w"].any()


def test_plain_torch_reads_it(workers: WorkerPool, tmp_path: Path) -> None:
    workers.run(3, save, str(tmp_path), [5])
    expected = state(5)
    tensors = {"/model/w": torch.empty(50, 7), "/model/half": torch.empty(9, dtype=torch.bfloat16)}
    reader = FileSystemReader(tmp_path / "step-00000005")
    dcp.load(tensors, storage_reader=reader, no_dist=True)
    assert torch.equal(tensors["/model/w"], expected["model"]["w"])
    assert torch.equal(tensors["/model/half"], expected["model"]["half"])


def test_the_newest_ones_stay(workers: WorkerPool, tmp_path: Path) -> None:
    workers.run(2, save, str(tmp_path), [1, 2, 3, 4, 5], 3)
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["step-00000003", "step-00000004", "step-00000005"]


Damage = Callable[[Path], None]


def flip_a_bit(folder: Path) -> None:
    file = max(folder.glob("*.distcp"), key=lambda f: f.stat().st_size)
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)


def cut(folder: Path) -> None:
    file = max(folder.glob("*.distcp"), key=lambda f: f.stat().st_size)
    os.truncate(file, file.stat().st_size - 1)


def lose_a_file(folder: Path) -> None:
    next(folder.glob("__1_*.distcp")).unlink()


def lose_the_metadata(folder: Path) -> None:
    (folder / ".metadata").unlink()


def change_the_metadata(folder: Path) -> None:
    file = folder / ".metadata"
    file.write_bytes(b"\x80\x04" + file.read_bytes()[2:-5] + b"oops.")


def change_the_manifest(folder: Path) -> None:
    file = folder / manifests.MANIFEST
    file.write_text(file.read_text().replace('"step": 2', '"step": 7'))


def cut_the_manifest(folder: Path) -> None:
    os.truncate(folder / manifests.MANIFEST, 40)


DAMAGES: list[Damage] = [
    flip_a_bit,
    cut,
    lose_a_file,
    lose_the_metadata,
    change_the_metadata,
    change_the_manifest,
    cut_the_manifest,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_of_a_damaged_checkpoint_the_one_before_is_used_and_it_is_told(
    workers: WorkerPool, tmp_path: Path, damage: Damage
) -> None:
    workers.run(2, save, str(tmp_path), [1, 2])
    folder = tmp_path / "step-00000002"
    damage(folder)
    step, rejected = newest(str(tmp_path))
    assert step == 1
    assert [name for name, _ in rejected] == [folder.name]
    why = rejected[0][1]
    assert str(folder) in why
    assert "\n" not in why
    assert "Traceback" not in why


def test_a_checkpoint_without_a_manifest_was_never_there(tmp_path: Path) -> None:
    save(World(), str(tmp_path), [1, 2])
    (tmp_path / "step-00000002" / manifests.MANIFEST).unlink()
    assert newest(str(tmp_path)) == (1, [])
    with pytest.raises(CheckpointCorrupt, match="never finished"):
        read_checkpoint(Store.at(tmp_path / "step-00000002"))


def test_nothing_of_a_half_written_attempt_gets_into_the_next_one(
    workers: WorkerPool, tmp_path: Path
) -> None:
    workers.run(4, save, str(tmp_path), [1])
    (tmp_path / "step-00000001" / manifests.MANIFEST).unlink()
    workers.run(2, save, str(tmp_path), [1])
    assert newest(str(tmp_path)) == (1, [])
    assert not list((tmp_path / "step-00000001").glob("__3_*"))


# -- who may commit -------------------------------------------------------------------


def refuse(folder: Store, manifest: Manifest) -> None:
    raise FencedOut(f"not a member any more, but at step {manifest.step}")


def save_fenced_out(world: World, url: str) -> Committed | Exception | None:
    checkpoints = checkpointer(Store.at(url), world, commit=refuse)
    checkpoints.start(take_apart(state(7)), step=7, epoch=1)
    checkpoints.wait()
    return checkpoints.outcome()


@pytest.mark.parametrize("world_size", [1, 3])
def test_without_leave_to_commit_all_workers_hear_it_and_there_is_no_checkpoint(
    workers: WorkerPool, tmp_path: Path, world_size: int
) -> None:
    for outcome in workers.run(world_size, save_fenced_out, str(tmp_path)):
        assert type(outcome) is FencedOut, outcome
        assert "not a member any more, but at step 7" in str(outcome)
    assert newest(str(tmp_path)) == (None, [])


def test_the_one_who_gives_leave_gets_the_whole_manifest(tmp_path: Path) -> None:
    asked: list[tuple[str, Manifest]] = []

    def commit(folder: Store, manifest: Manifest) -> None:
        assert newest(str(tmp_path)) == (None, []), "valid before its commit"
        manifests.verify(folder, manifest)
        asked.append((folder.url, manifest))
        manifests.write(folder, manifest)

    checkpoints = checkpointer(Store.at(tmp_path), World(generation=4), commit=commit)
    checkpoints.start(take_apart(state(7)), step=7, epoch=1, metrics={"loss": 0.5})
    checkpoints.wait()
    assert isinstance(checkpoints.outcome(), Committed)
    ((url, manifest),) = asked
    assert url == str(tmp_path / "step-00000007-g4")
    assert manifest.extra == {
        "final": False,
        "asked_for": False,
        "metrics": {"loss": 0.5},
        "generation": 4,
    }
    assert newest(str(tmp_path)) == (7, [])


def test_what_old_and_new_workers_write_for_one_step_does_not_mix(tmp_path: Path) -> None:
    store = Store.at(tmp_path)
    old, new = (checkpointer(store, World(generation=g)) for g in (1, 2))
    for checkpoints in (old, new, new):
        checkpoints.start(take_apart(state(7)), step=7, epoch=1)
        checkpoints.wait()
        assert isinstance(checkpoints.outcome(), Committed)
        assert newest(str(tmp_path)) == (7, [])
    # Of one step one is enough.
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000007-g2.2"]


class WaitingStore(Store):
    """A folder in which data files wait at their opening until they are let through."""

    def __init__(self, url: str, reached: threading.Event, let_through: threading.Event) -> None:
        inner = Store.at(url)
        super().__init__(inner.fs, inner.root, url=inner.url)
        self.reached, self.let_through = reached, let_through

    def child(self, *parts: str) -> Store:
        return WaitingStore(super().child(*parts).url, self.reached, self.let_through)

    def open_output(self, name: str) -> Any:
        if name.endswith(".distcp"):
            self.reached.set()
            assert self.let_through.wait(30)
        return super().open_output(name)


def test_a_checkpoint_that_was_given_up_is_never_committed_nor_told(tmp_path: Path) -> None:
    reached, let_through = threading.Event(), threading.Event()
    checkpoints = checkpointer(WaitingStore(str(tmp_path), reached, let_through), World())
    checkpoints.start(take_apart(state(7)), step=7, epoch=1)
    thread = checkpoints._writing
    assert thread is not None
    assert reached.wait(30)
    checkpoints.abandon()
    assert not checkpoints.is_busy
    let_through.set()
    thread.join(30)
    assert not thread.is_alive()
    assert newest(str(tmp_path)) == (None, [])
    assert checkpoints.outcome() is None


# -- how fast -------------------------------------------------------------------------


def seconds_to_write(folder: Path, *, bytes_per_s: float | None, **how: bool) -> float:
    checkpoints = checkpointer(Store.at(folder), World(), bytes_per_s=bytes_per_s)
    captured = take_apart({"a": torch.zeros(2**19), "b": torch.zeros(2**19)})  # 4 MiB
    checkpoints.start(captured, step=1, epoch=0, **how)
    thread = checkpoints._writing
    assert thread is not None
    thread.join()  # and not wait(), which lifts the limit
    done = checkpoints.outcome()
    assert isinstance(done, Committed)
    return done.seconds


def test_a_limit_of_bandwidth_is_obeyed_but_not_while_training_waits(tmp_path: Path) -> None:
    limit = 4e6
    limited_s = seconds_to_write(tmp_path / "a", bytes_per_s=limit)
    # A piece is paid for by those after it, so the last one is free.
    assert limited_s >= 3 * 2**20 / limit
    assert seconds_to_write(tmp_path / "b", bytes_per_s=1.0, hurry=True) < 3600
    assert seconds_to_write(tmp_path / "c", bytes_per_s=1.0, final=True) < 3600


def test_who_waits_for_a_slow_write_lifts_its_limit(tmp_path: Path) -> None:
    checkpoints = checkpointer(Store.at(tmp_path), World(), bytes_per_s=1.0)
    for step in (1, 2):
        checkpoints.start(take_apart({"a": torch.zeros(2**20)}), step=step, epoch=0)
        assert checkpoints.is_busy
    checkpoints.wait()
    assert [step for step, _ in manifests.list_checkpoints(Store.at(tmp_path))] == [2, 1]


def test_a_slow_write_ends_when_it_is_given_up(tmp_path: Path) -> None:
    checkpoints = checkpointer(Store.at(tmp_path), World(), bytes_per_s=1.0)
    checkpoints.start(take_apart({"a": torch.zeros(2**20)}), step=1, epoch=0)
    thread = checkpoints._writing
    assert thread is not None
    checkpoints.abandon()
    thread.join(30)
    assert not thread.is_alive(), "one byte a second: it would take 48 days"
    assert newest(str(tmp_path)) == (None, [])


def test_the_cost_of_a_checkpoint_is_measured(tmp_path: Path) -> None:
    checkpoints = checkpointer(Store.at(tmp_path), World())
    began = time.perf_counter() - 5.0  # taking the state apart took so long, say
    checkpoints.start(take_apart(state(1)), step=1, epoch=0, began=began)
    checkpoints.wait()
    done = checkpoints.outcome()
    assert isinstance(done, Committed)
    assert done.seconds > done.blocked_s > 5.0
    assert done.cpu_s > 0


def test_the_memory_of_the_copies_is_used_again(tmp_path: Path) -> None:
    checkpoints = checkpointer(Store.at(tmp_path), World())
    places = []
    for step in (1, 2, 3):
        shape = (300, 7) if step == 3 else (200, 7)
        captured = take_apart({"a": torch.full(shape, float(step)), "b": torch.full((9,), step)})
        checkpoints.start(captured, step=step, epoch=0)
        checkpoints.wait()
        places.append({name: t.data_ptr() for name, t in checkpoints._staged.items()})
        saved = put_together(read_checkpoint(Store.at(tmp_path / f"step-{step:08d}")))
        assert saved["a"].shape == shape
        assert set(saved["a"].flatten().tolist()) == {float(step)}
    assert places[0]["/a"] == places[1]["/a"]
    assert places[0]["/b"] == places[1]["/b"] == places[2]["/b"]


class FailingStore(Store):
    """A folder in which some operations fail until they are allowed."""

    def __init__(self, url: str, failing: list[str]) -> None:
        inner = Store.at(url)
        super().__init__(inner.fs, inner.root, url=inner.url)
        self.failing = failing  # shared with all children

    def child(self, *parts: str) -> Store:
        return FailingStore(super().child(*parts).url, self.failing)

    def _check(self, operation: str, name: str) -> None:
        if any(f"{operation} {name}".startswith(f) for f in self.failing):
            raise OSError(28, f"No space left on device ({operation} {name})")

    def open_output(self, name: str) -> Any:
        self._check("write", name)
        return super().open_output(name)

    def delete(self, name: str) -> None:
        self._check("delete", name)
        super().delete(name)

    def list(self, prefix: str = "", *, recursive: bool = True) -> list[tuple[str, int]]:
        self._check("list", prefix)
        return super().list(prefix, recursive=recursive)


def save_with_failures(
    world: World, url: str, failing: list[str], failing_rank: int
) -> list[Committed | Exception | None]:
    """Three checkpoints; during the second one a rank's storage fails."""
    mine: list[str] = []
    checkpoints = checkpointer(FailingStore(url, mine), world)
    outcomes = []
    for step in (1, 2, 3):
        mine.clear()
        if step == 2 and world.rank == failing_rank:
            mine.extend(failing)
        checkpoints.start(take_apart(state(step)), step=step, epoch=0)
        checkpoints.wait()
        outcomes.append(checkpoints.outcome())
    return outcomes


@pytest.mark.parametrize(
    ("failing", "rank"),
    [
        (["write __1_"], 1),
        (["write __0_"], 0),
        (["write .metadata"], 0),
        (["write manifest"], 0),
        (["delete manifest"], 0),
    ],
)
def test_a_rank_that_cannot_write_fails_the_checkpoint_on_all_and_training_goes_on(
    workers: WorkerPool, tmp_path: Path, failing: list[str], rank: int
) -> None:
    url = str(tmp_path)
    for outcomes in workers.run(3, save_with_failures, url, failing, rank, timeout_s=30):
        first, second, third = outcomes
        assert isinstance(first, Committed), first
        assert type(second) is CheckpointError, second
        text = str(second)
        assert "step-00000002 could not be written" in text
        assert "No space left on device" in text
        assert f"rank {rank}" in text or rank == 0
        assert "Traceback" not in text
        assert "\n" not in text
        assert isinstance(third, Committed), third
    assert newest(url) == (3, [])


def test_old_checkpoints_that_cannot_be_removed_do_not_fail_the_new_one(
    workers: WorkerPool, tmp_path: Path
) -> None:
    for outcomes in workers.run(2, save_with_failures, str(tmp_path), ["list"], 0, timeout_s=30):
        assert all(isinstance(o, Committed) for o in outcomes), outcomes


def test_a_single_worker_that_cannot_write_says_so(tmp_path: Path) -> None:
    first, second, third = save_with_failures(World(), str(tmp_path), ["write"], 0)
    assert isinstance(first, Committed)
    assert isinstance(second, CheckpointError)
    assert isinstance(third, Committed)


def test_a_state_of_fewer_tensors_than_workers_is_written(
    workers: WorkerPool, tmp_path: Path
) -> None:
    for outcome in workers.run(4, save_little, str(tmp_path)):
        assert isinstance(outcome, Committed), outcome
    assert put_together(read_checkpoint(Store.at(tmp_path / "step-00000001"))) == {"a": 1}


def save_little(world: World, url: str) -> Any:
    checkpoints = checkpointer(Store.at(url), world)
    checkpoints.start(take_apart({"a": 1}), step=1, epoch=0)
    checkpoints.wait()
    return checkpoints.outcome()


def test_the_bytes_are_parted_about_evenly() -> None:
    from spotray.train.checkpointer import _part

    tensors = {f"t{i}": torch.zeros(size) for i, size in enumerate([100, 90, 40, 30, 20, 10, 5, 1])}
    captured = Captured("{}", tensors)
    for size in (1, 2, 3, 4):
        parts = [_part(captured, rank=rank, size=size) for rank in range(size)]
        names = sorted(name for part in parts for name in part)
        assert names == sorted([*tensors, "~skeleton"])
        loads = [sum(t.nbytes for t in part.values()) for part in parts]
        assert max(loads) <= sum(loads) / size + 400


def save_on_s3(world: World, url: str, environment: dict[str, str], steps: list[int]) -> Any:
    os.environ.update(environment)
    return save(world, url, steps)


def test_checkpoints_on_s3(workers: WorkerPool, s3_server: S3Server) -> None:
    url = f"s3://{s3_server.bucket}/runs/one"
    environment = {k: v for k, v in os.environ.items() if k.startswith("AWS_")}
    for outcomes in workers.run(2, save_on_s3, url, environment, [1, 2, 3]):
        assert all(isinstance(o, Committed) for o in outcomes), outcomes
    assert newest(url) == (3, [])
    store = Store.at(url)
    assert {name.partition("/")[0] for name, _ in store.list()} == {
        "step-00000002",
        "step-00000003",
    }
    (name, manifest) = next(iter(checkpointer(store, World()).newest()))
    file = max(manifest.files, key=lambda f: manifest.files[f][0])
    store.child(name).write(file, store.child(name).read(file)[:-1])
    step, rejected = newest(url)
    assert step == 2
    assert file in rejected[0][1]


def test_an_unreachable_bucket_fails_the_checkpoint_and_not_the_process(
    s3_server: S3Server,
) -> None:
    (outcome,) = save(World(), f"s3://{s3_server.bucket}-gone/runs", [1])
    assert isinstance(outcome, CheckpointError)
    assert "\n" not in str(outcome)
