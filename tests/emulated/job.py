"""A training job for the emulated cloud: ``ray submit CLUSTER.yaml job.py NAME STEPS``.

Each worker tells the rig of each step, and hears in the answer how long a step shall take.
"""

from __future__ import annotations

import json
import socket
import sys
import time
import urllib.request
from typing import Any

import torch

import spotray

RIG = "http://172.31.0.1:5000"
SAMPLES = 160  # ten steps an epoch
STEPS_PER_EPOCH = 10


def train_loop(config: dict[str, Any], runs: list[Any] | None = None) -> None:
    """An ordinary loop; ``runs`` gets the run, where it is called without Ray and the rig."""
    run = spotray.Run(global_batch_size=16, micro_batch_size=4, seed=3)
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.Dropout(0.1), torch.nn.ReLU(), torch.nn.Linear(64, 4)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    draw = torch.Generator().manual_seed(7)
    x = torch.randn(SAMPLES, 32, generator=draw)
    data = torch.utils.data.TensorDataset(x, x[:, :4].argmax(1))
    model, optimizer, loader = run.prepare(model, optimizer, data)
    told: int | None = None
    for _ in run.epochs(config["steps"] // STEPS_PER_EPOCH):
        for inputs, labels in loader:
            if told is None:  # where it begins, which another worker may have passed by now
                told = run.step
            elif runs is None and run.step > told:
                told = run.step
                time.sleep(tell(job=config["name"], step=told, rank=run.rank, of=run.world_size))
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            run.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    if runs is not None:
        runs.append(run)


def tell(**what: Any) -> float:
    """Tell the rig; the seconds that a step shall take."""
    body = json.dumps({"host": socket.gethostname(), **what}).encode()
    with urllib.request.urlopen(f"{RIG}/tell", data=body, timeout=10) as answer:
        return float(answer.read())


if __name__ == "__main__":
    import ray
    from ray.train import RunConfig, ScalingConfig

    from spotray.events import TrainingDone
    from spotray.ledger.rundir import load_run

    name, steps = sys.argv[1], int(sys.argv[2])
    ray.init(address="auto")
    tell(job=name, driver=True)
    trainer = spotray.ElasticTrainer(
        train_loop,
        train_loop_config={"name": name, "steps": steps},
        # More than half of a node, so that each has one.
        scaling_config=ScalingConfig(num_workers=(1, 2), resources_per_worker={"CPU": 3}),
        run_config=RunConfig(name=name, storage_path="s3://emulated/runs"),
        spot=spotray.SpotConfig(snapshot_interval_s=0.5, audit_samples=True),
    )
    trainer.fit()
    (done,) = (e for e in load_run(trainer.run_dir).events if isinstance(e, TrainingDone))
    tell(job=name, done=done.step, weights=done.weights_sha256)
