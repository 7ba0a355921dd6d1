"""Whether this machine can ask Azure at all: what Ray's provider needs, and who is signed in."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from importlib.util import find_spec

_PACKAGES = (
    "azure.common",
    "azure.identity",
    "azure.mgmt.compute",
    "azure.mgmt.network",
    "azure.mgmt.resource",
)
_AZ_S = 30.0  # it starts a Python of its own


def is_installed(package: str) -> bool:
    """Whether a package could be imported; nothing of it is."""
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # nor the one that it is part of
        return False


def flaws(*, has: Callable[[str], bool] = is_installed) -> Iterator[tuple[str, str]]:
    """What keeps `ray up` from Azure, each with its cure.

    Ray takes the login of Azure's command line, and nothing else, where a cluster is launched.

    Args:
        has: whether a package is installed.
    """
    if missing := [one for one in _PACKAGES if not has(one)]:
        what = f"Ray's provider for Azure needs what is not installed: {', '.join(missing)}"
        yield what, "pip install 'spotray[azure]' -c constraints.txt"
    az = shutil.which("az")
    if az is None:
        what = "there is no `az` here, whose login Ray takes"
        yield what, "install Azure's command line, and say `az login`"
        return
    try:
        shown = subprocess.run(
            [az, "account", "show", "--output", "none"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_AZ_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        yield f"`az account show` does not answer: {exc}", "say it yourself, and `az login`"
        return
    if shown.returncode:
        said = " ".join(shown.stderr.split())[:200] or f"it ended with {shown.returncode}"
        yield f"no credentials that Azure takes: {said}", "say `az login`"
