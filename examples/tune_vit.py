"""Tune a small vision transformer with ASHA, on made-up images.

    python examples/tune_vit.py
    python examples/tune_vit.py --resume     # after Ctrl-C, or the death of this process
    spotray status ~/spotray-sweeps/vit      # at any time

Trials share the workers that there are: one on each CPU of a laptop, or of a cluster.
"""

import argparse
from pathlib import Path

import ray
import torch
import torch.nn.functional as F
from ray import train, tune

import spotray


class Squares(torch.utils.data.Dataset):
    """Noise with a bright square in one of four quarters, which is the label."""

    def __init__(self, count, seed):
        draw = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(4, (count,), generator=draw)
        self.images = torch.randn(count, 3, 16, 16, generator=draw)
        for image, label in zip(self.images, self.labels, strict=True):
            image[:, 8 * (label // 2) :, 8 * (label % 2) :][:, 2:6, 2:6] += 0.5

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


def train_loop(config):
    import timm  # in the workers alone

    run = spotray.Run(global_batch_size=64, micro_batch_size=16, seed=0)
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 48, "depth": 2, "num_heads": 3}
    model = timm.create_model("vit_tiny_patch16_224", num_classes=4, **sizes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    model, optimizer, loader = run.prepare(model, optimizer, Squares(512, seed=1))
    test = Squares(256, seed=2)
    for _ in run.epochs(config["epochs"]):
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            run.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            accuracy = (model(test.images).argmax(1) == test.labels).float().mean().item()
        run.report({"accuracy": accuracy})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=9)
    parser.add_argument("--storage", default=str(Path.home() / "spotray-sweeps"))
    parser.add_argument("--resume", action="store_true", help="go on with the sweep that is there")
    args = parser.parse_args()
    ray.init(log_to_driver=False)
    asha = tune.schedulers.ASHAScheduler(max_t=args.epochs, reduction_factor=3)
    tuner = spotray.SpotTuner(
        train_loop,
        param_space={"lr": tune.loguniform(1e-4, 1e-1), "epochs": args.epochs},
        tune_config=tune.TuneConfig(
            metric="accuracy", mode="max", num_samples=args.trials, scheduler=asha
        ),
        run_config=tune.RunConfig(name="vit", storage_path=args.storage),
        scaling_config=train.ScalingConfig(num_workers=(1, 4)),
    )
    if args.resume:
        tuner = spotray.SpotTuner.restore(tuner.sweep_dir, train_loop)
    best = tuner.fit().get_best_result()
    print(f"best accuracy {best.metrics['accuracy']:.3f} with {best.config}")
    print(f"weights: {best.checkpoint.path}")
