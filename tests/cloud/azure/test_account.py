from __future__ import annotations

from pathlib import Path

import pytest

from spotray.cloud.azure.account import flaws, is_installed
from spotray.cluster.preflight import check


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder with programs."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def az(path: Path, *lines: str) -> None:
    program = path / "az"
    program.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    program.chmod(0o755)


def everything(package: str) -> bool:
    return True


def test_who_is_signed_in_and_has_all_packages_may_go_on(path: Path) -> None:
    az(path, '[ "$1 $2" = "account show" ]')
    assert list(flaws(has=everything)) == []


def test_who_is_not_signed_in_is_told_in_azure_s_words(path: Path) -> None:
    az(path, "echo \"ERROR: Please run 'az login'\" >&2", "exit 1")
    ((what, cure),) = flaws(has=everything)
    assert what == "no credentials that Azure takes: ERROR: Please run 'az login'"
    assert "az login" in cure


def test_a_missing_command_line_is_told(path: Path) -> None:
    ((what, cure),) = flaws(has=everything)
    assert "no `az` here" in what
    assert "install" in cure


def test_missing_packages_are_told_all_at_once(path: Path) -> None:
    az(path, "exit 0")
    ((what, cure),) = flaws(has=lambda package: package == "azure.common")
    assert "azure.identity, azure.mgmt.compute, azure.mgmt.network, azure.mgmt.resource" in what
    assert "spotray[azure]" in cure


def test_what_is_installed_is_found_without_an_import() -> None:
    assert is_installed("spotray.cloud.azure")
    assert not is_installed("spotray.none.such")


def test_a_launch_on_azure_is_refused_before_anything_is_asked(path: Path) -> None:
    config = {"cluster_name": "c", "provider": {"type": "azure", "location": "eastus"}}
    problems = check(config)
    wrong = [one for one in problems if not one.is_warning]
    assert any("no `az` here" in one.what for one in wrong)
    assert problems[-1].is_warning, "and that the rest was not looked at is said"
