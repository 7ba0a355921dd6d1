"""Two slots in memory: wherever a process is killed, one of them is valid."""

from __future__ import annotations

import errno
import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spotray.train.capture import Captured, put_together, take_apart
from spotray.train.snapshot import SnapshotSlots, _checksum


def state(step: int, *, size: int = 1000) -> Captured:
    half = torch.ones(3, dtype=torch.bfloat16)
    return take_apart({"w": torch.full((size,), float(step)), "half": half, "lr": step / 8})


def write(slots: SnapshotSlots, step: int, *, size: int = 1000) -> None:
    slots.write(state(step, size=size), step=step)
    slots.wait()


def newest_step(folder: Path) -> int | None:
    """The step that a new process on this node finds, after a look at its bytes."""
    found = SnapshotSlots(folder).newest()
    if found is None:
        return None
    values = put_together(found.captured)
    assert set(values["w"].tolist()) == {float(found.step)}
    assert values["lr"] == found.step / 8
    return found.step


@pytest.fixture
def slots(tmp_path: Path) -> SnapshotSlots:
    return SnapshotSlots(tmp_path / "job")


def test_the_newest_snapshot_is_found_by_the_next_process(slots: SnapshotSlots) -> None:
    assert newest_step(slots.folder) is None
    for step in range(1, 6):
        write(slots, step)
        assert newest_step(slots.folder) == step
    assert len(list(slots.folder.glob("*.bin"))) == 2


def test_the_newest_snapshot_is_never_overwritten_after_reopening(slots: SnapshotSlots) -> None:
    write(slots, 1)
    for step in range(2, 8):
        again = SnapshotSlots(slots.folder)  # the worker's process was replaced
        found = again.newest()
        assert found is not None
        write(again, step)
        assert found.captured.tensors["/w"][0].item() == step - 1, "changed under its reader"
        again._meta(1 - again._next).unlink()
        assert newest_step(slots.folder) == step - 1, "the one before was overwritten"
        write(again, step)
        write(again, step)


def die_without_commit(slots: SnapshotSlots) -> None:
    """Killed after the data changed, before the commit."""
    write(slots, 99)
    written = 1 - slots._next
    slots._meta(written).unlink()


def die_in_the_copy(slots: SnapshotSlots) -> None:
    slots._meta(slots._next).unlink(missing_ok=True)
    data = slots.folder / f"slot-{slots._next}.bin"
    if data.exists():
        raw = bytearray(data.read_bytes())
        raw[: len(raw) // 2] = b"\xff" * (len(raw) // 2)
        data.write_bytes(bytes(raw))


def die_before_the_rename(slots: SnapshotSlots) -> None:
    die_in_the_copy(slots)
    (slots.folder / f".slot-{slots._next}.json").write_text('{"step": 99')


def die_in_the_reservation(slots: SnapshotSlots) -> None:
    slots._meta(slots._next).unlink(missing_ok=True)
    (slots.folder / f"slot-{slots._next}.bin").write_bytes(b"")


DEATHS = [
    die_without_commit,
    die_in_the_copy,
    die_before_the_rename,
    die_in_the_reservation,
]


@pytest.mark.parametrize("die", DEATHS)
@pytest.mark.parametrize("before", [1, 2, 3])
def test_a_kill_during_a_write_leaves_the_snapshot_before(
    slots: SnapshotSlots, die: Callable[[SnapshotSlots], None], before: int
) -> None:
    for step in range(1, before + 1):
        write(slots, step)
    die(slots)
    assert newest_step(slots.folder) == before
    again = SnapshotSlots(slots.folder)
    again.newest()
    die(again)
    assert newest_step(slots.folder) == before, "a second kill took the last valid snapshot"
    again = SnapshotSlots(slots.folder)
    again.newest()
    write(again, 200)
    assert newest_step(slots.folder) == 200


KILLED = """
import sys, torch
from pathlib import Path
from spotray.train.capture import take_apart
from spotray.train.snapshot import SnapshotSlots
slots = SnapshotSlots(Path(sys.argv[1]))
step = 0
while True:
    step += 1
    slots.write(take_apart({"w": torch.full((20000,), float(step)), "lr": step / 8}), step=step)
    if step == 3:
        print("going", flush=True)
"""


def test_a_process_killed_at_any_moment_leaves_a_valid_snapshot(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    with child, child.stdout:
        assert child.stdout.readline() == "going\n"
        child.kill()
        child.wait(timeout=30)
    step = newest_step(tmp_path)
    assert step is not None
    assert step >= 2


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps 1 and 2, of which 2 stands in slot 1."""
    slots = SnapshotSlots(tmp_path_factory.mktemp("sound") / "job")
    write(slots, 1, size=10)
    write(slots, 2, size=10)
    return slots.folder


@given(data=st.data())
def test_a_flipped_bit_anywhere_in_the_newest_leaves_the_one_before(
    sound: Path, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(["slot-1.bin", "slot-1.json"]))
    raw = (sound / name).read_bytes()
    bit = data.draw(st.integers(0, 8 * len(raw) - 1))
    damaged = bytearray(raw)
    damaged[bit // 8] ^= 1 << bit % 8
    rejected: list[tuple[str, str]] = []
    try:
        (sound / name).write_bytes(bytes(damaged))
        found = SnapshotSlots(sound).newest(lambda path, why: rejected.append((path, why)))
        assert found is not None
        assert found.step == 1
    finally:
        (sound / name).write_bytes(raw)
    assert [path for path, _ in rejected] == [str(sound / "slot-1.json")]
    assert "\n" not in rejected[0][1]


@given(data=st.data())
def test_a_cut_file_leaves_the_one_before(sound: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["slot-1.bin", "slot-1.json"]))
    raw = (sound / name).read_bytes()
    try:
        (sound / name).write_bytes(raw[: data.draw(st.integers(0, len(raw) - 1))])
        found = SnapshotSlots(sound).newest()
        assert found is not None
        assert found.step == 1
    finally:
        (sound / name).write_bytes(raw)


def test_missing_data_leaves_the_one_before(slots: SnapshotSlots) -> None:
    write(slots, 1)
    write(slots, 2)
    (slots.folder / "slot-1.bin").unlink()
    assert newest_step(slots.folder) == 1


def test_nothing_valid_is_nothing_found(slots: SnapshotSlots) -> None:
    write(slots, 1)
    (slots.folder / "slot-0.json").write_text(json.dumps({"step": 4}))
    (slots.folder / "slot-1.json").write_text("")
    rejected: list[str] = []
    assert slots.newest(lambda path, why: rejected.append(path)) is None
    assert len(rejected) == 2


def test_a_state_that_grows_and_shrinks_is_kept(slots: SnapshotSlots) -> None:
    for step, size in enumerate([10, 1000, 5, 5, 70000, 0], start=1):
        captured = take_apart({"w": torch.full((size,), float(step)), "lr": step / 8})
        slots.write(captured, step=step)
        slots.wait()
        found = SnapshotSlots(slots.folder).newest()
        assert found is not None
        assert found.step == step
        assert put_together(found.captured)["w"].shape == (size,)


def test_a_folder_that_vanished_is_made_again(slots: SnapshotSlots) -> None:
    for step in (1, 2, 3):
        write(slots, step)
    shutil.rmtree(slots.folder)
    for step in (4, 5, 6, 7):
        try:
            write(slots, step)
        except OSError:
            continue
    assert newest_step(slots.folder) == 7


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file of this process may exceed 1 MiB: as a full memory, without filling one."""
    import signal

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.usefixtures("small_files")
def test_no_room_is_an_error_and_leaves_the_snapshot_before(slots: SnapshotSlots) -> None:
    write(slots, 1)
    write(slots, 2)
    for _ in range(3):
        with pytest.raises(OSError, match="File too large"):
            slots.write(state(3, size=2**20), step=3)
        assert newest_step(slots.folder) == 2
    for step in (4, 5, 6):
        write(slots, step)
        assert newest_step(slots.folder) == step, "after an error the old size did not work"


FULL = """
import errno, sys, torch
from pathlib import Path
from spotray.train.capture import take_apart
from spotray.train.snapshot import SnapshotSlots
slots = SnapshotSlots(Path(sys.argv[1]))
slots.write(take_apart({"w": torch.ones(2**18)}), step=1)
slots.wait()
try:
    slots.write(take_apart({"w": torch.ones(2**20)}), step=2)
except OSError as exc:
    assert exc.errno == errno.ENOSPC, exc
    assert SnapshotSlots(Path(sys.argv[1])).newest().step == 1
    print("full")
"""


@pytest.mark.root
def test_a_full_memory_is_an_error_and_no_killed_process(tmp_path: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(tmp_path)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small tmpfs: {mounted.stderr.decode().strip()}")
    try:
        child = subprocess.run(
            [sys.executable, "-c", FULL, str(tmp_path / "job")], capture_output=True, text=True
        )
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
    assert (child.returncode, child.stdout) == (0, "full\n"), child.stderr


def test_too_little_memory_is_told_with_its_cure(slots: SnapshotSlots) -> None:
    assert slots.lacking_room(1000) == ""
    text = slots.lacking_room(2**60)
    assert str(slots.folder) in text
    assert "two snapshots of this job need 2199023255552 MiB" in text
    assert "--shm-size" in text
    assert "SPOTRAY_SHM_DIR" in text
    assert "\n" not in text


def test_a_folder_that_cannot_be_used_has_no_room(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "SPOTRAY_SHM_DIR" in SnapshotSlots(tmp_path / "file" / "job").lacking_room(1)


def test_the_room_that_old_snapshots_take_counts_as_free(slots: SnapshotSlots) -> None:
    write(slots, 1)
    write(slots, 2)
    held = sum(f.stat().st_size for f in slots.folder.glob("*.bin"))
    free = shutil.disk_usage(slots.folder).free
    assert slots.lacking_room((free + held) // 2 - 2**20) == ""


def test_another_process_takes_over_and_spares_the_newest(slots: SnapshotSlots) -> None:
    other = SnapshotSlots(slots.folder)
    for step in (1, 2, 3, 4, 5):
        write(slots, step)
    other.reopen()
    write(other, 6)
    assert newest_step(slots.folder) == 6
    other._meta(1 - other._next).unlink()
    assert newest_step(slots.folder) == 5, "the newest one was overwritten"
    slots.reopen()
    write(slots, 7)
    assert newest_step(slots.folder) == 7


@given(
    size=st.integers(1, 300_000),
    first=st.integers(0, 2**31),
    second=st.integers(0, 2**31),
    length=st.integers(1, 70_000),
)
def test_the_checksum_sees_what_moved(size: int, first: int, second: int, length: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    other = data.copy()
    a, b = first % size, second % size
    length = min(length, size - a, size - b)
    other[a : a + length] = data[b : b + length]  # as a page written to a wrong place
    same = np.array_equal(data, other)
    assert (_checksum(torch.from_numpy(data)) == _checksum(torch.from_numpy(other))) is same


def test_remove_leaves_nothing(slots: SnapshotSlots) -> None:
    slots.write(state(1), step=1)
    slots.remove()
    assert not slots.folder.exists()


def test_errors_of_the_folder_are_left_to_the_caller(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    slots = SnapshotSlots(tmp_path / "file" / "job")
    with pytest.raises(OSError) as caught:  # noqa: PT011  # which one is up to the filesystem
        slots.write(state(1), step=1)
    assert caught.value.errno in (errno.ENOTDIR, errno.EEXIST)


def test_the_time_beside_training_is_measured(slots: SnapshotSlots) -> None:
    write(slots, 1, size=10**6)
    assert 0 < slots.seal_s < 60
