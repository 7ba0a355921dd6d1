from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.emulated.needs import PROGRAMS, missing, program


def test_a_missing_program_is_told_with_its_package() -> None:
    with pytest.raises(FileNotFoundError, match="apt-get install openssh-server"):
        program("sshd", path="/nowhere")


@pytest.mark.root
def test_what_is_missing_is_told_as_packages_to_install(tmp_path: Path) -> None:
    (tmp_path / "ip").symlink_to("/bin/true")
    words = missing(path=str(tmp_path))
    packages = set(words.removeprefix("needs apt-get install ").split())
    assert {"openssh-client", "openssh-server", "rsync"} < packages
    assert "iproute2" not in packages


@pytest.mark.root
def test_rights_that_are_missing_are_told(tmp_path: Path) -> None:
    for name in PROGRAMS:
        if name != "unshare":
            (tmp_path / name).symlink_to("/bin/true")
    refusing = tmp_path / "unshare"
    refusing.write_text("#!/bin/sh\necho unshare failed: Operation not permitted >&2; exit 1\n")
    refusing.chmod(0o755)
    words = missing(path=f"{tmp_path}{os.pathsep}/bin")
    assert words == "needs the right to make namespaces: unshare failed: Operation not permitted"
