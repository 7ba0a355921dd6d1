"""Where what is kept for a user on this machine stands: the folders of the XDG specification."""

from __future__ import annotations

import os
from collections.abc import Mapping
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
