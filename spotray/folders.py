"""What is kept on this machine: where, by the XDG specification, and how it is written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_HOMES = {"cache": ("XDG_CACHE_HOME", ".cache"), "data": ("XDG_DATA_HOME", ".local/share")}


def user_folder(kind: str, environ: Mapping[str, str] = os.environ) -> Path:
    """spotray's folder for what can be had again (``cache``) or cannot (``data``).

    It is not created. A relative path in the variable counts for nothing, as the
    specification has it.

    >>> user_folder("cache", {"XDG_CACHE_HOME": "/tmp/cache"})
    PosixPath('/tmp/cache/spotray')
    """
    variable, default = _HOMES[kind]
    given = Path(environ.get(variable, ""))
    home = given if given.is_absolute() else Path(environ.get("HOME") or Path.home()) / default
    return home / "spotray"


def write_whole(path: Path, text: str) -> None:
    """Write a file, for this user's eyes only; a reader finds the old text or all of the new.

    Folders that are missing are made. A write that fails leaves nothing behind.

    Raises:
        OSError: it cannot be written; the old file stands.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        with suppress(OSError):  # the error of the write is the one to tell
            os.unlink(unfinished)
        raise
