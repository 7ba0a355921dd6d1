"""The ``data_disk`` of a worker type in ``provider.markets``, checked.

::

    provider:
      markets:
        gpu:
          data_disk:
            size_gb: 200
            type: gp3                # default; on GCP pd-balanced
            mount: /data             # default
            keep_hours: 24           # default: unused for longer, it is deleted
            keep_after_down: false   # default: `ray down` deletes the cluster's disks
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from spotray.cluster.problems import Problem, unknown_key

MOUNT = "/data"
# Each a type that one node at a time can write to; the first is the default.
TYPES: Mapping[str, tuple[str, ...]] = {
    "aws": ("gp3", "gp2", "io1", "io2", "st1", "sc1"),
    "gcp": ("pd-balanced", "pd-ssd", "pd-standard", "hyperdisk-balanced"),
}
_SMALLEST_GB = {"st1": 125, "sc1": 125, "hyperdisk-balanced": 4}
_NEEDS_IOPS = ("io1", "io2")
_MOST_GB = 16_384
_MOUNT = re.compile(r"(/[A-Za-z0-9_][A-Za-z0-9._-]*)+")
_SYSTEM = frozenset(
    "bin boot dev etc home lib lib64 opt proc root run sbin sys tmp usr var".split()  # noqa: SIM905
)


@dataclass(frozen=True, kw_only=True)
class DataDisk:
    """What every worker of a type gets beside its boot disk."""

    size_gb: int  # GiB, which the clouds call GB in their price lists
    type: str
    mount: str = MOUNT
    keep_hours: float = 24.0
    keep_after_down: bool = False

    @classmethod
    def of(cls, given: Mapping[str, Any], *, cloud: str) -> DataDisk:
        """The disk of a ``data_disk:`` in which `check_data_disk` found nothing wrong."""
        return cls(**{"type": TYPES[cloud][0], **given})


def check_data_disk(path: str, given: Any, *, cloud: str) -> Iterator[Problem]:
    """What is wrong in a ``data_disk:``."""
    if not isinstance(given, Mapping):
        cure = "write {size_gb: 200, mount: /data}"
        yield Problem(path=path, what=f"{given!r} is no map", cure=cure)
        return
    known = [one.name for one in dataclasses.fields(DataDisk)]
    yield from (unknown_key(path, str(key), known) for key in given if key not in known)
    kind = given.get("type", TYPES[cloud][0])
    if kind not in TYPES[cloud]:
        yield Problem(
            path=f"{path}.type", what=f"{kind!r}", cure=f"write one of {', '.join(TYPES[cloud])}"
        )
    elif kind in _NEEDS_IOPS:
        cure = "take gp3: a data set is read from the page cache after its first epoch"
        yield Problem(path=f"{path}.type", what=f"{kind} is paid by IOPS as well", cure=cure)
    size, least = given.get("size_gb"), _SMALLEST_GB.get(str(kind), 10)
    if not isinstance(size, int) or isinstance(size, bool) or not least <= size <= _MOST_GB:
        what = "is missing" if size is None else f"{size!r}"
        cure = f"give a whole number from {least} to {_MOST_GB}"
        yield Problem(path=f"{path}.size_gb", what=what, cure=cure)
    yield from check_mount(f"{path}.mount", given.get("mount", MOUNT))
    hours = given.get("keep_hours", 1.0)
    if not isinstance(hours, int | float) or isinstance(hours, bool) or not 0 < hours < math.inf:
        yield Problem(path=f"{path}.keep_hours", what=f"{hours!r}", cure="give hours above 0")
    if not isinstance(given.get("keep_after_down", False), bool):
        what = f"{given['keep_after_down']!r}"
        yield Problem(path=f"{path}.keep_after_down", what=what, cure="write true or false")


def check_mount(path: str, mount: Any) -> Iterator[Problem]:
    """What is wrong with a folder to mount a disk at."""
    if not isinstance(mount, str) or not _MOUNT.fullmatch(mount):
        yield Problem(path=path, what=f"{mount!r} is no folder", cure=f"write one as {MOUNT}")
    elif (top := mount.split("/")[1]) in _SYSTEM:
        yield Problem(
            path=path, what=f"{mount} would hide what the system has in /{top}", cure="write /data"
        )
