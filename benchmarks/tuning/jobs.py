"""The same sweep for `SpotTuner` and for plain Ray Tune, written as its users would write it.

A trial is a small perceptron on made-up points. A micro-batch takes 0.05 s, most of it a
sleep in place of an accelerator's work: so a step of a trial on four workers takes a quarter
of one on a single worker, as with four accelerators.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.recovery.jobs import StepLines, save
from spotray.train.session import current
from spotray.train.state import weights_sha256

WORKERS = 4
STEPS_PER_EPOCH = 10
SHARD_S = 0.05
NAME = "sweep"
METRIC = "val"
SNAPSHOT_S = 1.0
CHECKPOINT_S = STEPS_PER_EPOCH * 4 * SHARD_S  # as plain Ray Tune, which saves after each epoch
_BATCH, _MICRO_BATCH = 64, 16
_FEATURES, _CLASSES = 32, 10
_SEED = 3  # of the training; the searcher and the schedulers have it too


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large a sweep is."""

    trials: int
    epochs: int
    workers: int = WORKERS  # of a trial, at most; 1: all trials run at once

    @property
    def steps(self) -> int:
        """Of one trial."""
        return self.epochs * STEPS_PER_EPOCH

    @property
    def cpus_per_node(self) -> int:
        return -(-self.trials // WORKERS) if self.workers == 1 else 1


class Points(torch.utils.data.Dataset[Any]):
    """Random points, labelled by a perceptron that nobody knows, with a little noise."""

    def __init__(self, count: int, *, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        teacher = torch.randn(_FEATURES, _CLASSES, generator=torch.Generator().manual_seed(1))
        self.x = torch.randn(count, _FEATURES, generator=draw)
        noise = torch.randn(count, _CLASSES, generator=draw)
        self.y = (self.x @ teacher + noise).argmax(1)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index], self.y[index]


def training_points() -> Points:
    return Points(STEPS_PER_EPOCH * _BATCH, seed=7)


def make_model() -> nn.Module:
    """With dropout, which draws from the random streams."""
    return nn.Sequential(
        nn.Linear(_FEATURES, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, _CLASSES)
    )


def validate(model: nn.Module) -> float:
    """Loss on points that are not trained on."""
    points = Points(512, seed=8)
    model.eval()
    with torch.no_grad():
        return float(F.cross_entropy(model(points.x), points.y))


# -- spotray -------------------------------------------------------------------------------


def spotray_loop(config: dict[str, Any]) -> None:
    import spotray

    torch.set_num_threads(1)
    run = spotray.Run(global_batch_size=_BATCH, micro_batch_size=_MICRO_BATCH, seed=_SEED)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    StepLines(
        str(Path(config["folder"], "steps", _run_name())),
        optimizer,
        step=lambda: run.step + 1,
        world_size=lambda: run.world_size,
        rank=lambda: run.rank,
    )
    model, optimizer, loader = run.prepare(model, optimizer, training_points())
    for _ in run.epochs(config["epochs"]):
        model.train()
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            run.backward(loss)
            time.sleep(SHARD_S)
            optimizer.step()
            optimizer.zero_grad()
        run.report({METRIC: validate(model)})


def _run_name() -> str:
    """The trial's run, of which a clone has another one."""
    session = current()
    assert session is not None, "it runs in a sweep"
    assert session.store is not None, "a sweep has storage"
    return Path(session.store.root).parent.name


def spotray_sweep(folder: Path, scheduler: str, size: Size, *, restore: bool) -> Any:
    from ray.train import ScalingConfig
    from ray.tune import RunConfig

    from spotray import SpotConfig, SpotTuner

    storage = folder / "storage"
    if restore:
        return SpotTuner.restore(storage / NAME, spotray_loop).fit()
    return SpotTuner(
        spotray_loop,
        param_space=_space(folder, size),
        tune_config=_tune_config(scheduler, size),
        run_config=RunConfig(name=NAME, storage_path=str(storage)),
        scaling_config=ScalingConfig(num_workers=(1, size.workers)),
        spot=SpotConfig(snapshot_interval_s=SNAPSHOT_S, checkpoint_interval_s=CHECKPOINT_S),
    ).fit()


# -- Ray Tune ------------------------------------------------------------------------------


def ray_loop(config: dict[str, Any]) -> None:
    """A function for Ray Tune, as its guide has it: saves after each epoch, and resumes."""
    from ray import tune

    torch.set_num_threads(1)
    torch.manual_seed(_SEED)
    model, points = make_model(), training_points()
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    epochs_done = 0
    if (checkpoint := tune.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder) / "state.pt")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        for group in optimizer.param_groups:
            group["lr"] = config["lr"]  # a clone has its own
        epochs_done = state["epochs"]
    step = epochs_done * STEPS_PER_EPOCH
    StepLines(
        str(Path(config["folder"], "steps", tune.get_context().get_trial_id())),
        optimizer,
        step=lambda: step + 1,
        world_size=lambda: 1,
        rank=lambda: 0,
    )
    for epoch in range(epochs_done, config["epochs"]):
        torch.manual_seed(_SEED + 1000 * epoch)
        model.train()
        for batch in torch.randperm(len(points)).split(_BATCH):
            for ids in batch.split(_MICRO_BATCH):
                x, y = points[ids]
                loss = F.cross_entropy(model(x), y, reduction="sum") / len(batch)
                loss.backward()
                time.sleep(SHARD_S)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
        told = {METRIC: validate(model), "step": step}
        told["weights_sha256"] = weights_sha256({"model": model})
        with tempfile.TemporaryDirectory() as saved:
            states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            save(Path(saved) / "state.pt", epochs=epoch + 1, **states)
            tune.report(told, checkpoint=tune.Checkpoint.from_directory(saved))


def ray_sweep(folder: Path, scheduler: str, size: Size) -> Any:
    from ray import tune

    return tune.Tuner(
        ray_loop,
        param_space=_space(folder, size),
        tune_config=_tune_config(scheduler, size),
        run_config=tune.RunConfig(
            name=NAME,
            storage_path=str(folder / "storage"),
            failure_config=tune.FailureConfig(max_failures=-1),
        ),
    ).fit()


# -- both ----------------------------------------------------------------------------------


def _space(folder: Path, size: Size) -> dict[str, Any]:
    from ray import tune

    return {"lr": tune.loguniform(1e-4, 1e-1), "epochs": size.epochs, "folder": str(folder)}


def _tune_config(scheduler: str, size: Size) -> Any:
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler, PopulationBasedTraining
    from ray.tune.search import BasicVariantGenerator

    quarter = max(1, size.epochs // 4)
    made: Any = None
    if scheduler == "asha":
        made = ASHAScheduler(grace_period=quarter, max_t=size.epochs, reduction_factor=2)
    elif scheduler == "pbt":
        made = PopulationBasedTraining(
            time_attr="training_iteration",
            perturbation_interval=quarter,
            hyperparam_mutations={"lr": tune.loguniform(1e-4, 1e-1)},
        )
    return tune.TuneConfig(
        metric=METRIC,
        mode="min",
        num_samples=size.trials,
        scheduler=made,
        search_alg=BasicVariantGenerator(random_state=_SEED),
    )


def drive(tuner: str, folder: Path, scheduler: str, size: Size, *, restore: bool) -> None:
    """One sweep, or the rest of one, on the cluster that the environment names.

    ``FOLDER/result.json`` says how it ended.
    """
    import ray

    random.seed(_SEED)  # PBT draws from these two
    np.random.seed(_SEED)
    ray.init(log_to_driver=False)
    began_s = time.time()
    if tuner == "spotray":
        grid = spotray_sweep(folder, scheduler, size, restore=restore)
    else:
        assert not restore, "only ours is restored here"
        grid = ray_sweep(folder, scheduler, size)
    told: dict[str, Any] = {"began_s": began_s, "ended_s": time.time()}
    trials = grid._experiment_analysis.trials  # in the order of their results
    told["trials"] = [_result(*both) for both in zip(trials, grid, strict=True)]
    part = folder / "result.part"
    part.write_text(json.dumps(told))
    part.replace(folder / "result.json")


def _result(trial: Any, result: Any) -> dict[str, Any]:
    # A clone that reported nothing of its own has its donor's metrics, with its name and config.
    metrics: Mapping[str, Any] = result.metrics or {}
    return {
        "trial_id": trial.trial_id,
        "lr": trial.config["lr"],
        METRIC: metrics.get(METRIC),
        "weights_sha256": metrics.get("weights_sha256", ""),
        "steps": metrics.get("step", 0),
        "error": "" if result.error is None else str(result.error)[-300:],
    }
