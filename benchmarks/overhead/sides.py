"""The same training loop for each side, written as its users would write it.

A vision transformer of ViT-Tiny's size on small synthetic images, one thread a worker. Nothing
is lost, and nothing sleeps.

``python -m benchmarks.overhead.drive JSON`` is a job's driver (Ray), or one worker.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.overhead.turns import Turns

Config = dict[str, Any]  # side, conductor, workers, batch, folder; rank and port off Ray


class Images(torch.utils.data.Dataset[Any]):
    """Random images with labels, as many as no benchmark gets through."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(7)
        self._images = torch.randn(512, 3, 32, 32, generator=draw)
        self._labels = torch.randint(10, (512,), generator=draw)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._images[index % 512], self._labels[index % 512]


class ViT(nn.Module):
    """As large as ViT-Tiny (5.4 million parameters), over 8 x 8 patches of 4 x 4 pixels."""

    def __init__(self, width: int = 192, depth: int = 12, heads: int = 3) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, width, 4, stride=4)
        self.position = nn.Parameter(torch.randn(1, 64, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width,
            heads,
            4 * width,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.embed(x).flatten(2).transpose(1, 2) + self.position
        logits: torch.Tensor = self.head(self.encoder(tokens).mean(1))
        return logits


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return ViT()


def turns(config: Config, rank: int) -> Turns:
    torch.set_num_threads(1)
    return Turns(config["conductor"], side=config["side"], rank=rank)


def _loader(config: Config, rank: int) -> torch.utils.data.DataLoader[Any]:
    data = Images()
    sampler = torch.utils.data.DistributedSampler(
        data, num_replicas=config["workers"], rank=rank, seed=0
    )
    return torch.utils.data.DataLoader(data, batch_size=config["batch"], sampler=sampler)


# -- the others ------------------------------------------------------------------------


def torch_worker(config: Config) -> None:
    """DistributedDataParallel and nothing else."""
    import torch.distributed as dist

    rank = config["rank"]
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{config['port']}",
        rank=rank,
        world_size=config["workers"],
    )
    turn = turns(config, rank)
    model = nn.parallel.DistributedDataParallel(make_model())
    _plain_steps(model, _loader(config, rank), turn)


def ray_loop(config: Config) -> None:
    import ray.train
    import ray.train.torch

    rank = ray.train.get_context().get_world_rank()
    turn = turns(config, rank)
    model = ray.train.torch.prepare_model(make_model())
    _plain_steps(model, _loader(config, rank), turn)


def _plain_steps(model: nn.Module, loader: torch.utils.data.DataLoader[Any], turn: Turns) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for x, y in loader:
        if not turn.step():
            return
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def drive_ray_train(config: Config) -> None:
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    ray.init()
    TorchTrainer(
        ray_loop,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=config["workers"], placement_strategy="SPREAD"),
        run_config=RunConfig(name=config["side"], storage_path=config["folder"]),
    ).fit()


def torchft_worker(config: Config) -> None:
    import torch.distributed as dist
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    rank = config["rank"]
    raw = make_model()
    inner = torch.optim.AdamW(raw.parameters(), lr=1e-4)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    timeout = timedelta(seconds=60)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timeout),
        min_replica_size=config["workers"],
        load_state_dict=lambda state: raw.load_state_dict(state["model"]),
        state_dict=lambda: {"model": raw.state_dict()},
        replica_id=f"r_{rank}",
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        hostname="127.0.0.1",
        timeout=timeout,
        init_sync=False,  # the weights are alike by their seed
    )
    turn = turns(config, rank)
    model, optimizer = DistributedDataParallel(manager, raw), Optimizer(manager, inner)
    for x, y in _loader(config, rank):
        if not turn.step():
            return
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


# -- spotray ---------------------------------------------------------------------------


def spotray_loop(config: Config) -> None:
    import spotray

    run = spotray.Run(
        global_batch_size=config["batch"] * config["workers"],
        micro_batch_size=config["batch"],
        seed=0,
    )
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model, optimizer, loader = run.prepare(model, optimizer, Images())
    turn = turns(config, run.rank)  # a live worker has no rank of its own before
    for _ in run.epochs(1):
        for x, y in loader:
            if not turn.step():
                return
            loss = F.cross_entropy(model(x), y)
            run.backward(loss)
            optimizer.step()
            optimizer.zero_grad()


def drive_spotray(config: Config, *, recovery: Literal["live", "restart"]) -> None:
    import ray
    from ray.train import RunConfig, ScalingConfig

    from spotray import ElasticTrainer

    ray.init()
    ElasticTrainer(
        spotray_loop,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=config["workers"], placement_strategy="SPREAD"),
        run_config=RunConfig(name=config["side"], storage_path=config["folder"]),
        recovery=recovery,
    ).fit()


DRIVERS: dict[str, Callable[[Config], None]] = {
    "torch": torch_worker,
    "ray-train": drive_ray_train,
    "torchft": torchft_worker,
    "spotray-restart": lambda config: drive_spotray(config, recovery="restart"),
    "spotray-live": lambda config: drive_spotray(config, recovery="live"),
}
ON_RAY = tuple(side for side in DRIVERS if side not in ("torch", "torchft"))
