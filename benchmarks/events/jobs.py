"""The job that goes through the events, and its driver.

``python -m benchmarks.events.jobs FOLDER STEPS`` trains on the Ray cluster that the
environment names, with live recovery; ``--alone`` does the same steps in this process,
without Ray. Both write the digest of the final weights to ``FOLDER/weights``.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

JOB = "job"
WORKERS = 4
STEP_S = 0.3
STEPS_PER_EPOCH = 10
_BATCH, _MICRO_BATCH = 16, 2


class Images(torch.utils.data.Dataset[Any]):
    """Random images with labels and noise, as augmentation draws it: from the random streams."""

    def __init__(self) -> None:
        rng = np.random.default_rng(7)
        self._images = rng.normal(size=(STEPS_PER_EPOCH * _BATCH, 1, 8, 8)).astype(np.float32)
        self._labels = rng.integers(0, 10, size=len(self._images))

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = torch.from_numpy(self._images[index])
        return image + 0.1 * torch.randn(image.shape), int(self._labels[index])


def make_model() -> nn.Module:
    """With statistics of the batch, which depend on its order, and with dropout."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(288, 10),
    )


def train_loop(config: dict[str, Any]) -> None:
    """An ordinary loop; a sleep stands for an accelerator's work."""
    import spotray
    from spotray.train.state import weights_sha256

    if "folder" in config:
        _tell_process(Path(config["folder"]))
    run = spotray.Run(global_batch_size=_BATCH, micro_batch_size=_MICRO_BATCH, seed=3)
    raw = model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=config["steps"])
    model, optimizer, scheduler, loader = run.prepare(model, optimizer, scheduler, Images())
    model.train()
    for _ in run.epochs(config["steps"] // STEPS_PER_EPOCH):
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            run.backward(loss)
            time.sleep(config["step_s"] * run.world_size * _MICRO_BATCH / _BATCH)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
    if "alone" in config:
        config["alone"].append(weights_sha256({"model": raw}))


def _tell_process(folder: Path) -> None:
    """Leave a file that says which node this process is on: whoever kills it must know."""
    node = Path(os.environ["SPOTRAY_NODE_DIR"]).name
    place = folder / "processes" / node
    place.mkdir(parents=True, exist_ok=True)
    (place / str(os.getpid())).touch()


def drive(folder: Path, steps: int) -> str:
    """Train on Ray; the digest of the final weights."""
    import ray
    from ray.train import RunConfig, ScalingConfig

    from spotray import ElasticTrainer, SpotConfig

    ray.init(runtime_env={"env_vars": {"PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}})
    result = ElasticTrainer(
        train_loop,
        train_loop_config={"folder": str(folder), "steps": steps, "step_s": STEP_S},
        scaling_config=ScalingConfig(num_workers=(1, WORKERS)),
        run_config=RunConfig(name=JOB, storage_path=str(folder / "storage")),
        recovery="live",
        spot=SpotConfig(snapshot_interval_s=1.0, checkpoint_interval_s=4.0, audit_samples=True),
    ).fit()
    return str((result.metrics or {})["weights_sha256"])


def alone(steps: int) -> str:
    """The same steps in this process."""
    digests: list[str] = []
    train_loop({"steps": steps, "step_s": 0.0, "alone": digests})
    return digests[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("steps", type=int)
    parser.add_argument("--alone", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    steps, folder = arguments.steps, arguments.folder
    digest = alone(steps) if arguments.alone else drive(folder, steps)
    (folder / "weights").write_text(digest)


if __name__ == "__main__":
    main()
