"""``python -m benchmarks.tuning.drive TUNER FOLDER SCHEDULER TRIALS EPOCHS WORKERS``."""

import argparse
from pathlib import Path

from benchmarks.tuning import jobs

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tuner", choices=("spotray", "ray"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("scheduler", choices=("random", "asha", "pbt"))
    parser.add_argument("trials", type=int)
    parser.add_argument("epochs", type=int)
    parser.add_argument("workers", type=int)
    parser.add_argument("--restore", action="store_true")
    given = parser.parse_args()
    size = jobs.Size(trials=given.trials, epochs=given.epochs, workers=given.workers)
    jobs.drive(given.tuner, given.folder, given.scheduler, size, restore=given.restore)
