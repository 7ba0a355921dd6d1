"""One emulated cloud for all tests here, and a line for each time that they measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.emulated.cloud import Cloud, emulated_cloud
from tests.emulated.needs import missing, missing_for_volumes

_MEASURED: list[str] = []
_FAILED = pytest.StashKey[bool]()  # of a module whose tests build on each other


@pytest.fixture(scope="session")
def _can_run() -> None:
    if words := missing():
        pytest.skip(words)


@pytest.fixture(scope="session")
def volumes(_can_run: None) -> None:
    """Of tests whose instances have volumes."""
    if words := missing_for_volumes():
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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    module = item.getparent(pytest.Module)
    if report.failed and module and getattr(module.obj, "BUILD_ON_EACH_OTHER", False):
        module.stash[_FAILED] = True
    return report


def pytest_runtest_setup(item: pytest.Item) -> None:
    module = item.getparent(pytest.Module)
    if module and module.stash.get(_FAILED, False):
        pytest.skip("builds on a test that failed")
