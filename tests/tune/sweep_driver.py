"""A driver that a test kills. Arguments: ADDRESS STORAGE NAME RATES EPOCHS."""

from __future__ import annotations

import json
import sys

import ray

from tests.tune.ray_sweeps import tuner_of


def main() -> None:
    address, storage, name, lrs, epochs = sys.argv[1:]
    ray.init(address=address, log_to_driver=False)
    tuner_of(storage, name, lrs=json.loads(lrs), epochs=int(epochs)).fit()


if __name__ == "__main__":
    main()
