"""Training loops of the tests of sweeps."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from spotray.clock import SystemClock, wait_until
from tests.train.jobs import MODELS, Images

STEPS_PER_EPOCH = 5


def sweep_loop(config: dict[str, Any], runs: list[Any] | None = None) -> None:
    """Trains for ``epochs`` of 5 steps with ``lr``, and reports ``val`` after each.

    ``step_s`` stands for the time of real work. ``together``, a folder and a number, begins
    when so many trials have come there. ``runs`` gets the run, for who calls it in
    the same process.
    """
    import spotray

    if (meet := config.get("together")) is not None:
        folder, count = Path(meet[0]), meet[1]
        (folder / f"{config['lr']}-{config['epochs']}").touch()
        assert wait_until(
            lambda: len(list(folder.iterdir())) >= count, timeout_s=120, clock=SystemClock()
        )
    run = spotray.Run(global_batch_size=16, micro_batch_size=4, seed=3)
    if runs is not None:
        runs.append(run)
    model = MODELS["vit"]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    model, optimizer, loader = run.prepare(model, optimizer, Images(70))
    model.train()
    for _ in run.epochs(config["epochs"]):
        for x, y in loader:
            if run.step == config.get("bug_at"):
                raise ZeroDivisionError("a bug of the user's")
            loss = F.cross_entropy(model(x), y)
            run.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(config.get("step_s", 0.0) / (4 / run.world_size))
        run.report({"val": run.loss, "lr_now": optimizer.param_groups[0]["lr"]})


def undisturbed(world: Any, lr: float, epochs: int) -> str:
    """The weights after the same loop in one process, without Ray."""
    from spotray.train.state import weights_sha256

    runs: list[Any] = []
    sweep_loop({"lr": lr, "epochs": epochs}, runs)
    return weights_sha256(runs[0]._models)
