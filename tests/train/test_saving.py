"""What is saved how often, at what cost, and what happens where there is no room."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spotray.checkpoint import manifest as manifests
from spotray.checkpoint.manifest import Manifest
from spotray.errors import FencedOut
from spotray.events import CheckpointCommitted, SnapshotTaken, Warned
from spotray.storage import Store
from spotray.train.checkpointer import Committed
from spotray.train.config import SpotConfig
from spotray.train.saving import Saver
from spotray.train.session import Session
from spotray.train.snapshot import SnapshotSlots
from spotray.train.state import TrainState
from spotray.train.world import World
from tests.train.jobs import Memory
from tests.train.test_checkpointer import WaitingStore
from tests.train.test_keeper import Box, Script, events


class Slots(SnapshotSlots):
    """Slots of scripted room and cost."""

    def __init__(self, folder: Path, *, seal_s: float = 0.0, stalled_s: float = 0.0) -> None:
        super().__init__(folder)
        self.seal_s, self.stalled_s = seal_s, stalled_s
        self.full = False

    def lacking_room(self, size_bytes: int) -> str:
        return f"{size_bytes} bytes do not fit" if self.full else super().lacking_room(size_bytes)


def saver_in(
    folder: Path,
    *,
    world: World | None = None,
    losses: tuple[int, float] = (0, 0.0),
    store: Store | None = None,
    snapshots: bool = True,
    storage: bool = True,
    commit: Callable[[Store, Manifest], None] = manifests.write,
    **spot: Any,
) -> tuple[Saver, Session, Box]:
    world = world or World()
    box = Box()
    session = Session(
        run_id="r",
        world=world,
        spot=SpotConfig(**{"node_mtbp_s": 10_000.0, **spot}),
        store=(store or Store.at(folder / "store")) if storage else None,
        shm_dir=folder / "shm" if snapshots else None,
        node_id="n0",
        link=Script(losses=losses),
        journal=Memory(),
    )
    saver = Saver(session, world, TrainState({"box": box}), commit=commit)
    if snapshots:
        saver.slots = Slots(folder / "shm" / "r")
    return saver, session, box


def committed(*, blocked_s: float, cpu_s: float = 0.0, seconds: float = 0.0) -> Committed:
    return Committed(1, "step-00000001", seconds, blocked_s, 10, cpu_s=cpu_s)


# -- intervals ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cost_s", "interval_s"), [(0.0, 3.0), (0.015, 3.0), (0.0195, 3.0), (0.13, 20.0), (2.6, 400.0)]
)
def test_a_costly_snapshot_stretches_the_interval(
    tmp_path: Path, cost_s: float, interval_s: float
) -> None:
    saver, _, _ = saver_in(tmp_path, save_cost_frac=0.01)
    saver._snapshot_blocked_s = cost_s
    assert saver.snapshot_interval_s() == pytest.approx(interval_s)


def test_the_cost_of_a_snapshot_is_measured(tmp_path: Path) -> None:
    saver, session, _ = saver_in(tmp_path, snapshot_interval_s=1e-9)
    assert saver.snapshot_cost_s == 0.0
    assert saver.wants_snapshot()
    assert saver.snapshot(1, why="interval", wait=True)
    (taken,) = events(session, SnapshotTaken)
    assert taken.size_bytes == 4000
    assert 0 < saver.snapshot_cost_s < 60
    assert saver.snapshot_interval_s() >= 100 * saver.snapshot_cost_s


def checkpoint_interval_s(folder: Path, done: Committed, **more: Any) -> float:
    """With a guess of 10 000 s a node."""
    saver, _, _ = saver_in(folder, checkpoint_min_interval_s=30.0, save_cost_frac=0.9, **more)
    saver._checkpoint = done
    return saver.checkpoint_interval_s()


def test_the_checkpoint_interval_follows_measured_cost_and_losses(tmp_path: Path) -> None:
    half = committed(blocked_s=0.5)
    base_s = checkpoint_interval_s(tmp_path, half)
    assert base_s == pytest.approx((2 * 0.5 * 10_000) ** 0.5, rel=0.02)

    def times(done: Committed, **more: Any) -> float:
        return checkpoint_interval_s(tmp_path, done, **more) / base_s

    assert times(committed(blocked_s=2.0)) == pytest.approx(2, rel=0.02)
    assert times(committed(blocked_s=0.5, cpu_s=1.5)) == pytest.approx(2, rel=0.02)
    assert times(half, losses=(3, 0.0)) == pytest.approx(1 / 2, rel=0.02)
    assert times(half, losses=(0, 30_000.0)) == pytest.approx(2, rel=0.02)


def test_without_snapshots_any_nodes_loss_counts_with_them_that_of_all(tmp_path: Path) -> None:
    half, four = committed(blocked_s=0.5), World(size=4)
    base_s = checkpoint_interval_s(tmp_path, half)
    assert checkpoint_interval_s(tmp_path, half, world=four) == base_s
    alone_s = checkpoint_interval_s(tmp_path, half, world=four, snapshots=False)
    assert alone_s == pytest.approx(base_s / 2, rel=0.02)


def test_the_checkpoint_interval_has_floors(tmp_path: Path) -> None:
    assert checkpoint_interval_s(tmp_path, committed(blocked_s=1e-6)) == 30.0
    assert checkpoint_interval_s(tmp_path, committed(blocked_s=0.0)) == 30.0
    slow = committed(blocked_s=0.5, seconds=300.0)
    assert checkpoint_interval_s(tmp_path, slow) == 600.0, "one would be written all the time"


def test_a_users_own_checkpoint_interval_is_obeyed(tmp_path: Path) -> None:
    saver, _, _ = saver_in(tmp_path, checkpoint_interval_s=77.0)
    saver._checkpoint = committed(blocked_s=5.0)
    assert saver.checkpoint_interval_s() == 77.0


costs = st.floats(0, 100)


@given(
    blocked_s=costs,
    seal_s=costs,
    checkpoint_blocked_s=costs,
    cpu_s=costs,
    seconds=costs,
    frac=st.floats(1e-4, 0.5),
    lost=st.integers(0, 1000),
    size=st.integers(1, 64),
    snapshots=st.booleans(),
    storage=st.booleans(),
)
def test_saving_never_takes_more_than_its_part_of_the_time(
    tmp_path_factory: pytest.TempPathFactory,
    blocked_s: float,
    seal_s: float,
    checkpoint_blocked_s: float,
    cpu_s: float,
    seconds: float,
    frac: float,
    lost: int,
    size: int,
    snapshots: bool,
    storage: bool,
) -> None:
    folder = tmp_path_factory.getbasetemp() / "parts"
    saver, _, _ = saver_in(
        folder,
        world=World(size=size),
        losses=(lost, 0.0),
        save_cost_frac=frac,
        snapshots=snapshots,
        storage=storage,
    )
    part = 0.0
    if snapshots:
        saver.slots = Slots(folder, seal_s=seal_s)
        saver._snapshot_blocked_s = blocked_s
    if storage:
        saver._checkpoint = committed(blocked_s=checkpoint_blocked_s, cpu_s=cpu_s, seconds=seconds)
        part += (checkpoint_blocked_s + cpu_s) / saver.checkpoint_interval_s()
    part += (blocked_s + seal_s) / saver.snapshot_interval_s() if snapshots else 0.0
    assert part <= 0.65 * frac * (1 + 1e-9)  # the rest for what cannot be seen from inside


def test_beside_a_gpu_the_cpus_time_is_free_and_the_gpus_is_not(tmp_path: Path) -> None:
    saver, _, _ = saver_in(tmp_path, world=World(device=torch.device("cuda")))
    saver._checkpoint = committed(blocked_s=0.5, cpu_s=100.0)
    on_cpu, _, _ = saver_in(tmp_path)
    on_cpu._checkpoint = saver._checkpoint
    assert saver.checkpoint_interval_s() < on_cpu.checkpoint_interval_s()
    saver.slots = Slots(tmp_path, seal_s=100.0, stalled_s=0.25)
    saver._snapshot_blocked_s = 0.5
    assert saver.snapshot_cost_s == 0.75


def test_before_the_first_save_its_cost_is_guessed_from_the_size_of_the_state(
    tmp_path: Path,
) -> None:
    saver, _, box = saver_in(tmp_path)
    assert saver.snapshot_interval_s() == 3.0
    box.value = torch.zeros(100_000_000).expand(10, -1)  # takes no memory until it is saved
    saver.collect()
    assert saver.snapshot_interval_s() == pytest.approx(2.0 / 0.00325)
    assert saver.checkpoint_interval_s() == pytest.approx((2.0 + 20.0) / 0.00325)
    box.value = torch.zeros(10)
    saver.collect()
    assert saver.snapshot_interval_s() > 3.0, "the state is measured once, after the first step"


# -- no room --------------------------------------------------------------------------


def test_no_room_is_told_once_and_storage_alone_is_used_until_there_is_some(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saver, session, _ = saver_in(tmp_path)
    saver._checkpoint = committed(blocked_s=1.0)
    beside_s = saver.checkpoint_interval_s()
    slots = saver.slots
    assert isinstance(slots, Slots)
    slots.full = True
    with caplog.at_level(logging.WARNING):
        for step in (1, 2, 3):
            assert not saver.snapshot(step, why="interval", wait=True)
    (warned,) = events(session, Warned)
    assert warned.what == (
        "no snapshots on this node, the state goes to storage alone: 4032 bytes do not fit"
    )
    assert [r.message for r in caplog.records] == [warned.what]
    assert saver.checkpoint_interval_s() < beside_s, "a checkpoint is all there is now"
    assert saver.checkpoint_now(3, 0)
    assert [e.step for e in events(session, CheckpointCommitted)] == [3]
    slots.full = False
    assert saver.snapshot(4, why="interval", wait=True)
    slots.full = True
    assert not saver.snapshot(5, why="interval", wait=True)
    assert len(events(session, Warned)) == 2, "it is news again"


def test_without_room_and_storage_it_is_told_once_that_nothing_is_saved(tmp_path: Path) -> None:
    saver, session, _ = saver_in(tmp_path, snapshots=False, storage=False)
    for step in (1, 2):
        saver.collect()
        assert not saver.wants_snapshot()
        assert not saver.wants_checkpoint()
        assert not saver.snapshot(step, why="notice", wait=True)
        assert not saver.checkpoint_now(step, 0)
    assert saver.final_checkpoint(2, 1) is None
    (warned,) = events(session, Warned)
    assert "nothing is saved: a loss costs all steps" in warned.what


def test_where_the_room_of_a_node_ends_training_goes_on(tmp_path: Path) -> None:
    saver, session, box = saver_in(tmp_path)
    assert saver.snapshot(1, why="interval", wait=True)
    (tmp_path / "shm" / "r" / "slot-1.bin").mkdir()  # as if nothing could be put there
    box.value = torch.ones(2000)
    assert not saver.snapshot(2, why="interval", wait=True)
    (warned,) = events(session, Warned)
    assert "the snapshot of step 2 failed" in warned.what
    found = SnapshotSlots(tmp_path / "shm" / "r").newest()
    assert found is not None
    assert found.step == 1


# -- other workers --------------------------------------------------------------------


def test_among_other_workers_an_old_checkpoint_is_given_up_and_new_ones_are_written(
    tmp_path: Path,
) -> None:
    reached, let_through = threading.Event(), threading.Event()
    store = WaitingStore(str(tmp_path / "store"), reached, let_through)
    saver, session, _ = saver_in(tmp_path, world=World(generation=1), store=store)
    old = saver.checkpoints
    assert old is not None
    saver.start_checkpoint(1, 0)
    thread = old._writing
    assert reached.wait(30)
    assert not saver.wants_checkpoint()
    saver.enter(World(generation=2))
    assert saver.wants_checkpoint(), "it would wait for an interval more"
    let_through.set()
    assert thread is not None
    thread.join(30)
    assert not saver.collect()
    assert events(session, CheckpointCommitted) == []
    assert events(session, Warned) == []
    assert saver.checkpoint_now(2, 0)
    (told,) = events(session, CheckpointCommitted)
    assert told.path.endswith("step-00000002-g2")


def test_who_becomes_a_nodes_first_worker_spares_the_newest_snapshot(tmp_path: Path) -> None:
    first, _, _ = saver_in(tmp_path)
    second, _, _ = saver_in(tmp_path, world=World(local_rank=1, rank=1, size=2))
    assert second.snapshot(1, why="interval", wait=True), "the node's first worker speaks for it"
    assert not (tmp_path / "shm" / "r").exists()
    for step in (1, 2, 3):
        assert first.snapshot(step, why="interval", wait=True)
    second.enter(World(generation=2))
    assert second.snapshot(4, why="interval", wait=True)
    (tmp_path / "shm" / "r" / "slot-1.json").unlink()  # that of step 4
    found = SnapshotSlots(tmp_path / "shm" / "r").newest()
    assert found is not None
    assert found.step == 3


def test_a_member_that_was_thrown_out_hears_that_it_may_not_commit(tmp_path: Path) -> None:
    def refuse(folder: Store, manifest: Manifest) -> None:
        raise FencedOut("thrown out")

    saver, session, _ = saver_in(tmp_path, commit=refuse)
    assert not saver.checkpoint_now(3, 0)
    (warned,) = events(session, Warned)
    assert "thrown out" in warned.what
    with pytest.raises(FencedOut):
        saver.final_checkpoint(4, 0)


# -- what stays -----------------------------------------------------------------------


def test_a_checkpoint_counts_with_the_newest_report_before_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saver, _, _ = saver_in(tmp_path, keep_best=("val_loss", "min"), keep_checkpoints=1)
    reports = {1: {"val_loss": 0.5}, 2: {"val_loss": 0.2, "name": "x", "ok": True}, 4: {"loss": 1}}
    for step in range(1, 6):
        if step in reports:
            saver.reported(reports[step])
        assert saver.checkpoint_now(step, 0)
    kept = Store.at(tmp_path / "store" / "checkpoints")
    names = [name for _, name in manifests.list_checkpoints(kept)]
    assert names == ["step-00000005", "step-00000002"], "step 3 has the same report, but later"
    assert manifests.read(kept.child(names[1])).extra["metrics"] == {"val_loss": 0.2}
    assert [r.message for r in caplog.records if r.levelno >= logging.WARNING] == [
        "keep_best goes by 'val_loss', which was not reported; there are: loss"
    ]


def test_checkpoints_for_which_training_waits_know_no_limit(tmp_path: Path) -> None:
    saver, session, _ = saver_in(tmp_path, checkpoint_bytes_per_s=1e-6)
    assert saver.checkpoint_now(1, 0)
    assert saver.final_checkpoint(2, 1) is not None
    assert [e.step for e in events(session, CheckpointCommitted)] == [1, 2]
    saver.start_checkpoint(3, 1)
    busy = saver.checkpoints
    assert busy is not None
    thread = busy._writing
    saver.enter(World(generation=2))
    assert thread is not None
    thread.join(30)
    assert not thread.is_alive()
