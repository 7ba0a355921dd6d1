"""Training loops of the tests of live recovery."""

from __future__ import annotations

import time
from typing import Any

import spotray
from spotray.train.run import Run
from spotray.train.state import weights_sha256
from tests.train.jobs import Parts


def train_loop(config: dict[str, Any]) -> None:
    """A loop with everything in it; ``step_s`` stands for the time of real work."""
    run = Run(
        global_batch_size=16,
        micro_batch_size=2,
        seed=3,
        reduction=config.get("reduction", "ordered"),
        find_unused_parameters=config.get("model") == "conv",
    )
    parts = Parts(
        run,
        model=config.get("model", "vit"),
        amp=config.get("amp", ""),
        samples=config.get("samples", 70),
    )
    for epoch in run.epochs(config["epochs"]):
        for x, y in parts.loader:
            if run.step == config.get("bug_at"):
                raise ValueError("a bug of the user's")
            parts.learn(x, y)
            time.sleep(config.get("step_s", 0.0) / (8 / run.world_size))
        if epoch == config.get("slow_epoch"):
            time.sleep(config["slow_s"])
        run.report({"seen": epoch})
    if "result" in config:
        config["result"].update(
            sha256=weights_sha256({"model": parts.raw}),
            step=run.step,
            counter=parts.counter.batches,
            lr=parts.scheduler.get_last_lr(),
        )


def plain_loop(config: dict[str, Any]) -> None:
    """Makes no Run."""
    assert spotray.__version__
    config["result"]["ran"] = True
