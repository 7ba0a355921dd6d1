"""The training loop that is measured, in one Ray Train worker, and the ways to save its state."""

from __future__ import annotations

import json
import logging
import random
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import ray.train
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

from spotray.storage import Store
from spotray.train.config import SpotConfig
from spotray.train.saving import Saver
from spotray.train.session import NoJournal, Session
from spotray.train.state import TrainState
from spotray.train.world import World

NONE, OURS = "none", "spotray"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A model by the size of its state with AdamW, and how long it is measured at a time."""

    width: int
    layers: int
    batch: int
    block_s: float  # of training with some saves
    saves: int  # in a block


SHAPES = {  # by MB
    20: Shape(width=512, layers=6, batch=256, block_s=6.0, saves=4),
    200: Shape(width=1024, layers=16, batch=128, block_s=12.0, saves=2),
    1000: Shape(width=2048, layers=20, batch=64, block_s=30.0, saves=1),
}
OURS_BLOCKS = 4  # a block of ours, at its own intervals, is so many times as long


class Training:
    """A stack of layers and its optimizer on random data."""

    def __init__(self, shape: Shape) -> None:
        torch.manual_seed(0)
        layers = [nn.Linear(shape.width, shape.width) for _ in range(shape.layers)]
        self.net = nn.Sequential(*[part for one in layers for part in (one, nn.ReLU())])
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-4, fused=True)
        self._x = torch.randn(shape.batch, shape.width)
        self.steps = 0

    def step(self) -> None:
        self.net(self._x).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1

    def state(self) -> dict[str, Any]:
        return {"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}

    @property
    def size_bytes(self) -> int:
        slots = self.optimizer.state_dict()["state"].values()
        tensors = [*self.net.state_dict().values(), *(t for slot in slots for t in slot.values())]
        return sum(t.nbytes for t in tensors)


class System(Protocol):
    """One way to save. What `step_done` does is measured, and so is what goes on after it."""

    def step_done(self, due: bool) -> int:
        """After each step; ``due``: save now. Returns how many saves were begun."""
        ...

    def is_busy(self) -> bool:
        """Whether a save is still going on beside training."""
        ...


class Nothing:
    def step_done(self, due: bool) -> int:
        del due
        return 0

    def is_busy(self) -> bool:
        return False


class TorchSave(Nothing):
    """torch.save in the loop, to one of two files in turn."""

    def __init__(self, training: Training, folder: Path) -> None:
        self._training = training
        self._files = [folder / "a.pt", folder / "b.pt"]

    def step_done(self, due: bool) -> int:
        if due:
            self._files.reverse()
            torch.save(self._training.state(), self._files[0])
        return int(due)


class RayReport:
    """torch.save into a folder of its own, handed over with ray.train.report."""

    def __init__(self, training: Training, folder: Path, *, in_background: bool) -> None:
        self._training = training
        self._folder = folder
        mode = ray.train.CheckpointUploadMode
        self._mode = mode.ASYNC if in_background else mode.SYNC

    def step_done(self, due: bool) -> int:
        if due:
            local = tempfile.mkdtemp(dir=self._folder)
            torch.save(self._training.state(), f"{local}/state.pt")
            ray.train.report(
                {"step": self._training.steps},
                checkpoint=ray.train.Checkpoint.from_directory(local),
                checkpoint_upload_mode=self._mode,
                delete_local_checkpoint_after_upload=True,
            )
        return int(due)

    def is_busy(self) -> bool:
        return any(self._folder.iterdir())  # removed when it is uploaded


class DcpAsync:
    """torch.distributed.checkpoint.async_save, to one of two folders in turn."""

    def __init__(self, training: Training, folder: Path) -> None:
        self._training = training
        self._folders = [folder / "a", folder / "b"]
        self._future: Future[Any] | None = None
        # Its collectives run in a thread: they must not share the training's group.
        self._group = dist.new_group(backend="gloo") if dist.is_initialized() else None

    def step_done(self, due: bool) -> int:
        if due:
            if self._future is not None:
                self._future.result()
            self._folders.reverse()
            future = dcp.async_save(
                self._training.state(),
                checkpoint_id=str(self._folders[0]),
                process_group=self._group,
            )
            assert isinstance(future, Future), "that is the default kind of answer"
            self._future = future
        return int(due)

    def is_busy(self) -> bool:
        return self._future is not None and not self._future.done()


class Stopwatch:
    """Seconds, of which only those while it runs count."""

    def __init__(self) -> None:
        self._counted_s = 0.0
        self._since_s: float | None = None

    def now_s(self) -> float:
        running_s = 0.0 if self._since_s is None else time.monotonic() - self._since_s
        return self._counted_s + running_s

    @contextmanager
    def running(self) -> Iterator[None]:
        self._since_s = time.monotonic()
        try:
            yield
        finally:
            self._counted_s, self._since_s = self.now_s(), None


class Spotray:
    """A `Saver` as a run has it, outside of a job: when told, or at its own intervals."""

    def __init__(
        self, training: Training, folder: Path, shm: Path, *, save: str, clock: Stopwatch
    ) -> None:
        self._training = training
        self._save = save
        session = Session(
            run_id=f"bench-{save}",
            world=World(),
            spot=SpotConfig(),
            store=Store.at(folder),
            shm_dir=shm,
            node_id="",
            link=None,
            journal=NoJournal(),
        )
        parts = {"net": training.net, "optimizer": training.optimizer}
        self.saver = Saver(session, session.world, TrainState(parts), now_s=clock.now_s)
        self.snapshots = self.checkpoints = 0

    def step_done(self, due: bool) -> int:
        own = self._save == OURS
        self.saver.collect()
        snapshot = self.saver.wants_snapshot() if own else due and self._save == "snapshot"
        checkpoint = self.saver.wants_checkpoint() if own else due and self._save == "checkpoint"
        if snapshot:
            self.saver.snapshot(self._training.steps, why="interval", wait=False)
        if checkpoint:
            self.saver.start_checkpoint(self._training.steps, 0)
        self.snapshots += snapshot
        self.checkpoints += checkpoint
        return int(snapshot) + int(checkpoint)

    def is_busy(self) -> bool:
        slots, checkpoints = self.saver.slots, self.saver.checkpoints
        return bool((slots and slots.is_sealing) or (checkpoints and checkpoints.is_busy))

    def intervals(self) -> dict[str, float]:
        return {
            "snapshots": self.snapshots,
            "checkpoints": self.checkpoints,
            "snapshot_interval_s": self.saver.snapshot_interval_s(),
            "checkpoint_interval_s": self.saver.checkpoint_interval_s(),
        }

    def close(self) -> None:
        if self.saver.checkpoints is not None:
            self.saver.checkpoints.wait()
        self.saver.remove_snapshots()


SYSTEMS = (
    NONE,
    "torch.save",
    "ray-sync",
    "ray-async",
    "dcp-async",
    "spotray-snapshot",
    "spotray-checkpoint",
    OURS,
)


@dataclass(frozen=True, kw_only=True)
class Block:
    """Some steps under one system."""

    size_mb: float
    system: str
    round: int
    steps: int
    seconds: float
    saves: int
    blocked_s: float  # in calls that began a save, of all of them
    costs_s: Sequence[float]  # of each save, beyond the pace of the steps around it


NEAR = 15  # steps to either side of a save that tell the pace there
_LEAST = 5  # of them; with fewer nothing is said


def costs(step_s: Sequence[float], saving: Sequence[bool], begins: Sequence[int]) -> list[float]:
    """What each save of a block took beyond the pace of the steps just before and after it.

    A machine's pace drifts by more, in the time of a block, than a save costs; next to the save it
    is the same.

    Args:
        step_s: Seconds of each step, with what was begun after it.
        saving: Whether a save began or was going on in it.
        begins: Steps after which a save began.
    """
    found = []
    for number, first in enumerate(begins):
        until = begins[number + 1] if number + 1 < len(begins) else len(step_s)
        window = [i for i in range(first, until) if saving[i]]
        around = range(max(1, first - NEAR), min(len(step_s), window[-1] + 1 + NEAR))
        quiet = [step_s[i] for i in around if not saving[i]]
        if len(quiet) >= _LEAST:
            pace_s = statistics.median(quiet)
            found.append(sum(step_s[i] - pace_s for i in window))
    return found


def run_block(training: Training, system: System, *, steps: int, saves: int) -> dict[str, Any]:
    """So many steps with saves spread over them, and more until all saves are through."""
    due = {steps * i // saves for i in range(saves)} if saves else set()
    begun, blocked_s, done = 0, 0.0, 0
    step_s: list[float] = []
    saving: list[bool] = []
    begins: list[int] = []
    started = last = time.perf_counter()
    while done < steps or system.is_busy():
        was_busy = system.is_busy()
        training.step()
        before = time.perf_counter()
        new = system.step_done(done in due)
        now = time.perf_counter()
        if new:
            blocked_s += now - before
            begins.append(done)
        step_s.append(now - last)
        saving.append(bool(new) or was_busy)
        last = now
        begun += new
        done += 1
    return {
        "steps": done,
        "seconds": last - started,
        "saves": begun,
        "blocked_s": blocked_s,
        "costs_s": costs(step_s, saving, begins),
    }


def measure(config: dict[str, Any]) -> None:
    """What the Ray Train worker does: all sizes, all systems, in rounds; a line for each block."""
    for chatty in ("ray.train", "torch.distributed.checkpoint"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="torch.distributed.checkpoint")
    torch.set_num_threads(config["threads"])
    with open(config["lines"], "a", buffering=1) as lines:

        def tell(line: dict[str, Any]) -> None:
            lines.write(json.dumps(line) + "\n")

        for size_mb in config["sizes"]:
            _measure_size(SHAPES[size_mb], size_mb, config, tell)


def _measure_size(
    shape: Shape, size_mb: int, config: dict[str, Any], tell: Callable[[dict[str, Any]], None]
) -> None:
    training = Training(shape)
    folder = Path(config["folder"]) / str(size_mb)
    clock = Stopwatch()
    systems: dict[str, System] = {}
    ours: list[Spotray] = []
    training.step()
    try:
        for name in config["systems"]:
            place = folder / name
            place.mkdir(parents=True)
            systems[name] = _make(name, training, place, Path(config["shm"]) / str(size_mb), clock)
            if isinstance(one := systems[name], Spotray):
                ours.append(one)
        started = time.perf_counter()
        for _ in range(5):
            training.step()
        step_s = (time.perf_counter() - started) / 5
        steps = max(shape.saves, round(shape.block_s * config["block_frac"] / step_s))
        tell({"say": f"{size_mb} MB: {step_s * 1000:.0f} ms a step, blocks of {steps} steps"})
        for name, system in systems.items():  # what only the first save costs is not measured
            if name != OURS:
                run_block(training, system, steps=2, saves=int(name != NONE))
        rng = random.Random(0)
        for number in range(config["rounds"]):
            others = [name for name in systems if name != NONE]
            rng.shuffle(others)
            # Without a save at both ends and in the middle: the machine's pace drifts.
            middle = (len(others) + 1) // 2
            order = [NONE, *others[:middle], NONE, *others[middle:], NONE]
            for name in order:
                own = name == OURS
                with clock.running() if own else _nothing():
                    saves = 0 if own or name == NONE else shape.saves
                    block = run_block(
                        training,
                        systems[name],
                        steps=steps * (OURS_BLOCKS if own else 1),
                        saves=saves,
                    )
                told = Block(size_mb=training.size_bytes / 1e6, system=name, round=number, **block)
                own_system = systems[name]
                more = own_system.intervals() if isinstance(own_system, Spotray) else {}
                tell({**asdict(told), **(more if own else {})})
            tell({"say": f"{size_mb} MB: round {number + 1} of {config['rounds']} done"})
    finally:
        for one in ours:
            one.close()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def _make(name: str, training: Training, folder: Path, shm: Path, clock: Stopwatch) -> System:
    if name == "torch.save":
        return TorchSave(training, folder)
    if name in ("ray-sync", "ray-async"):
        return RayReport(training, folder, in_background=name == "ray-async")
    if name == "dcp-async":
        return DcpAsync(training, folder)
    if name == OURS or name.startswith("spotray-"):
        save = name.removeprefix("spotray-")
        return Spotray(training, folder, shm, save=save, clock=clock)
    return Nothing()
