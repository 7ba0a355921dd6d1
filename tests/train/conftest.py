from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.train.workers import WorkerPool


@pytest.fixture(scope="session")
def workers() -> Iterator[WorkerPool]:
    """Four processes for worlds of one to four."""
    pool = WorkerPool(4)
    yield pool
    pool.close()
