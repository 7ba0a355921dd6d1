"""`Cloud`: an emulated AWS account, from the side of who uses it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

from tests.emulated.needs import program

CHECKOUT = Path(__file__).parents[2]
ENDPOINT = "http://172.31.0.1:5000"  # of the API, as machines reach it
_T = TypeVar("_T")


class Cloud:
    """One emulated cloud, and a laptop beside it that reaches nothing else.

    Use `cloud`, which ends it.
    """

    def __init__(self, log: IO[str]) -> None:
        """``log``: takes what the rig prints."""
        self._log = log
        self._told: list[dict[str, Any]] = []
        self._calls: list[dict[str, Any]] = []
        self._process = subprocess.Popen(
            [
                # If this process dies, however, so does the rig.
                *(program("setpriv"), "--pdeathsig", "KILL"),
                *(program("unshare"), "--net", "--mount", "--pid", "--uts", "--ipc"),
                *("--fork", "--kill-child", "--mount-proc"),
                *(sys.executable, "-m", "tests.emulated.rig", str(CHECKOUT)),
            ],
            cwd=CHECKOUT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        self._laptop_pid = self._answer()["laptop"]

    @property
    def rig_pid(self) -> int:
        """Of the rig, as this process sees it."""
        pid = self._process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def close(self) -> None:
        """End the cloud: all processes, networks, mounts and files in it."""
        self._process.kill()
        self._process.communicate()

    # -- the rig ---------------------------------------------------------------

    def do(self, what: str, **arguments: Any) -> Any:
        """One of the rig's commands; see `tests.emulated.rig.Rig`."""
        assert self._process.stdin is not None
        print(json.dumps({"do": what, **arguments}), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the rig has ended:\n{self.log_text()}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"in the rig: {answer['error']}")
        return answer["result"]

    def log_text(self) -> str:
        """What the rig printed."""
        self._log.seek(0)
        return self._log.read()

    def workers(self, **like: Any) -> list[dict[str, Any]]:
        """The workers' instances that run, and are like that."""
        return [
            one
            for one in self.instances(**like)
            if one["tags"].get("ray-node-type") == "worker" and one["runs"]
        ]

    def instances(self, **like: Any) -> list[dict[str, Any]]:
        """All instances, also those that ended, that are like that."""
        return [one for one in self.do("instances") if one.items() >= like.items()]

    def told(self) -> list[dict[str, Any]]:
        """All that machines told the rig, each with ``at_s``."""
        self._told += self.do("told", since=len(self._told))
        return list(self._told)

    def calls(self) -> list[dict[str, Any]]:
        """The API's log; see `tests.emulated.ec2.Call`."""
        self._calls += self.do("calls", since=len(self._calls))
        return list(self._calls)

    def launches(self) -> list[dict[str, Any]]:
        """The calls of RunInstances."""
        return [one for one in self.calls() if one["action"] == "RunInstances"]

    # -- the laptop ------------------------------------------------------------

    def start(
        self, *command: str, environment: Mapping[str, str] | None = None, **popen: Any
    ) -> subprocess.Popen[str]:
        """Start a command on the laptop, in the checkout."""
        env = {
            "HOME": "/root",
            "PATH": f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "PYTHONPATH": str(CHECKOUT),
            "AWS_ENDPOINT_URL": ENDPOINT,
            "AWS_ACCESS_KEY_ID": "laptop",
            "AWS_SECRET_ACCESS_KEY": "laptop",
            "AWS_DEFAULT_REGION": "us-west-2",
            "RAY_USAGE_STATS_ENABLED": "0",
            "LC_ALL": "C.UTF-8",
            **(environment or {}),
        }
        inside = "nsenter --mount --net --pid --uts --ipc --root"
        return subprocess.Popen(
            [
                *(program("nsenter"), f"--target={self.rig_pid}", "--mount", "--pid", "--"),
                *(*inside.split(), f"--target={self._laptop_pid}", f"--wdns={CHECKOUT}", "--"),
                *command,
            ],
            env=env,
            text=True,
            stdin=subprocess.DEVNULL,
            **popen,
        )

    def run(self, *command: str, timeout_s: float = 120.0, **start: Any) -> str:
        """Run a command on the laptop to its end, and give what it printed.

        Raises:
            AssertionError: it failed, or took longer; with what it printed.
        """
        process = self.start(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **start)
        try:
            printed, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            printed, _ = process.communicate()
            raise AssertionError(f"{command} took over {timeout_s} s:\n{printed}") from None
        assert process.returncode == 0, f"{command}: {process.returncode}\n{printed}"
        return printed


def wait_for(
    look: Callable[[], _T],
    what: str,
    *,
    timeout_s: float = 120.0,
    every_s: float = 0.2,
    tells: Callable[[], str] = str,
) -> _T:
    """The first answer of ``look`` that is true.

    Raises:
        AssertionError: there is none in time; with what ``tells`` answers then.
    """
    end_s = time.monotonic() + timeout_s
    while not (found := look()):
        assert time.monotonic() < end_s, f"not in {timeout_s:.0f} s: {what}\n{tells()}"
        time.sleep(every_s)
    return found


@contextmanager
def emulated_cloud() -> Iterator[Cloud]:
    """A cloud that is gone, without a trace, at the end."""
    with tempfile.TemporaryFile("w+") as log:
        made = Cloud(log)
        try:
            yield made
        finally:
            made.close()
