from __future__ import annotations

import os
from pathlib import Path

import pytest

from spotray.folders import write_whole


def test_a_file_and_its_folders_are_for_the_user_s_eyes_only(tmp_path: Path) -> None:
    file = tmp_path / "new" / "kept.json"
    write_whole(file, "é\n")
    assert file.read_bytes() == "é\n".encode()
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o077 == 0


def test_a_write_that_fails_leaves_the_old_text_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "kept.json"
    write_whole(file, "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(file, "new" * 100_000 + "\udc80")  # which UTF-8 does not have
    assert file.read_text() == "old"
    assert os.listdir(tmp_path) == ["kept.json"]


def test_what_stands_in_the_way_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "kept.json").mkdir()
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path / "kept.json", "text")
    assert os.listdir(tmp_path) == ["kept.json"]


def test_a_reader_of_the_old_file_goes_on_with_it(tmp_path: Path) -> None:
    file = tmp_path / "kept.json"
    write_whole(file, "old")
    with open(file, encoding="utf-8") as reader:
        write_whole(file, "new")
        assert reader.read() == "old"
    assert file.read_text() == "new"
