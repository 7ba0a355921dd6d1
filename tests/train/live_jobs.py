"""Training loops of the tests of live recovery."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.nn.functional as F

import spotray
from spotray.train.run import Run
from spotray.train.state import weights_sha256
from tests.train.jobs import MODELS, Counter, Images


def train_loop(config: dict[str, Any]) -> None:
    """An ordinary loop with everything in it; ``step_s`` stands for the time of real work."""
    run = Run(
        global_batch_size=16,
        micro_batch_size=2,
        seed=3,
        reduction=config.get("reduction", "ordered"),
        find_unused_parameters=config.get("model") == "conv",
    )
    net = MODELS[config.get("model", "vit")]()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
    amp = config.get("amp", "")
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=amp == "scaler")
    counter = Counter()
    raw = net
    net, optimizer, scheduler, scaler, counter, loader = run.prepare(
        net, optimizer, scheduler, scaler, counter, Images(config.get("samples", 70))
    )
    net.train()
    for epoch in run.epochs(config["epochs"]):
        for x, y in loader:
            if run.step == config.get("bug_at"):
                raise ValueError("a bug of the user's")
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bool(amp)):
                loss = F.cross_entropy(net(x), y)
            run.backward(scaler.scale(loss))
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scheduler.step()
            if run._complete:
                counter.batches += 1
            time.sleep(config.get("step_s", 0.0) / (8 / run.world_size))
        if epoch == config.get("slow_epoch"):
            time.sleep(config["slow_s"])
        run.report({"seen": epoch})
    if "result" in config:
        config["result"].update(
            sha256=weights_sha256({"model": raw}),
            step=run.step,
            counter=counter.batches,
            lr=scheduler.get_last_lr(),
        )


def plain_loop(config: dict[str, Any]) -> None:
    """Makes no Run."""
    assert spotray.__version__
    config["result"]["ran"] = True
