"""The same small training job for each system, written as its users would write it.

One step takes 0.1 s at any number of workers: a perceptron's real arithmetic and
gradient exchange, and a sleep in place of the rest of an accelerator's work, so that
four workers find room on a laptop. Each system saves as often as the others.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import nn

WORKERS = 4
STEP_S = 0.1
SAVE_EVERY = 20  # steps between two checkpoints in storage: 2 s
_BATCH = 64  # samples of a step, over all workers
_MICRO_BATCH = 8

FAST_RAY_TRAIN = {  # Ray's own knobs, for a side that somebody has tuned
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "0.5",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "8",
}
_FAST_RESIZE_S = 5.0


class StepLines:
    """Writes a line whenever an optimizer really steps, whoever calls it."""

    def __init__(
        self,
        folder: str,
        optimizer: torch.optim.Optimizer,
        *,
        step: Callable[[], int],
        world_size: Callable[[], int],
        rank: Callable[[], int],
    ) -> None:
        """Args are asked at each step: ``step`` how many are done, with this one."""
        lines = Path(folder) / "lines"
        lines.mkdir(parents=True, exist_ok=True)
        name = lines / f"{os.getpid()}-{time.time_ns()}.jsonl"
        self._fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._facts = step, world_size, rank
        self._node = os.environ.get("BENCH_NODE") or Path(os.environ["SPOTRAY_NODE_DIR"]).name
        optimizer.register_step_post_hook(self._write)

    def _write(self, *_: Any) -> None:
        at_s = time.time()
        step, world_size, rank = (ask() for ask in self._facts)
        line = {
            "at_s": at_s,
            "step": step,
            "world_size": world_size,
            "rank": rank,
            "pid": os.getpid(),
            "node": self._node,
        }
        # Whole and at once: the process may be killed at any moment.
        os.write(self._fd, (json.dumps(line) + "\n").encode())


class Rows(torch.utils.data.Dataset[Any]):
    """Random rows with labels, as many as no benchmark gets through."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(7)
        self._x = torch.randn(1024, 100, generator=draw)
        self._y = torch.randint(10, (1024,), generator=draw)

    def __len__(self) -> int:
        return 5000 * _BATCH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._x[index % 1024], self._y[index % 1024]

    def batch(self, step: int, *, rank: int, world_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A rank's part of a step's batch, for loops without a loader of their own."""
        ids = (torch.arange(_BATCH) + step * _BATCH)[rank::world_size] % 1024
        return self._x[ids], self._y[ids]


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(100, 256), nn.ReLU(), nn.Linear(256, 10))


def save(path: Path, **state: Any) -> None:
    """Write a file of tensors, whole or not at all."""
    part = path.with_suffix(f".{os.getpid()}")
    torch.save(state, part)
    part.replace(path)


# -- Ray Train -----------------------------------------------------------------------


def ray_loop(config: dict[str, Any]) -> None:
    """Plain Ray Train, as its guide has it: resume from the last reported checkpoint."""
    import tempfile

    import ray.train
    import ray.train.torch

    context = ray.train.get_context()
    rank, world_size = context.get_world_rank(), context.get_world_size()
    model = ray.train.torch.prepare_model(make_model())
    raw = getattr(model, "module", model)  # there is no DDP around it in a world of one
    optimizer = torch.optim.AdamW(model.parameters())
    data, step = Rows(), 0
    if (checkpoint := ray.train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder) / "state.pt")
        raw.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    StepLines(
        config["folder"],
        optimizer,
        step=lambda: step + 1,
        world_size=lambda: world_size,
        rank=lambda: rank,
    )
    while True:
        x, y = data.batch(step, rank=rank, world_size=world_size)
        F.cross_entropy(model(x), y).backward()
        time.sleep(STEP_S)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % SAVE_EVERY == 0:
            with tempfile.TemporaryDirectory() as folder:
                mine = None
                if rank == 0:
                    states = {"model": raw.state_dict(), "optimizer": optimizer.state_dict()}
                    save(Path(folder) / "state.pt", step=step, **states)
                    mine = ray.train.Checkpoint.from_directory(folder)
                ray.train.report({"step": step}, checkpoint=mine)


def drive_ray_train(folder: Path, *, tuned: bool) -> None:
    import ray
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    if tuned:
        os.environ.update(FAST_RAY_TRAIN)
    resize = {"elastic_resize_monitor_interval_s": _FAST_RESIZE_S} if tuned else {}
    ray.init()
    TorchTrainer(
        ray_loop,
        train_loop_config={"folder": str(folder)},
        scaling_config=ScalingConfig(num_workers=(1, WORKERS), **resize),
        run_config=RunConfig(
            name="job",
            storage_path=str(folder / "storage"),
            failure_config=FailureConfig(max_failures=-1),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    ).fit()


# -- spotray -------------------------------------------------------------------------


def spotray_loop(config: dict[str, Any]) -> None:
    import spotray

    run = spotray.Run(global_batch_size=_BATCH, micro_batch_size=_MICRO_BATCH, seed=0)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters())
    StepLines(
        config["folder"],
        optimizer,
        step=lambda: run.step + 1,
        world_size=lambda: run.world_size,
        rank=lambda: run.rank,
    )
    model, optimizer, loader = run.prepare(model, optimizer, Rows())
    for _ in run.epochs(1):
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            run.backward(loss)
            time.sleep(STEP_S * run.world_size * _MICRO_BATCH / _BATCH)
            optimizer.step()
            optimizer.zero_grad()


def drive_spotray(folder: Path, *, recovery: Literal["live", "restart"]) -> None:
    import ray
    from ray.train import RunConfig, ScalingConfig

    from spotray import ElasticTrainer, SpotConfig

    ray.init()
    ElasticTrainer(
        spotray_loop,
        train_loop_config={"folder": str(folder)},
        scaling_config=ScalingConfig(num_workers=(1, WORKERS)),
        run_config=RunConfig(name="job", storage_path=str(folder / "storage")),
        spot=SpotConfig(checkpoint_interval_s=SAVE_EVERY * STEP_S),
        recovery=recovery,
    ).fit()


# -- torchrun and torchft, without Ray -------------------------------------------------


def torchrun_worker(folder: Path) -> None:
    """A script for ``torchrun``, as torch's guide to elastic training has it."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    raw = make_model()
    model = nn.parallel.DistributedDataParallel(raw)
    optimizer = torch.optim.AdamW(model.parameters())
    data, step, last = Rows(), 0, folder / "state.pt"
    if last.exists():
        state = torch.load(last)
        raw.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    StepLines(
        str(folder),
        optimizer,
        step=lambda: step + 1,
        world_size=lambda: world_size,
        rank=lambda: rank,
    )
    while True:
        x, y = data.batch(step, rank=rank, world_size=world_size)
        F.cross_entropy(model(x), y).backward()
        time.sleep(STEP_S)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % SAVE_EVERY == 0 and rank == 0:
            save(last, step=step, model=raw.state_dict(), optimizer=optimizer.state_dict())


def torchft_worker(folder: Path) -> None:
    """One replica group of one worker; ``TORCHFT_LIGHTHOUSE`` tells where the others meet."""
    from datetime import timedelta

    import torch.distributed as dist
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    raw = make_model()
    inner = torch.optim.AdamW(raw.parameters())
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    timeout = timedelta(seconds=5)

    def load(state: dict[str, Any]) -> None:
        raw.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    def state() -> dict[str, Any]:
        return {"model": raw.state_dict(), "optimizer": inner.state_dict()}

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timeout),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=state,
        replica_id=os.environ["BENCH_NODE"],
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        hostname="127.0.0.1",
        timeout=timeout,
        connect_timeout=timeout,
        quorum_timeout=timedelta(seconds=20),
    )
    last = folder / "state.pt"
    if last.exists():
        saved = torch.load(last)
        load(saved)
        manager.load_state_dict(saved["manager"])
    model, optimizer = DistributedDataParallel(manager, raw), Optimizer(manager, inner)
    StepLines(
        str(folder),
        inner,
        step=manager.current_step,
        world_size=manager.num_participants,
        rank=lambda: manager.participating_rank() or 0,
    )
    data = Rows()
    while True:
        step = manager.current_step()
        optimizer.zero_grad()
        rank, world_size = manager.participating_rank() or 0, max(1, manager.num_participants())
        x, y = data.batch(step, rank=rank, world_size=world_size)
        F.cross_entropy(model(x), y).backward()
        time.sleep(STEP_S)
        optimizer.step()
        done = manager.current_step()
        if done > step and done % SAVE_EVERY == 0 and manager.participating_rank() == 0:
            save(last, manager=manager.state_dict(), **state())


DRIVERS: dict[str, Callable[[Path], None]] = {
    "ray-train": lambda folder: drive_ray_train(folder, tuned=False),
    "ray-train-tuned": lambda folder: drive_ray_train(folder, tuned=True),
    "spotray-restart": lambda folder: drive_spotray(folder, recovery="restart"),
    "spotray-live": lambda folder: drive_spotray(folder, recovery="live"),
    "torchrun": torchrun_worker,
    "torchft": torchft_worker,
}
