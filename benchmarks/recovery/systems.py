"""The systems that are compared, the nodes that each runs on, and how to take those away."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks import bench
from benchmarks.recovery import jobs
from spotray.lab import processes
from spotray.lab.lab import Lab
from spotray.lab.scenario import Scenario

_NEVER_S = 3600.0  # no replacement comes within a measurement
_TAIL_CHARS = 300


class Site(Protocol):
    """A running job and its nodes."""

    def kill(self, nodes: Sequence[str]) -> None:
        """Take nodes in one instant."""

    def freeze(self, node: str) -> None:
        """Silence a node; its sockets stay open."""

    def notice(self, node: str, notice_s: float) -> None:
        """Announce a node's loss, and take it then."""

    def add(self) -> None:
        """Start one node more."""

    def ended(self) -> str:
        """Why the job has ended; empty while it runs."""

    def close(self) -> None:
        """End all of it."""


@dataclass(frozen=True, kw_only=True)
class System:
    """One way to train on machines that may go away."""

    name: str
    hears_notices: bool
    quick_health_check: bool = True  # of Ray
    on_ray: bool = True

    def missing(self) -> str:
        """What this machine lacks to run it; empty if nothing."""
        if self.name == "torchft" and importlib.util.find_spec("torchft") is None:
            return "torchft is not installed: pip install 'spotray[bench]'"
        return ""

    def start(self, folder: Path, *, workers: int, replacement_s: float | None) -> Site:
        """Start a job on so many nodes; a lost one is replaced only if ``replacement_s`` is set."""
        if self.on_ray:
            return RaySite(self, folder, workers=workers, replacement_s=replacement_s)
        if self.name == "torchrun":
            return TorchrunSite(folder, workers=workers, replacement_s=replacement_s)
        return TorchftSite(folder, workers=workers, replacement_s=replacement_s)


SYSTEMS = {
    system.name: system
    for system in (
        System(name="ray-train", hears_notices=True, quick_health_check=False),
        System(name="ray-train-tuned", hears_notices=True),
        System(name="torchrun", hears_notices=False, on_ray=False),
        System(name="torchft", hears_notices=False, on_ray=False),
        System(name="spotray-restart", hears_notices=True),
        System(name="spotray-live", hears_notices=True),
    )
}


def _start(command: Sequence[str], log: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with open(log, "ab") as file:
        return subprocess.Popen(
            command,
            env=dict(env),
            cwd=bench.ROOT,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # the terminal's Ctrl-C is for the benchmark alone
        )


def _environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "SPOTRAY_"))}
    return kept | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"} | more


def _ending(name: str, process: subprocess.Popen[bytes], log: Path) -> str:
    code = process.poll()
    if code is None:
        return ""
    lines = log.read_text(errors="replace").strip().splitlines() or ["no output"]
    return f"{name} ended with code {code}: {lines[-1].strip()[:_TAIL_CHARS]}"


def _end_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all below it as if they ended in one instant."""
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGSTOP)
        processes.kill(process.pid)
        os.kill(process.pid, signal.SIGKILL)
    process.wait()


class RaySite:
    """Real raylets, one a node, in a lab; its agents tell Ray of notices."""

    def __init__(
        self, system: System, folder: Path, *, workers: int, replacement_s: float | None
    ) -> None:
        self._lab = Lab(
            scenario=Scenario(
                workers=workers,
                provisioning_s=_NEVER_S if replacement_s is None else replacement_s,
            ),
            journal=folder / "cluster",
            quick_health_check=system.quick_health_check,
        )
        self._log = folder / "driver.log"
        with ExitStack() as undo:
            self._lab.start()
            undo.callback(self._lab.close)
            self._lab.wait_for_workers(workers)
            self._driver = _start(
                (sys.executable, "-m", "benchmarks.recovery.drive", system.name, str(folder)),
                self._log,
                _environment(**self._lab.environment(), RAY_DEDUP_LOGS="0"),
            )
            undo.pop_all()

    def kill(self, nodes: Sequence[str]) -> None:
        with ThreadPoolExecutor(max_workers=len(nodes)) as pool:
            list(pool.map(self._lab.kill, nodes))

    def freeze(self, node: str) -> None:
        self._lab.freeze(node)

    def notice(self, node: str, notice_s: float) -> None:
        self._lab.preempt(node, notice_s=notice_s)

    def add(self) -> None:
        self._lab.add_node()

    def ended(self) -> str:
        return _ending("the driver", self._driver, self._log)

    def close(self) -> None:
        try:
            _end_tree(self._driver)
        finally:
            self._lab.close()


class _BareSite:
    """Nodes that are one process each, with what it starts, and no Ray."""

    def __init__(self, folder: Path, *, workers: int, replacement_s: float | None) -> None:
        self._folder, self._replacement_s = folder, replacement_s
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._count = 0
        self._changing = threading.Lock()
        self._timers: list[threading.Timer] = []
        self._closed = False
        with ExitStack() as undo:
            undo.callback(self.close)
            self._open()
            for _ in range(workers):
                self.add()
            undo.pop_all()

    def _open(self) -> None:
        raise NotImplementedError

    def _command(self) -> tuple[tuple[str, ...], dict[str, str]]:
        """What runs on a node, and its environment."""
        raise NotImplementedError

    def _log(self, node: str) -> Path:
        return self._folder / f"{node}.log"

    def add(self) -> None:
        with self._changing:
            if self._closed:
                return
            self._count += 1
            node = f"node-{self._count}"
            command, environment = self._command()
            environment |= {"BENCH_NODE": node, "TMPDIR": str(self._folder)}
            self._nodes[node] = _start(command, self._log(node), _environment(**environment))

    def kill(self, nodes: Sequence[str]) -> None:
        with self._changing:
            lost = [self._nodes.pop(node) for node in nodes]
            for process in lost:  # all stand still before the first one is gone
                os.kill(process.pid, signal.SIGSTOP)
                processes.freeze(process.pid)
            for process in lost:
                _end_tree(process)
        if self._replacement_s is not None:
            for _ in lost:
                timer = threading.Timer(self._replacement_s, self.add)
                timer.daemon = True
                self._timers.append(timer)
                timer.start()

    def freeze(self, node: str) -> None:
        process = self._nodes[node]
        os.kill(process.pid, signal.SIGSTOP)
        processes.freeze(process.pid)

    def notice(self, node: str, notice_s: float) -> None:
        raise NotImplementedError("nobody here would hear it")

    def ended(self) -> str:
        if self._timers and any(timer.is_alive() for timer in self._timers):
            return ""
        with self._changing:
            endings = [_ending(name, one, self._log(name)) for name, one in self._nodes.items()]
        # One that lives may still go on alone.
        return endings[0] if endings and all(endings) else ""

    def close(self) -> None:
        with self._changing:
            self._closed = True
        for timer in self._timers:
            timer.cancel()
        for process in self._nodes.values():
            _end_tree(process)
        self._nodes.clear()


class TorchrunSite(_BareSite):
    """One ``torchrun`` agent and one worker a node; they meet at a store that cannot be lost."""

    def _open(self) -> None:
        from torch.distributed import TCPStore

        self._store: Any = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def _command(self) -> tuple[tuple[str, ...], dict[str, str]]:
        command = (
            *(sys.executable, "-m", "torch.distributed.run"),
            *("--nnodes", f"1:{jobs.WORKERS}", "--nproc-per-node", "1", "--max-restarts", "100"),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self._store.port}"),
            *("--rdzv-conf", "is_host=0", "--rdzv-id", "job", "--local-addr", "127.0.0.1"),
            *("-m", "benchmarks.recovery.drive", "torchrun", str(self._folder)),
        )
        # By default the store of one round serves the next one too, and gloo then finds the
        # addresses of the workers before: refused connections, and no step within a minute.
        return command, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


class TorchftSite(_BareSite):
    """One replica group of one worker a node, started again when it ends; a lighthouse beside."""

    def _open(self) -> None:
        # Before it is loaded: it logs several lines a step, here into the progress lines.
        os.environ["RUST_LOG"] = "error"
        from torchft.coordination import LighthouseServer

        self._lighthouse: Any = LighthouseServer(
            bind="[::]:0",
            min_replicas=1,
            join_timeout_ms=1000,
            quorum_tick_ms=100,
            heartbeat_timeout_ms=1500,
        )

    def _command(self) -> tuple[tuple[str, ...], dict[str, str]]:
        worker = f"{sys.executable} -m benchmarks.recovery.drive torchft {self._folder}"
        # A worker that fails at once would keep the machine busy with its starts.
        command = ("/bin/sh", "-c", f"while true; do {worker}; sleep 0.2; done")
        # The address names this machine, which may have no name that others can look up.
        port = self._lighthouse.address().rpartition(":")[2]
        return command, {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}"}

    def close(self) -> None:
        super().close()
        self._lighthouse.shutdown()
