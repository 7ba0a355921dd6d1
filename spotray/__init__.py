"""spotray: train and tune PyTorch models on machines that the cloud may take away.

Importing this package loads neither ray nor torch nor a cloud's SDK: the public
names are resolved when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spotray.errors import CheckpointCorrupt as CheckpointCorrupt
    from spotray.errors import CheckpointError as CheckpointError
    from spotray.errors import ConfigError as ConfigError
    from spotray.errors import SpotrayError as SpotrayError
    from spotray.errors import StateMismatch as StateMismatch
    from spotray.lab.lab import Lab as Lab
    from spotray.train.config import SpotConfig as SpotConfig
    from spotray.train.parquet import ParquetDataset as ParquetDataset
    from spotray.train.run import Run as Run
    from spotray.train.trainer import ElasticTrainer as ElasticTrainer
    from spotray.tune.tuner import SpotTuner as SpotTuner

__version__ = "0.1.0"

_HOME = {
    "CheckpointCorrupt": "spotray.errors",
    "CheckpointError": "spotray.errors",
    "ConfigError": "spotray.errors",
    "ElasticTrainer": "spotray.train.trainer",
    "Lab": "spotray.lab.lab",
    "ParquetDataset": "spotray.train.parquet",
    "Run": "spotray.train.run",
    "SpotConfig": "spotray.train.config",
    "SpotTuner": "spotray.tune.tuner",
    "SpotrayError": "spotray.errors",
    "StateMismatch": "spotray.errors",
}
__all__ = sorted([*_HOME, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'spotray' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
