"""However its user ends, an emulated cloud leaves no process, network, mount or file behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.emulated.cloud import CHECKOUT, emulated_cloud, wait_for
from tests.emulated.needs import missing
from tests.emulated.test_rig import attach, launch, ssh

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(120)]

_DRIVER = """
import time
from tests.emulated.cloud import emulated_cloud
from tests.emulated.test_rig import launch, ssh
with emulated_cloud() as cloud:
    (name,) = launch(cloud)
    ssh(cloud, name, "setsid sleep 1000 >/dev/null 2>&1 &")
    cloud.start("sleep", "1000")
    print("up", flush=True)
    time.sleep(1000)
"""


@dataclass(frozen=True)
class Machine:
    """What one can see of this machine from outside of any cloud."""

    links: frozenset[str]
    mounts: frozenset[str]
    names: frozenset[str]  # of network namespaces

    @classmethod
    def now(cls) -> Machine:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        return cls(
            links=frozenset(os.listdir("/sys/class/net")),
            mounts=frozenset(line.split(" ", 1)[1] for line in mounts),
            names=frozenset(os.listdir("/run/netns") if os.path.isdir("/run/netns") else ()),
        )


@pytest.fixture(autouse=True)
def _needs() -> None:
    if words := missing():
        pytest.skip(words)


def assert_nothing_is_left(before: Machine, family: list[psutil.Process], temporary: Path) -> None:
    assert len(family) > 5  # the rig, a laptop and an instance with their services

    def gone() -> bool:
        return not any(is_alive(one) for one in family)

    wait_for(gone, "the end of all processes", timeout_s=10)
    wait_for(lambda: Machine.now() == before, "the end of its links and mounts", timeout_s=10)
    assert list(temporary.iterdir()) == []


def loops_of(volume: str) -> list[Path]:
    """The block devices of this machine that hold a volume."""
    found = []
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            if volume in file.read_text():
                found.append(file)
        except OSError:  # it was freed between the two
            continue
    return found


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_nothing_is_left_of_a_cloud_that_was_closed(
    volumes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = Machine.now()
    with emulated_cloud() as cloud:
        (name,) = launch(cloud)
        ssh(cloud, name, "setsid sleep 1000 >/dev/null 2>&1 &")
        assert Machine.now() == before  # nothing of it is seen from outside
        volume = attach(cloud, name)
        wait_for(lambda: loops_of(volume), "the volume's device")
        family = psutil.Process(cloud.rig_pid).children(recursive=True)
        family.append(psutil.Process(cloud.rig_pid))
    assert_nothing_is_left(before, family, tmp_path)
    wait_for(lambda: not loops_of(volume), "the end of the volume's device", timeout_s=10)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_its_user_is_ended(how: signal.Signals, tmp_path: Path) -> None:
    before = Machine.now()
    with subprocess.Popen(
        [sys.executable, "-c", _DRIVER],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        text=True,
    ) as driver:
        try:
            assert driver.stdout is not None
            assert driver.stdout.readline() == "up\n"
            family = psutil.Process(driver.pid).children(recursive=True)
            driver.send_signal(how)
            driver.wait(20)
        finally:
            driver.kill()
    assert_nothing_is_left(before, family, tmp_path)
