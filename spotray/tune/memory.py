"""What the nodes' memory has of a sweep's runs. Runs there, so it imports nothing heavy."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from spotray.train.shelf import newest_step


def forget_runs(run_ids: Sequence[str], shm_dir: str) -> None:
    """Remove what this node keeps of runs that nobody will go on with.

    Args:
        run_ids: The runs' names in memory.
        shm_dir: Where that is, unless ``SPOTRAY_SHM_DIR`` says otherwise.
    """
    home = Path(os.environ.get("SPOTRAY_SHM_DIR", shm_dir))
    for run_id in run_ids:
        shutil.rmtree(home / run_id, ignore_errors=True)
        for progress in home.glob(f"progress-{run_id}-*"):
            progress.unlink(missing_ok=True)


def held_runs(shm_dir: str) -> dict[str, int]:
    """Runs of which this node's memory has a snapshot, or a copy, and the newest step of each.

    Args:
        shm_dir: As for `forget_runs`.
    """
    home = Path(os.environ.get("SPOTRAY_SHM_DIR", shm_dir))
    steps = {path.name: newest_step(home, path.name) for path in home.glob("*/")}
    return {run_id: step for run_id, step in steps.items() if step >= 0}
