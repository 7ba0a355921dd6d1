"""The command that mounts a data disk on its node, and what its last line says."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_SCRIPT = Path(__file__).with_name("mount.sh")
_DEVICE_S = 30  # from the cloud's "attached" until the kernel has the device: mostly under 1
_LAST = re.compile(r"^spotray-disk: (\w+)(?:: (.*?))?\s*$", re.M)


@dataclass(frozen=True, kw_only=True)
class Mounted:
    """How it went on the node."""

    is_mounted: bool
    was_formatted: bool = False  # it was empty
    why_not: str = ""  # empty too where there was no disk to mount


def mount_command(mount: str, found_at: Sequence[str], *, wait_s: int = _DEVICE_S) -> str:
    """A shell command for the user that Ray logs in as, who must be allowed ``sudo``.

    Args:
        mount: the folder.
        found_at: device files or serial numbers of the disk; empty: only make the folder.
        wait_s: how long to wait for the device.
    """
    words = ["bash", "-c", _SCRIPT.read_text(encoding="utf-8"), "mount.sh", mount]
    quoted = " ".join(shlex.quote(word) for word in words)
    rest = " ".join(shlex.quote(word) for word in (str(wait_s), *found_at))
    return f'sudo {quoted} "$(id -un)" {rest}'


def said(output: str) -> Mounted:
    """What the output of that command means."""
    lines = _LAST.findall(output)
    if not lines:
        tail = " ".join(output.split())[-200:]
        return Mounted(is_mounted=False, why_not=f"the node said: {tail}")
    word, rest = lines[-1]
    if word == "mounted":
        return Mounted(is_mounted=True, was_formatted=rest.endswith("formatted"))
    return Mounted(is_mounted=False, why_not=rest if word == "failed" else "")
