"""The block devices behind EBS volumes: loop devices on files of the rig."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from pathlib import Path

_BYTES = 64 * 2**20  # whatever size was asked for: it is memory here
_GET_FREE, _CONFIGURE = 0x4C82, 0x4C0A  # linux/loop.h
_AUTOCLEAR = 4
_INFO = "5Q4I64s64s32s2Q"  # struct loop_info64
_MAJOR = 7


class Volumes:
    """A device for each volume, from its first use until the rig ends, which frees them all."""

    def __init__(self, folder: Path) -> None:
        """Nothing is made yet. ``folder``: for the files; on the rig's tmpfs."""
        self._folder = folder
        self._devices: dict[str, tuple[int, int]] = {}  # volume -> device, what keeps it

    def device(self, volume: str) -> int:
        """The device's number, empty at first; for ever the same one."""
        if volume not in self._devices:
            self._folder.mkdir(exist_ok=True)
            file = os.open(self._folder / f"{volume}.img", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                os.ftruncate(file, _BYTES)
                self._devices[volume] = loop_device(file)
            finally:
                os.close(file)
        number, _ = self._devices[volume]
        return os.makedev(_MAJOR, number)


def loop_device(file: int) -> tuple[int, int]:
    """A loop device on a file, that is free again when the second number is closed."""
    info = struct.pack(_INFO, *[0] * 8, _AUTOCLEAR, b"", b"", b"", 0, 0)
    config = struct.pack("2I", file, 0) + info + bytes(64)
    control = os.open("/dev/loop-control", os.O_RDWR)
    try:
        while True:
            number = fcntl.ioctl(control, _GET_FREE)
            device = os.open(f"/dev/loop{number}", os.O_RDWR)
            try:
                fcntl.ioctl(device, _CONFIGURE, config)
            except OSError as exc:
                os.close(device)
                if exc.errno != errno.EBUSY:  # else somebody was faster
                    raise
            else:
                return number, device
    finally:
        os.close(control)
