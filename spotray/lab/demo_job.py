"""The demo's training loop: a timm vision transformer on handwritten digits.

It is an ordinary loop. What makes it elastic are the lines with ``run.``.
"""

from __future__ import annotations

from typing import Any


def train_digits(config: dict[str, Any]) -> None:
    """Train on ``config["train"]``, test on ``config["test"]`` (Parquet files)."""
    import timm
    import torch
    import torch.nn.functional as F

    import spotray

    run = spotray.Run(global_batch_size=64, micro_batch_size=8, seed=config["seed"])
    model = timm.create_model(
        "vit_tiny_patch16_224",
        img_size=8,
        patch_size=2,
        in_chans=1,
        num_classes=10,
        embed_dim=config["width"],
        depth=config["depth"],
        num_heads=4,
        proj_drop_rate=0.1,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    dataset = spotray.ParquetDataset(config["train"], transform=to_image)
    steps = config["epochs"] * -(-len(dataset) // run.global_batch_size)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, config["lr"], total_steps=steps)
    model, optimizer, scheduler, loader = run.prepare(model, optimizer, scheduler, dataset)
    for _ in run.epochs(config["epochs"]):
        model.train()
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            run.backward(loss)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        run.report({"accuracy": accuracy(model, config["test"])})


def accuracy(model: Any, path: str) -> float:
    """Fraction of the digits in a Parquet file that the model names right, 0..1."""
    import torch

    import spotray

    rows = spotray.ParquetDataset(path, transform=to_image)
    images, labels = zip(*(rows[i] for i in range(len(rows))), strict=True)
    model.eval()
    with torch.no_grad():
        named = model(torch.stack(images)).argmax(1)
    return float((named == torch.stack(labels)).float().mean())


def to_image(row: dict[str, Any]) -> tuple[Any, Any]:
    """A row as (image of 1 x 8 x 8 pixels around 0, label)."""
    return row["image"].view(1, 8, 8) * 2 - 1, row["label"]
