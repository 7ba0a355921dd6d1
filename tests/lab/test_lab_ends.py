"""However its driver ends, a lab leaves no process, port or file behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from spotray.clock import SystemClock, wait_until
from spotray.lab.lab import Lab

pytestmark = [pytest.mark.ray, pytest.mark.slow]
ROOT = Path(__file__).parents[2]


@dataclass
class Driver:
    """A driver with a running lab, and all that it started."""

    process: subprocess.Popen[str]
    address: str
    folders: list[Path]
    family: list[psutil.Process]

    def assert_nothing_is_left(self) -> None:
        def left() -> list[str]:
            return [
                *(f"{p.pid} {' '.join(p.cmdline())}" for p in self.family if is_alive(p)),
                *(str(folder) for folder in self.folders if folder.exists()),
            ]

        if not wait_until(lambda: not left(), timeout_s=10, clock=SystemClock()):
            pytest.fail(f"left behind: {left()}")
        host, port = self.address.split(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)), timeout=1)


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def driver() -> Iterator[Driver]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.lab.lab_driver"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        facts = json.loads(process.stdout.readline())
        family = psutil.Process(process.pid).children(recursive=True)
        assert {"raylet", "gcs_server"} <= {p.name() for p in family}
        folders = [Path(folder) for folder in facts["folders"]]
        assert all(folder.exists() for folder in folders)
        yield Driver(process, facts["address"], folders, family)
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_a_driver_that_is_killed_leaves_nothing(driver: Driver) -> None:
    driver.process.kill()
    driver.assert_nothing_is_left()


def test_ctrl_c_leaves_nothing(driver: Driver) -> None:
    os.killpg(driver.process.pid, signal.SIGINT)  # as a terminal does: to the whole group
    assert driver.process.wait(30) != 0
    driver.assert_nothing_is_left()


@pytest.mark.parametrize("how", ["exit", "leave"])
def test_a_driver_that_ends_leaves_nothing(driver: Driver, how: str) -> None:
    assert driver.process.stdin is not None
    driver.process.stdin.write(f"{how}\n")
    driver.process.stdin.flush()
    assert driver.process.wait(30) == 0
    driver.assert_nothing_is_left()


class Interrupted(Lab):
    """Somebody presses Ctrl-C while its workers start."""

    def wait_for_workers(self, count: int, *, timeout_s: float = 60.0) -> None:
        raise KeyboardInterrupt


def test_a_start_that_is_interrupted_leaves_nothing() -> None:
    lab = Interrupted(1)
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(KeyboardInterrupt):
        lab.start()
    assert not set(psutil.Process().children(recursive=True)) - before
    for parent in ("/tmp", "/dev/shm"):
        assert not Path(parent, f"spotray-lab-{lab.name}").exists()
