"""The way to a cluster: up, down, a command on its head, a port of its head on this machine.

`RayCommands` is Ray's own command line, as one would type it: ``ray up``, ``ray exec``,
``ray dashboard``, ``ray down``. Each runs as a process of its own, which can be ended.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import yaml

from spotray.clock import Clock, SystemClock
from spotray.errors import ClusterUnreachable, LaunchError

RAY = (sys.executable, "-m", "ray.scripts.scripts")
_TOKEN = re.compile(r"spotray-token:([0-9A-Za-z_-]*)\|")
# Broken up in the command, so that a shell that echoes it does not look like its answer.
_SAY_TOKEN = "echo spotray-'token:'$(cat ~/.ray/auth_token 2>/dev/null)'|'"
_CONFIG = re.compile(r"spotray-config:([0-9A-Za-z+/=]*)\|")
_SAY_CONFIG = "echo spotray-'config:'$(base64 -w 0 ~/ray_bootstrap_config.yaml 2>/dev/null)'|'"
_NO_HEAD = re.compile(r"head node .*not found", re.IGNORECASE | re.DOTALL)
_TUNNEL_S = 60.0  # SSH may have to wait for a slow head
_GRACE_S = 5.0
_INTERRUPTED = 130


class Tunnel(Protocol):
    """The head's dashboard, and with it its job server, on a port of this machine."""

    @property
    def url(self) -> str:
        """As ``http://127.0.0.1:PORT``."""
        ...

    def is_open(self) -> bool:
        """False once it is known to be broken."""
        ...

    def close(self) -> None:
        """Let go of it; twice is no error."""
        ...


class Remote(Protocol):
    """One cluster, which need not be there."""

    def head(self) -> str | None:
        """The head's address; None if the cloud says that there is none.

        Raises:
            ClusterUnreachable: nobody could be asked.
        """
        ...

    def up(self) -> None:
        """Bring the cluster up, or repair it.

        Raises:
            LaunchError: it did not come up.
        """
        ...

    def down(self) -> None:
        """Take it down.

        Raises:
            LaunchError: something may still run.
        """
        ...

    def token(self) -> str:
        """What the head's job server wants to be told; empty if it wants nothing.

        Raises:
            ClusterUnreachable: the head does not answer.
        """
        ...

    def config(self) -> Mapping[str, Any] | None:
        """What `ray up` left on the head of the cluster's spec; None if there is no such thing.

        Raises:
            ClusterUnreachable: the head does not answer.
        """
        ...

    def tunnel(self) -> Tunnel:
        """A way to the head's job server.

        Raises:
            ClusterUnreachable: there is none now.
        """
        ...


class RayCommands:
    """A cluster through Ray's command line."""

    def __init__(
        self,
        file: Path,
        *,
        ray: Sequence[str] = RAY,
        dashboard_port: int = 8265,
        clock: Clock | None = None,
    ) -> None:
        """Nothing is run yet.

        Args:
            file: the cluster's YAML.
            dashboard_port: of the dashboard on the head.
        """
        self._file, self._ray, self._port = str(file), tuple(ray), dashboard_port
        self._clock = clock or SystemClock()

    def head(self) -> str | None:
        done = self._run("get-head-ip", self._file)
        if done.returncode == 0 and done.stdout.split():
            return done.stdout.split()[-1]
        said = done.stdout + done.stderr
        if _NO_HEAD.search(said):
            return None
        raise ClusterUnreachable(f"`ray get-head-ip` failed: {_last_line(said)}")

    def up(self) -> None:
        if code := self._shown("up", "-y", self._file):
            raise LaunchError(f"`ray up` ended with {code}: what it said above is why")

    def down(self) -> None:
        if code := self._shown("down", "-y", self._file):
            raise LaunchError(
                f"`ray down` ended with {code}, and nodes may still be paid for: try "
                f"`ray down {self._file}`, and look into the cloud's console"
            )

    def token(self) -> str:
        return self._answer(_SAY_TOKEN, _TOKEN)

    def config(self) -> Mapping[str, Any] | None:
        told = base64.b64decode(self._answer(_SAY_CONFIG, _CONFIG))
        try:
            config = yaml.safe_load(told)
        except yaml.YAMLError:  # `ray up` is writing it just now, perhaps
            return None
        return config if isinstance(config, dict) else None

    def _answer(self, command: str, form: re.Pattern[str]) -> str:
        """What a command on the head says, in the form by which it is known."""
        done = self._run("exec", self._file, command)
        if found := form.search(done.stdout):
            return found[1]
        said = done.stdout + done.stderr
        raise ClusterUnreachable(f"no command can be run on the head: {_last_line(said)}")

    def tunnel(self) -> Tunnel:
        return _Forward(
            (*self._ray, "dashboard", self._file, "--remote-port", str(self._port)),
            clock=self._clock,
        )

    def _run(self, *arguments: str) -> _Said:
        # Into files: SSH leaves a process behind for the next command, which would hold a
        # pipe open for seconds.
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            code = subprocess.run(
                [*self._ray, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=_environment(),
                check=False,
            ).returncode
            return _Said(code, _text_of(out), _text_of(err))

    def _shown(self, *arguments: str) -> int:
        """Run it before the user's eyes: on stderr, for stdout is the job's."""
        return subprocess.run(
            [*self._ray, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            env=_environment(),
            check=False,
        ).returncode


def run_on_terminal(*arguments: str, ray: Sequence[str] = RAY) -> int:
    """Run one of Ray's commands as its user would, questions included; its exit code.

    A Ctrl-C reaches it from the terminal as well: its end is waited for. A signal to this
    process alone is handed on.
    """
    process = subprocess.Popen([*ray, *arguments], env=_environment())
    try:
        code = process.wait()
    except BaseException as exc:
        try:
            code = process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            code = process.wait()
        if not isinstance(exc, KeyboardInterrupt):
            raise
        return _INTERRUPTED
    return code if code >= 0 else 128 - code  # as a shell says of a signal


@dataclass(frozen=True)
class _Said:
    """How a command ended, and what it said."""

    returncode: int
    stdout: str
    stderr: str


def _text_of(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


class _Forward:
    """``ray dashboard``, which is SSH with ``-L``, in a session of its own."""

    def __init__(self, command: Sequence[str], *, clock: Clock) -> None:
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        handle, self._said = tempfile.mkstemp(prefix="spotray-")
        self._process = subprocess.Popen(
            [*command, "--port", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=handle,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # SSH goes with it, and a Ctrl-C does not reach it
            env=_environment(),
        )
        os.close(handle)
        try:
            give_up_s = clock.now_s() + _TUNNEL_S
            while not _answers(self.url):
                if self._process.poll() is not None or clock.now_s() >= give_up_s:
                    raise ClusterUnreachable(f"no way to the head: {_last_line(self._words())}")
                clock.sleep(0.2)
        except BaseException:
            self.close()
            raise

    def is_open(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, sign)
            try:
                self._process.wait(_GRACE_S)
                break
            except subprocess.TimeoutExpired:
                continue
        Path(self._said).unlink(missing_ok=True)

    def _words(self) -> str:
        return Path(self._said).read_text(errors="replace")


def _environment() -> dict[str, str]:
    """This process's own, without what leads Ray to another cluster."""
    kept = {
        k: v for k, v in os.environ.items() if k not in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")
    }
    return kept | {"PYTHONUNBUFFERED": "1"}


def _answers(url: str) -> bool:
    """Whether an HTTP server is there, whatever it says."""
    try:
        with urllib.request.urlopen(f"{url}/api/version", timeout=5.0):
            return True
    except urllib.error.HTTPError:
        return True  # it wants a token
    except (OSError, ValueError):  # refused, reset, timed out; or cut off in the middle
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _last_line(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"
