from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.train.workers import WorkerPool

if TYPE_CHECKING:
    from spotray.lab.lab import Lab


@pytest.fixture(scope="session")
def workers() -> Iterator[WorkerPool]:
    """Four processes for worlds of one to four."""
    pool = WorkerPool(4)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Real Ray nodes on this machine, to which this process is connected."""
    from spotray.lab.lab import Lab  # late: most tests here do without Ray
    from spotray.lab.scenario import Scenario
    from tests.train.ray_lab import WORKERS

    journal = tmp_path_factory.mktemp("cluster")
    with Lab(scenario=Scenario(workers=WORKERS, provisioning_s=1.0), journal=journal) as lab:
        lab.wait_for_workers(WORKERS)
        lab.connect(runtime_env={"env_vars": {"PYTHONPATH": str(Path(__file__).parents[2])}})
        yield lab


@pytest.fixture
def cluster(lab: Lab) -> Lab:
    """The lab with all its workers there again, and nothing of earlier jobs in their memory."""
    from tests.train.ray_lab import WORKERS

    lab.set_capacity(2 * WORKERS)
    lab.wait_for_workers(WORKERS)
    for node in lab.nodes():
        # Of a node whose Ray was away when its job ended; the script goes by these.
        for progress in node.shm_dir.glob("progress-*"):
            progress.unlink()
    return lab
