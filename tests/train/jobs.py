"""Models, data and training loops of the tests in this folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from spotray.events import Event
from spotray.storage import Store
from spotray.train import session as session_module
from spotray.train.config import SpotConfig
from spotray.train.run import Run
from spotray.train.session import Session
from spotray.train.world import World


class Images(torch.utils.data.Dataset[Any]):
    """Random images with labels; a little augmentation from all three random streams."""

    def __init__(self, count: int, *, augment: bool = True) -> None:
        rng = np.random.default_rng(7)
        self.images = rng.normal(size=(count, 1, 8, 8)).astype(np.float32)
        self.labels = rng.integers(0, 10, size=count)
        self.augment = augment

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = torch.from_numpy(self.images[index])
        if self.augment:
            image = image + 0.1 * torch.randn(1) + float(np.random.normal(scale=0.1))
        return image, int(self.labels[index])


class ConvNet(nn.Module):
    """BatchNorm after each convolution, and a buffer that is infinite and never changes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Flatten(),
            nn.LazyLinear(10),
        )
        self.body(torch.zeros(2, 1, 8, 8))
        self.register_buffer("mask", torch.tensor([0.0, float("-inf")]))
        self.unused = nn.Linear(3, 3)  # gets no gradient: the optimizer must leave it alone

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


class TinyViT(nn.Module):
    """A transformer over 2x2 patches, with dropout."""

    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, dim, 2, stride=2)
        self.position = nn.Parameter(torch.randn(1, 16, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(
            dim, 4, 2 * dim, dropout=0.1, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(dim, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.embed(x).flatten(2).transpose(1, 2) + self.position
        return self.head(self.encoder(tokens).mean(1))


MODELS = {"conv": ConvNet, "vit": TinyViT}


class Counter:
    """A stateful object of the user's own."""

    def __init__(self) -> None:
        self.batches = 0
        self.history = np.zeros(3)

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self.batches, "history": self.history}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.batches = state_dict["batches"]
        self.history = state_dict["history"]


class Memory:
    """A journal in a list."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def append(self, event: Event) -> None:
        self.events.append(event)

    def flush(self) -> None:
        return


class Parts:
    """A model with everything that a run can keep beside it, prepared; ``raw`` is unwrapped."""

    def __init__(self, run: Run, *, model: str, amp: str, samples: int) -> None:
        self._run, self._autocast = run, bool(amp)
        self.raw = net = MODELS[model]()
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=amp == "scaler")
        parts = run.prepare(net, optimizer, scheduler, scaler, Counter(), Images(samples))
        self.net, self.optimizer, self.scheduler, self.scaler, self.counter, self.loader = parts
        self.net.train()

    def learn(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """One micro-batch, as a loop with all of them has it."""
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self._autocast):
            loss = F.cross_entropy(self.net(x), y)
        self._run.backward(self.scaler.scale(loss))
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.scheduler.step()
        if self._run._stepping.is_complete:
            self.counter.batches += 1
            self.counter.history[self._run.step % 3] = self._run.step


def train(
    world: World,
    folder: str | None,
    *,
    model: str = "vit",
    stop_at: int | None = None,
    epochs: int = 2,
    samples: int = 70,
    amp: str = "",
    reduction: str = "ordered",
    spot: Mapping[str, Any] | None = None,
    snapshots: bool = True,
    run_args: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """One worker's training; ends without a word after ``stop_at`` steps, as a lost one does."""
    journal = Memory()
    session = None
    if folder is not None:
        settings = {"snapshot_interval_s": 1e-9, "save_cost_frac": 0.999, **(spot or {})}
        session = Session(
            run_id="r1",
            world=world,
            spot=SpotConfig(**settings),
            store=Store.at(f"{folder}/store"),
            shm_dir=Path(folder) / f"shm-{world.rank}" if snapshots else None,
            node_id=f"n{world.rank}",
            link=None,
            journal=journal,
        )
    session_module.enter(session)
    losses = []
    try:
        arguments = {"global_batch_size": 16, "micro_batch_size": 2, "seed": 3, **(run_args or {})}
        run = Run(reduction=reduction, **arguments)  # type: ignore[arg-type]
        if session is None:
            run._stepping.world = world
        parts = Parts(run, model=model, amp=amp, samples=samples)
        for _ in run.epochs(epochs):
            for x, y in parts.loader:
                parts.learn(x, y)
                if run._stepping.is_complete:
                    losses.append((run.step + 1, run.loss))
                if (
                    stop_at is not None
                    and run.step + run._stepping.is_complete >= stop_at
                    and run._stepping.is_complete
                ):
                    run._stepping.end_step()
                    _settle(run)
                    return {
                        "events": journal.events,
                        "losses": losses,
                        "state": _plain(parts),
                        "step": run.step,
                    }
        run.finish()
        return {
            "events": journal.events,
            "losses": losses,
            "step": run.step,
            "counter": parts.counter.batches,
            "state": _plain(parts),
            "sha256": run._weights,
        }
    finally:
        session_module.enter(None)


def _settle(run: Run) -> None:
    """End the threads beside training, so that they do not outlive the process group."""
    saver = run._stepping.ready.keeper.saver
    if saver.slots is not None:
        saver.slots.wait()
    if saver.checkpoints is not None:
        saver.checkpoints.wait()
        saver.collect()


def _plain(parts: Parts) -> dict[str, Any]:
    state = {f"net/{k}": v.numpy().copy() for k, v in parts.raw.state_dict().items()}
    for i, slot in parts.optimizer.state_dict()["state"].items():
        for key, value in slot.items():
            state[f"optimizer/{i}/{key}"] = np.asarray(value)
    state["lr"] = np.asarray(parts.scheduler.get_last_lr())
    return state
