"""Which Ray node is this machine? Asked in a child process, so that no Ray stays loaded."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading

from spotray.cluster.drain import find_node_id, split_address
from spotray.errors import ClusterUnreachable, ConfigError, SpotrayError

log = logging.getLogger(__name__)

_LOOK_S = 0.05  # how often to see whether the child has ended
_NOT_YET, _NEVER = 3, 4  # the child's exit codes


def own_ip(ray_address: str) -> str:
    """The address from which this machine reaches Ray's head; nothing is sent.

    Raises:
        ClusterUnreachable: there is no way to that host.
        ConfigError: ``ray_address`` is not ``HOST:PORT``.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(split_address(ray_address))
            return str(probe.getsockname()[0])
    except OSError as exc:
        raise ClusterUnreachable(f"no way to the Ray head at {ray_address}: {exc}") from exc


def await_node_id(
    ray_address: str, node_ip: str | None, *, stop: threading.Event, poll_s: float
) -> str | None:
    """Ray's id of the node at ``node_ip`` (default: `own_ip`), once Ray has started there.

    Asks every ``poll_s`` seconds; None if ``stop`` is set first.

    Raises:
        ConfigError: asking again cannot help.
    """
    said = ""
    while not stop.is_set():
        try:
            ip = node_ip or own_ip(ray_address)
            if (node_id := _ask_in_child(ray_address, ip, stop)) is not None:
                return node_id
            words = f"no live Ray node has the address {ip}"
        except ClusterUnreachable as exc:
            words = str(exc)
        if words != said and not stop.is_set():
            log.warning("asking on: %s", words)
            said = words
        stop.wait(poll_s)
    return None


def _ask_in_child(ray_address: str, node_ip: str, stop: threading.Event) -> str | None:
    command = [sys.executable, "-m", "spotray.agent.identify", ray_address, node_ip]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        while child.poll() is None:
            if stop.wait(_LOOK_S):
                child.kill()
        out, err = child.communicate()
    words = err.strip().splitlines()[-1:] or ["no words"]
    if child.returncode == _NEVER:
        raise ConfigError(words[0])
    if child.returncode != 0:
        raise ClusterUnreachable(words[0])
    return out.strip() or None


def main(argv: list[str]) -> int:
    ray_address, node_ip = argv
    try:
        print(find_node_id(ray_address, node_ip) or "")
    except SpotrayError as exc:
        print(exc, file=sys.stderr)
        return _NEVER if isinstance(exc, ConfigError) else _NOT_YET
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
