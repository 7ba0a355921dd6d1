from __future__ import annotations

import dataclasses
import json
import stat
from pathlib import Path

import pytest

from spotray.errors import ConfigError
from spotray.launch.records import Launch, Records, spec_diff

ONE = Launch(
    name="train-1",
    cluster_name="c",
    cluster_file="/w/c.yaml",
    submission_id="train-1-ab",
    command=("train.py", "--lr", "1"),
    workdir="/w",
    created_at_s=100.0,
    env_names=("KEY",),
    wandb_run_id="train-1-cd",
)


def test_another_shell_reads_what_one_wrote(tmp_path: Path) -> None:
    Records(tmp_path).save(ONE)
    ended = dataclasses.replace(ONE, state="failed", exit_code=3, ended_at_s=200.0)
    Records(tmp_path).save(ended)
    assert Records(tmp_path).need("train-1") == ended
    assert [one.name for one in Records(tmp_path).all()] == ["train-1"]
    assert [file.name for file in (tmp_path / "launches").iterdir()] == ["train-1.json"]


def test_only_the_user_may_read_it(tmp_path: Path) -> None:
    Records(tmp_path).save(ONE)
    mode = (tmp_path / "launches" / "train-1.json").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600


def test_what_a_newer_version_wrote_is_read(tmp_path: Path) -> None:
    Records(tmp_path).save(ONE)
    file = tmp_path / "launches" / "train-1.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"later": 1}))
    assert Records(tmp_path).get("train-1") == ONE


@pytest.mark.parametrize("text", ["", "[]", '{"name": "train-1"}'])
def test_a_damaged_file_is_named_and_does_not_hide_the_others(tmp_path: Path, text: str) -> None:
    records = Records(tmp_path)
    records.save(dataclasses.replace(ONE, name="other"))
    (tmp_path / "launches" / "train-1.json").write_text(text)
    with pytest.raises(ConfigError, match="train-1.json is damaged"):
        records.get("train-1")
    assert [one.name for one in records.all()] == ["other"]


def test_an_unknown_name_is_refused_with_the_nearest(tmp_path: Path) -> None:
    records = Records(tmp_path)
    with pytest.raises(ConfigError, match="spotray jobs"):
        records.need("train-1")
    records.save(ONE)
    with pytest.raises(ConfigError, match=r"did you mean train-1\?"):
        records.need("tran-1")
    assert records.get("../launches/train-1") is None


def test_a_free_name_counts_on_and_has_no_odd_characters(tmp_path: Path) -> None:
    records = Records(tmp_path)
    assert records.free_name("my train!") == "my-train-1"
    records.save(dataclasses.replace(ONE, name="my-train-1"))
    assert records.free_name("my train!") == "my-train-2"


def test_specs_differ_in_what_they_say_only() -> None:
    before = "cluster_name: c\nmax_workers: 2\n"
    assert spec_diff(before, "# a comment\nmax_workers: 2\ncluster_name: 'c'\n") == []
    lines = spec_diff(before, "cluster_name: c\nmax_workers: 4\n")
    assert "-max_workers: 2" in lines
    assert "+max_workers: 4" in lines


def test_a_cluster_s_spec_is_kept_as_it_was(tmp_path: Path) -> None:
    records = Records(tmp_path)
    assert records.spec("c") is None
    records.save_spec("c", "# mine\ncluster_name: c\n")
    assert Records(tmp_path).spec("c") == "# mine\ncluster_name: c\n"
