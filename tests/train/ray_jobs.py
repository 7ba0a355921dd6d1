"""Training loops for the tests on a real Ray cluster."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard

from tests.train.jobs import MODELS, Images


def elastic_loop(config: dict[str, Any], runs: list[Any] | None = None) -> None:
    """Trains for ``epochs`` of 5 steps; ``step_s`` stands for the time of real work.

    From step ``slow_from`` on it goes slowly until there are ``slow_below`` workers, so that
    replacements come before the end.

    ``runs`` gets the run, for who calls it in the same process.
    """
    import spotray

    run = spotray.Run(global_batch_size=16, micro_batch_size=2, seed=3)
    if runs is not None:
        runs.append(run)
    model = MODELS[config.get("model", "vit")]()
    if config.get("sharded"):
        for layer in model.encoder.layers:
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    samples = config.get("samples", 70)
    model, optimizer, loader = run.prepare(model, optimizer, Images(samples))
    model.train()
    for epoch in run.epochs(config["epochs"]):
        for x, y in loader:
            if run.step == config.get("bug_at"):
                raise ValueError("a bug of the user's")
            loss = F.cross_entropy(model(x), y)
            run.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(config.get("step_s", 0.0) / (8 / run.world_size))
            if run.step >= config.get("slow_from", run.step + 1):
                time.sleep(0.5 if run.world_size < config["slow_below"] else 0.0)
        run.report({"seen": epoch})


def plain_loop(config: dict[str, Any]) -> None:
    """A Ray Train loop that knows nothing of spotray and keeps its own checkpoints."""
    import ray.train
    import torch.distributed as dist
    from ray.train import Checkpoint

    step = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            step = torch.load(os.path.join(folder, "step.pt")) + 1
    flag = torch.ones(1)
    while step < config["steps"]:
        dist.all_reduce(flag) if dist.get_world_size() > 1 else None
        time.sleep(0.05)
        if step == 20:
            Path(config["marker"]).touch()
        if step % 10 == 0:
            with tempfile.TemporaryDirectory() as folder:
                mine = None
                if ray.train.get_context().get_world_rank() == 0:
                    torch.save(step, os.path.join(folder, "step.pt"))
                    mine = Checkpoint.from_directory(folder)
                ray.train.report({"step": step}, checkpoint=mine)
        step += 1
    ray.train.report({"step": step})
