"""What an emulated cloud needs of this machine, and what of it is missing."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess

_PROGRAMS = {  # program -> the Debian package it is in
    "ip": "iproute2",
    "nsenter": "util-linux",
    "rsync": "rsync",
    "setpriv": "util-linux",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "sshd": "openssh-server",
    "unshare": "util-linux",
}
_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def program(name: str) -> str:
    """The path of a program, also of one for root.

    Raises:
        FileNotFoundError: there is none.
    """
    path = shutil.which(name, path=_PATH)
    if path is None:
        raise FileNotFoundError(f"{name} is missing: install {_PROGRAMS[name]}")
    return path


@functools.cache
def missing() -> str:
    """What is missing, in a few words; empty if an emulated cloud can run here."""
    if os.geteuid() != 0:
        return "needs root"
    packages = {of for name, of in _PROGRAMS.items() if shutil.which(name, path=_PATH) is None}
    if packages:
        return f"needs apt-get install {' '.join(sorted(packages))}"
    # As the rig does it: in a container without the rights, this is where it ends.
    tried = subprocess.run(
        [
            *("unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--mount-proc"),
            *("sh", "-c", "mount -t tmpfs none /mnt && ip link add br0 type bridge"),
        ],
        capture_output=True,
        text=True,
        env=os.environ | {"PATH": _PATH},
    )
    if tried.returncode:
        return f"needs the right to make namespaces: {tried.stderr.strip().splitlines()[-1:]}"
    return ""
