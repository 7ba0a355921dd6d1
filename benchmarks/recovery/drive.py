"""``python -m benchmarks.recovery.drive SYSTEM FOLDER``: a job's driver (Ray), or one worker."""

import sys
from pathlib import Path

import torch

from benchmarks.recovery.jobs import DRIVERS

if __name__ == "__main__":
    torch.set_num_threads(1)
    DRIVERS[sys.argv[1]](Path(sys.argv[2]))
