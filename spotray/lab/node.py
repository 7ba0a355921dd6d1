"""``python -m spotray.lab.node``: the machine under one node of the lab.

It starts the node's Ray and its agent, does to them what the lab says, and tells
the lab what it did and when. It adopts all that they start, and when it ends, or
the lab ends in whatever way, every process of the node is killed and the node's
memory and disk are removed. It imports neither ray nor torch: a machine is up at once.

Protocol: JSON lines. In: `NodeOrder` as one object, then ``{"do": "kill"}``, also
``freeze``, ``thaw`` and ``revive`` (start a fresh Ray, with ``node_id``). Out: objects
with ``what`` and ``at_s``: ``ready``, ``failed``, ``ray_exited``, ``agent_exited``,
``frozen``, ``thawed``, ``gone``.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spotray.lab import processes

_TAIL_CHARS = 1200  # of Ray's output, where it did not start
_RAY_BINARIES = ("raylet", "gcs_server")


@dataclass(frozen=True, kw_only=True)
class NodeOrder:
    """What a supervisor is to run. ``{node_id}`` and ``{ray_dir}`` in the commands are
    filled in at each start of Ray."""

    name: str
    node_id: str  # Ray's, hex, chosen beforehand
    ray_command: tuple[str, ...]  # returns when the node has joined
    agent_command: tuple[str, ...] = ()  # started then; empty: no agent
    environment: dict[str, str]
    node_dir: str  # the node's disk
    shm_dir: str  # the node's part of shared memory
    lab_pid: int

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: bytes) -> NodeOrder:
        raw = json.loads(line)
        for name in ("ray_command", "agent_command"):
            raw[name] = tuple(raw[name])
        return cls(**raw)


class _Machine:
    """One node's processes and folders."""

    def __init__(self, order: NodeOrder) -> None:
        self._order = order
        self._starts = 0
        self._node_id = order.node_id
        self._children: dict[int, tuple[str, subprocess.Popen[bytes]]] = {}
        self._is_up = False

    def boot(self) -> None:
        order = self._order
        for folder in (order.node_dir, order.shm_dir, f"{order.node_dir}/tmp"):
            Path(folder).mkdir(mode=0o700)
        self._start_ray()

    def obey(self, command: dict[str, Any]) -> bool:
        """Do what the lab says; False ends the machine."""
        me = os.getpid()
        match command["do"]:
            case "kill":
                return False
            case "freeze":
                _tell("frozen", processes=processes.freeze(me))
            case "thaw":
                _tell("thawed", processes=processes.thaw(me))
            case "revive":
                self._node_id = command["node_id"]
                self._clear()
                self._start_ray()
            case unknown:
                raise ValueError(f"no such command: {unknown!r}")
        return True

    def reap(self) -> None:
        """Take note of every process that ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            role, child = self._children.pop(pid, ("", None))
            if child is not None:
                child.returncode = os.waitstatus_to_exitcode(status)
            if role == "start":
                self._started(os.waitstatus_to_exitcode(status))
            elif role == "agent":
                code = os.waitstatus_to_exitcode(status)
                _tell("agent_exited", code=code, output=self._tail("agent.log"))
        if self._is_up and not self._ray_is_complete():
            self._is_up = False
            _tell("ray_exited", node_id=self._node_id)

    def end(self) -> None:
        """Kill everything below, whatever it started meanwhile, and remove the folders."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        at_s = time.time()
        killed = self._clear()
        for folder in (self._order.shm_dir, self._order.node_dir):
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):
                os.rmdir(os.path.dirname(folder))  # the lab's own, if this node was the last
        _tell("gone", at_s=at_s, processes=killed)

    def _clear(self) -> int:
        killed: set[int] = set()
        while True:
            killed |= processes.kill(os.getpid())
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:  # nobody is left
                break
        self._is_up = False
        for _, child in self._children.values():
            child.returncode = -signal.SIGKILL  # reaped above
        self._children.clear()
        return len(killed)

    def _start_ray(self) -> None:
        self._starts += 1
        self._spawn("start", self._order.ray_command, "ray-start.log")

    def _started(self, code: int) -> None:
        if code != 0:
            _tell("failed", code=code, output=self._tail("ray-start.log"))
            return
        self._is_up = True
        _tell("ready", node_id=self._node_id, address=self._address())
        if self._order.agent_command:
            self._spawn("agent", self._order.agent_command, "agent.log")

    def _spawn(self, role: str, command: tuple[str, ...], log_name: str) -> None:
        holes = {"{node_id}": self._node_id, "{ray_dir}": self._ray_dir}
        filled = [_fill(part, holes) for part in command]
        environment = self._order.environment | {
            "RAY_OVERRIDE_NODE_ID_FOR_TESTING": self._node_id,
            "SPOTRAY_SHM_DIR": self._order.shm_dir,
            "SPOTRAY_NODE_DIR": self._order.node_dir,
            "TMPDIR": f"{self._order.node_dir}/tmp",
        }
        with open(f"{self._order.node_dir}/{log_name}", "wb") as log:
            child = subprocess.Popen(
                filled,
                env=environment,
                cwd=self._order.node_dir,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._children[child.pid] = (role, child)

    @property
    def _ray_dir(self) -> str:
        # A fresh one at each start, since the old one holds the sockets of a dead Ray.
        # Short: a socket's whole path may have 107 characters.
        return f"{self._order.node_dir}/r{self._starts}"

    def _address(self) -> str:
        return Path(self._ray_dir, "ray_current_cluster").read_text().strip()

    def _ray_is_complete(self) -> bool:
        names = [_program(pid) for pid in processes.descendants(os.getpid())]
        wanted = {_RAY_BINARIES[0]} | ({_RAY_BINARIES[1]} if self._is_head else set())
        return wanted <= set(names)

    @property
    def _is_head(self) -> bool:
        return "--head" in self._order.ray_command

    def _tail(self, log_name: str) -> str:
        text = Path(self._order.node_dir, log_name).read_text(errors="replace")
        return text[-_TAIL_CHARS:]


def _fill(text: str, holes: dict[str, str]) -> str:
    for hole, value in holes.items():
        text = text.replace(hole, value)
    return text


def _program(pid: int) -> str:
    """File name of a living process's program, empty for one that ended."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return os.path.basename(file.read().split(b"\0")[0].decode(errors="replace"))
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _tell(what: str, *, at_s: float | None = None, **facts: Any) -> None:
    record = {"what": what, "at_s": time.time() if at_s is None else at_s, **facts}
    # A lab that is gone hears nothing; that its pipe is closed is seen elsewhere.
    with suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), (json.dumps(record) + "\n").encode())


class _Lines:
    """Whole lines of a pipe, as they come."""

    def __init__(self, fd: int) -> None:
        self._fd, self._rest = fd, b""

    def read(self) -> list[bytes] | None:
        """Lines that are complete by now; None when the pipe is closed."""
        data = os.read(self._fd, 65536)
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines


def _serve(machine: _Machine, lines: _Lines, *, lab_fd: int, child_fd: int) -> None:
    with selectors.DefaultSelector() as selector:
        for fd in (sys.stdin.fileno(), lab_fd, child_fd):
            selector.register(fd, selectors.EVENT_READ)
        machine.reap()  # what ended before anybody listened
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if lab_fd in ready:
                return  # the lab is gone, however it ended
            if child_fd in ready:
                os.read(child_fd, 4096)
                machine.reap()
            if sys.stdin.fileno() in ready:
                commands = lines.read()
                if commands is None:
                    return
                if not all(machine.obey(json.loads(line)) for line in commands):
                    return


def main() -> int:
    """Run one node until the lab says "kill" or is gone."""
    child_fd, wake_fd = os.pipe()
    os.set_blocking(wake_fd, False)
    signal.set_wakeup_fd(wake_fd, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # runs the "finally" below
    processes.adopt_orphans()
    lines = _Lines(sys.stdin.fileno())
    first = lines.read()
    while first == []:
        first = lines.read()
    if first is None:
        return 1
    order = NodeOrder.from_json(first[0])
    try:
        lab_fd = os.pidfd_open(order.lab_pid)
    except ProcessLookupError:
        return 1
    if os.getppid() != order.lab_pid:  # it ended before we could watch it
        return 1
    machine = _Machine(order)
    try:
        machine.boot()
        if all(machine.obey(json.loads(line)) for line in first[1:]):
            _serve(machine, lines, lab_fd=lab_fd, child_fd=child_fd)
    finally:
        machine.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
