"""What an emulated cloud needs of this machine, and what of it is missing."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile

from tests.emulated.volumes import loop_device

PROGRAMS = {  # program -> the Debian package it is in
    "ip": "iproute2",
    "mkfs.ext4": "e2fsprogs",
    "nsenter": "util-linux",
    "rsync": "rsync",
    "setpriv": "util-linux",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "sshd": "openssh-server",
    "unshare": "util-linux",
}
_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def program(name: str, *, path: str = _PATH) -> str:
    """Where a program is, also one for root.

    Raises:
        FileNotFoundError: there is none.
    """
    found = shutil.which(name, path=path)
    if found is None:
        raise FileNotFoundError(f"{name} is missing: apt-get install {PROGRAMS[name]}")
    return found


@functools.cache
def missing(*, path: str = _PATH) -> str:
    """What is missing, in a few words; empty if an emulated cloud can run here."""
    if os.geteuid() != 0:
        return "needs root"
    packages = {of for name, of in PROGRAMS.items() if shutil.which(name, path=path) is None}
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
        env=os.environ | {"PATH": path},
    )
    if tried.returncode:
        words = tried.stderr.strip().splitlines() or ["no words"]
        return f"needs the right to make namespaces: {words[-1]}"
    return ""


@functools.cache
def missing_for_volumes() -> str:
    """What volumes need besides, tried as the rig and an instance do it; empty if nothing."""
    with tempfile.TemporaryFile() as file:
        file.truncate(16 * 2**20)
        try:
            number, device = loop_device(file.fileno())
        except OSError as exc:
            return f"needs loop devices: {exc}"
        try:
            tried = subprocess.run(
                ["unshare", "--mount", "sh", "-ec", 'mkfs.ext4 -q "$0" && mount "$0" /mnt']
                + [f"/dev/loop{number}"],
                capture_output=True,
                text=True,
                env=os.environ | {"PATH": _PATH},
            )
        finally:
            os.close(device)
    if tried.returncode:
        words = tried.stderr.strip().splitlines() or ["no words"]
        return f"needs the right to mount a loop device: {words[-1]}"
    return ""
