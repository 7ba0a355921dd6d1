from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from spotray.errors import ConfigError
from spotray.launch.pack import check_script, look, pack


def fill(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        place = folder / name.replace("__", "/").replace("_", ".")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return folder


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True)


def test_a_plain_folder_goes_without_what_gitignore_names(tmp_path: Path) -> None:
    fill(tmp_path, train_py="x", data__a_bin="x", sub__deep__b_py="x", sub__c_log="x")
    (tmp_path / ".gitignore").write_text("data/\n")
    (tmp_path / "sub" / ".gitignore").write_text("*.log\n")
    assert look(tmp_path).files == (
        ".gitignore",
        "sub/.gitignore",
        "sub/deep/b.py",
        "train.py",
    )
    assert not (tmp_path / ".git").exists(), "nothing is made in the user's folder"


def test_a_repository_s_tracked_and_new_files_go(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    fill(tmp_path, kept_py="x", new_py="x", gone_py="x", out__run_log="x")
    (tmp_path / ".gitignore").write_text("out/\n")
    git(tmp_path, "add", "kept.py", "gone.py")
    (tmp_path / "gone.py").unlink()
    assert look(tmp_path).files == (".gitignore", "kept.py", "new.py")


def test_a_folder_inside_a_repository_is_relative_to_itself(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    fill(tmp_path, above_py="x", job__train_py="x")
    assert look(tmp_path / "job").files == ("train.py",)


@pytest.mark.parametrize("outer_is_one", [True, False])
def test_what_a_repository_inside_sees_goes_too(tmp_path: Path, outer_is_one: bool) -> None:
    fill(tmp_path, train_py="x", library__a_py="x", library__b_log="x")
    (tmp_path / "library" / ".gitignore").write_text("*.log\n")
    git(tmp_path / "library", "init", "-q")
    if outer_is_one:
        git(tmp_path, "init", "-q")
    (tmp_path / "circle").symlink_to(tmp_path)
    assert look(tmp_path).files == ("library/.gitignore", "library/a.py", "train.py")


def test_rayignore_hides_tracked_files_too(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    fill(tmp_path, train_py="x", big__a_bin="x", big2__b_bin="x")
    git(tmp_path, "add", "big")
    (tmp_path / ".rayignore").write_text("big/\nbig2/\n")
    assert look(tmp_path).files == (".rayignore", "train.py")


def test_equal_folders_are_equal_archives(tmp_path: Path) -> None:
    archives = []
    for number in (1, 2):
        folder = fill(tmp_path / f"w{number}", a_py="1", sub__b_py="2")
        os.utime(folder / "a.py", (number * 1e9, number * 1e9))
        archives.append(tmp_path / f"{number}.zip")
        assert pack(look(folder), archives[-1]) == archives[-1].stat().st_size
    assert archives[0].read_bytes() == archives[1].read_bytes()
    with zipfile.ZipFile(archives[0]) as packed:
        assert packed.namelist() == ["a.py", "sub/b.py"]
        assert packed.read("sub/b.py") == b"2"


def test_a_folder_that_is_too_large_is_refused_and_says_what_weighs_most(tmp_path: Path) -> None:
    fill(tmp_path, train_py="x")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "noise.bin").write_bytes(os.urandom(2 * 1024**2))
    with pytest.raises(ConfigError, match=r"larger than the 1 MiB.*most weigh data 2 MiB"):
        pack(look(tmp_path), tmp_path / "out.zip", max_bytes=1024**2)


def test_the_size_counts_files_and_bytes(tmp_path: Path) -> None:
    fill(tmp_path, a_py="12345", b_py="123")
    found = look(tmp_path)
    assert (len(found.files), found.total_bytes) == (2, 8)
    assert found.size_text == "2 files, 0.0 MiB"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("other.py", "there is no other.py"),
        ("../train.py", "outside the working folder"),
        ("/etc/passwd", "outside the working folder"),
        ("hidden.py", "ignored"),
    ],
)
def test_a_script_that_the_job_would_not_find_is_refused(
    tmp_path: Path, script: str, said: str
) -> None:
    fill(tmp_path, train_py="x", hidden_py="x")
    (tmp_path / ".gitignore").write_text("hidden.py\n")
    folder = look(tmp_path)
    check_script(folder, "./train.py")
    with pytest.raises(ConfigError, match=said):
        check_script(folder, script)


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no folder"):
        look(tmp_path / "none")
