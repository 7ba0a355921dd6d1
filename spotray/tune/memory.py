"""Gives back the nodes' memory of a sweep's runs. Runs there, so it imports nothing heavy."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path


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
