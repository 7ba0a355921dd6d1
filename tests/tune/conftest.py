"""The one lab in which all sweeps on real Ray nodes run: it takes longer to start than many."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spotray.lab.lab import Lab
from spotray.lab.scenario import Scenario


@pytest.fixture(scope="package")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    from tests.tune.ray_sweeps import ROOT, WORKERS  # late: imports torch

    journal = tmp_path_factory.mktemp("cluster")
    with Lab(scenario=Scenario(workers=WORKERS, provisioning_s=1.0), journal=journal) as lab:
        lab.wait_for_workers(WORKERS)
        lab.connect(runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}})
        yield lab


@pytest.fixture
def cluster(lab: Lab) -> Lab:
    """The lab with all its workers there again."""
    from tests.tune.ray_sweeps import WORKERS

    lab.set_capacity(2 * WORKERS)
    lab.wait_for_workers(WORKERS)
    return lab
