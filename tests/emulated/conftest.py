"""One emulated cloud for all tests here, and a line for each time that they measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.emulated.cloud import Cloud, emulated_cloud
from tests.emulated.needs import missing

_MEASURED: list[str] = []


@pytest.fixture(scope="session")
def _can_run() -> None:
    if words := missing():
        pytest.skip(words)


@pytest.fixture(scope="session")
def cloud(_can_run: None) -> Iterator[Cloud]:
    """An emulated AWS account with the bucket ``emulated``."""
    with emulated_cloud() as made:
        made.do("make_bucket", name="emulated")
        yield made


@pytest.fixture(scope="session")
def measured() -> Callable[[str], None]:
    """Takes a line for the end of the test run's output."""
    return _MEASURED.append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _MEASURED:
        terminalreporter.section("measured in the emulated cloud")
        for line in _MEASURED:
            terminalreporter.write_line(line)
