"""`ssh`, as far as Ray's commands use it, to a machine that is a folder: no network, no root.

It runs commands with the machine's home and environment, and forwards ports on loopback.
The file ``cut`` in the folder stands for a network that is gone.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import threading
from pathlib import Path

MACHINE = Path(os.environ["FAKE_MACHINE"])
_WITH_VALUE = ("-i", "-o", "-L", "-p", "-l", "-F")


def main(words: list[str]) -> int:
    forwards, rest = [], []
    while words:
        word = words.pop(0)
        if rest or not word.startswith("-"):
            rest.append(word)
        elif word in _WITH_VALUE:
            value = words.pop(0)
            forwards += [value] if word == "-L" else []
    command = " ".join(rest[1:])
    with (MACHINE / "ssh.log").open("a") as log:
        log.write(f"{forwards} {command}\n")
    if (MACHINE / "cut").exists():
        print("ssh: connect to host: Network is unreachable", file=sys.stderr)
        return 255
    if forwards:
        local, _, remote = forwards[0].split(":")
        return forward(int(local), int(remote))
    return subprocess.run(command, shell=True, env=environment(), cwd=MACHINE / "home").returncode


def environment() -> dict[str, str]:
    home = MACHINE / "home"
    return {"HOME": str(home), "PATH": os.environ["PATH"], "FAKE_MACHINE": str(MACHINE)}


def forward(local: int, remote: int) -> int:
    """Until the network is cut."""
    server = socket.create_server(("127.0.0.1", local))
    server.settimeout(0.1)
    pairs: list[tuple[socket.socket, socket.socket]] = []
    while not (MACHINE / "cut").exists():
        try:
            here, _ = server.accept()
        except TimeoutError:
            continue
        try:
            there = socket.create_connection(("127.0.0.1", remote))
        except OSError:
            here.close()
            continue
        pairs.append((here, there))
        threading.Thread(target=_copy, args=(here, there), daemon=True).start()
    return 255


def _copy(here: socket.socket, there: socket.socket) -> None:
    other = {here: there, there: here}
    while True:
        for ready in select.select([here, there], [], [])[0]:
            try:
                data = ready.recv(65536)
                if data:
                    other[ready].sendall(data)
                    continue
            except OSError:
                data = b""
            for one in other:
                one.close()
            return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
