"""A head for Ray's own `ray up`, `exec`, `dashboard` and `down`, on this machine's loopback.

Only `ssh` is not the real one (`fake_ssh`). Ray's processes carry the machine's folder in
their environment, so that they are found again, whatever became of their parents.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from spotray.launch.remote import RayCommands

ROOT = Path(__file__).parents[2]
TOKEN = secrets.token_hex(16)


class Machine:
    """One machine, and the laptop's YAML for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sr-", dir="/tmp"))  # short, for sockets
        self.name = f"launch-{secrets.token_hex(4)}"
        self.dashboard_port = _free_port()
        home, programs, laptop = (self.folder / one for one in ("home", "bin", "laptop"))
        for folder in (home, programs, laptop / ".ssh"):
            folder.mkdir(parents=True)
        _program(programs / "ssh", f'exec {sys.executable} {ROOT}/tests/launch/fake_ssh.py "$@"')
        # On the machine `ray stop` is for its own Ray; the real one ends all of this computer.
        stop = f"{sys.executable} -m tests.launch.machine {self.folder}"
        _program(home / "bin" / "ray", f"[ $1 = stop ] && cd {ROOT} && exec {stop}")
        self._write_bashrc(home)
        self.file = self.folder / "cluster.yaml"
        self.file.write_text(yaml.safe_dump(self._config(), sort_keys=False))
        monkeypatch.setenv("FAKE_MACHINE", str(self.folder))
        monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("HOME", str(laptop))
        monkeypatch.setenv("RAY_UP_enable_autoscaler_v2", "0")  # of type local, v2 starts nothing
        for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
            monkeypatch.delenv(name, raising=False)

    @property
    def remote(self) -> RayCommands:
        return RayCommands(self.file, dashboard_port=self.dashboard_port)

    def cut(self) -> None:
        """The network between laptop and machine is gone."""
        (self.folder / "cut").touch()

    def mend(self) -> None:
        (self.folder / "cut").unlink()

    def commands(self) -> list[str]:
        """What came over SSH."""
        return (self.folder / "ssh.log").read_text().splitlines()

    def remove(self) -> None:
        while running := processes(self.folder):  # one may start another while we look
            kill(running)
        shutil.rmtree(self.folder, ignore_errors=True)
        for left in Path("/tmp/ray").glob(f"cluster-{self.name}.*"):
            left.unlink()

    def _write_bashrc(self, home: Path) -> None:
        (home / ".bashrc").write_text(
            f"export PATH={home}/bin:{Path(sys.executable).parent}:/usr/bin:/bin\n"
            f"export PYTHONPATH={ROOT} RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0\n"
        )

    def _config(self) -> dict[str, object]:
        start = (
            f"{sys.executable} -m ray.scripts.scripts start --head --node-ip-address=127.0.0.1 "
            f"--port={_free_port()} --dashboard-port={self.dashboard_port} --num-cpus=1 "
            f"--num-gpus=0 --object-store-memory=78643200 --temp-dir={self.folder}/ray "
            f"--ray-client-server-port={_free_port()} --dashboard-agent-listen-port=0 "
            "--include-log-monitor=false --no-monitor --disable-usage-stats "
            "--labels=ray.io/node-group=head,ray.io/market-type=on-demand"
        )
        return {
            "cluster_name": self.name,
            "max_workers": 0,
            "provider": {"type": "local", "head_ip": "127.0.0.1", "worker_ips": []},
            "auth": {"ssh_user": "nobody"},
            "file_mounts": {},
            "setup_commands": [f"mkdir -p ~/.ray && echo {TOKEN} > ~/.ray/auth_token"],
            "head_start_ray_commands": ["ray stop", start],
            "worker_start_ray_commands": [],
        }


def processes(folder: Path) -> list[int]:
    """What runs on the machine, but this process: it has the machine's home."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):
            if f"HOME={folder}/home".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def ray_processes(folder: Path) -> list[int]:
    """Those that are Ray's: its folder stands in their command."""
    found = []
    for pid in processes(folder):
        with suppress(OSError):
            if f"{folder}/ray".encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _program(path: Path, line: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{line}\n")
    path.chmod(0o755)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    kill(ray_processes(Path(sys.argv[1])))  # what `ray stop` does on a machine of its own
