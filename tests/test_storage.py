"""Addresses of stores, and what only a local disk can do wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from spotray.errors import ConfigError
from spotray.storage import Store


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "is empty"),
        ("ftp://host/path", "ftp://host/path"),
        ("s3:///path", "names no bucket"),
    ],
)
def test_a_wrong_address_is_told_with_its_value(url: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        Store.at(url)
    assert "\n" not in str(caught.value)


def test_a_scheme_beside_a_filesystem_is_refused() -> None:
    with pytest.raises(ConfigError, match="explicit filesystem"):
        Store.at("s3://bucket/x", filesystem=pafs.LocalFileSystem())


def test_a_wrong_endpoint_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "localhost:9000")
    with pytest.raises(ConfigError, match="localhost:9000"):
        Store.at("s3://bucket/x")


def test_local_addresses_lead_to_one_folder(tmp_path: Path) -> None:
    Store.at(tmp_path / "a b").write("x", b"1")
    assert Store.at(f"file://{tmp_path}/a%20b").read("x") == b"1"
    assert Store.at(os.path.relpath(tmp_path / "a b")).url == str(tmp_path / "a b")


def test_a_folder_that_cannot_be_made_is_told_with_the_cure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ConfigError, match="give a folder that this user may write") as caught:
        Store.at(tmp_path / "file" / "run").check_writable()
    assert str(tmp_path / "file" / "run") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unfinished_files_of_a_crash_are_not_listed(tmp_path: Path) -> None:
    store = Store.at(tmp_path)
    store.write("done", b"1")
    (tmp_path / ".done.0123.tmp").write_bytes(b"half")
    assert store.list() == [("done", 1)]


def test_the_query_of_a_url_stays_at_its_end() -> None:
    store = Store(pafs.LocalFileSystem(), "/b/runs", url="s3://b/runs?region=eu-west-1")
    assert store.child("x", "y").url == "s3://b/runs/x/y?region=eu-west-1"
    assert store.child("x", "y").root == "/b/runs/x/y"
