"""Trees of processes, with plain shells in the place of Ray."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from spotray.clock import SystemClock, wait_until
from spotray.lab import processes

SLEEPERS = "sleep 60 & sleep 60 & wait"


@pytest.fixture
def shell() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sh", "-c", SLEEPERS], start_new_session=True)
    try:
        assert wait_until(
            lambda: len(processes.descendants(process.pid)) == 2, timeout_s=10, clock=SystemClock()
        )
        yield process
    finally:
        processes.kill_session(process.pid)
        process.wait()


def states(pids: set[int]) -> set[str]:
    return {psutil.Process(pid).status() for pid in pids}


def test_the_whole_tree_is_seen(shell: subprocess.Popen[bytes]) -> None:
    below = processes.descendants(shell.pid)
    assert below == {p.pid for p in psutil.Process(shell.pid).children(recursive=True)}
    assert below | {shell.pid} <= processes.descendants(os.getpid())


def test_a_frozen_tree_stands_still_until_it_is_thawed(shell: subprocess.Popen[bytes]) -> None:
    below = processes.descendants(shell.pid)
    assert processes.freeze(shell.pid) == 2
    assert wait_until(
        lambda: states(below) == {psutil.STATUS_STOPPED}, timeout_s=5, clock=SystemClock()
    )
    assert processes.thaw(shell.pid) == 2
    assert wait_until(
        lambda: states(below) == {psutil.STATUS_SLEEPING}, timeout_s=5, clock=SystemClock()
    )


def test_a_killed_tree_is_gone_without_its_root(shell: subprocess.Popen[bytes]) -> None:
    below = processes.descendants(shell.pid)
    assert processes.kill(shell.pid) == below
    assert shell.wait(10) is not None  # the shell waited for them
    assert not any(psutil.pid_exists(pid) for pid in below)


def test_a_session_is_killed_also_where_its_leader_is_gone(shell: subprocess.Popen[bytes]) -> None:
    below = processes.descendants(shell.pid)
    shell.kill()
    shell.wait()
    assert processes.kill_session(shell.pid) == below


def test_the_supervisor_imports_neither_ray_nor_torch() -> None:
    code = "import sys, spotray.lab.node; print({'ray', 'torch', 'pyarrow'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"
