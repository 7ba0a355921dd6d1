"""`spotray cluster` writes files, checks them, and says in its exit code what it found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from spotray.cli.main import main
from spotray.cluster.presets import preset

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_words_become_a_file(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    words = ["aws", "g5", "spot", "--storage", "s3://runs/vit", "--workers", "2"]
    assert main(["cluster", "new", *words, "-o", str(file)]) == 0
    text = file.read_text()
    made_by = f"spotray cluster new aws-g5-spot --storage s3://runs/vit --workers 2 -o {file}"
    assert text.startswith(f"# Rendered by: {made_by}\n")
    config = yaml.safe_load(text)
    assert config["max_workers"] == 3  # two, and one that takes another one's place
    assert "s3://runs/vit/clusters/aws-g5-spot" in str(config["setup_commands"])


def test_the_first_line_of_a_file_makes_it_again(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    command = ["cluster", "new", "gcp-l4-spot", "--project", "p", "-o", str(file)]
    assert main(command) == 0
    before = file.read_text()
    again = before.splitlines()[0].removeprefix("# Rendered by: spotray ").split()
    assert main(again) == 0
    assert file.read_text() == before


def test_another_region_brings_its_own_zones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "new", "aws-g6-spot", "--region", "us-east-2"]) == 0
    provider = yaml.safe_load(capsys.readouterr().out)["provider"]
    assert provider["availability_zone"] == "us-east-2a,us-east-2b,us-east-2c"


def test_a_spec_goes_out_as_toml_and_comes_in_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cluster", "new", "aws-mixed", "--toml"]) == 0
    file = tmp_path / "spec.toml"
    file.write_text(capsys.readouterr().out)
    assert main(["cluster", "new", "--spec", str(file)]) == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert config["cluster_name"] == preset("aws-mixed").name


def test_a_wrong_spec_is_told_line_by_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "spec.toml"
    file.write_text(preset("aws-g5-spot").to_toml().replace("region", "regoin"))
    assert main(["cluster", "new", "--spec", str(file)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert any("regoin" in line and "did you mean region?" in line for line in lines)
    assert all(line.startswith(f"{file}: ") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "aws-g5-spot"),
        (["aws", "g7"], "aws-g5-spot"),
        (["aws-g5-spot", "--spec", "x"], "--spec"),
        (["--spec", "/no/such/file"], "/no/such/file"),
        (["aws-g5-spot", "--workers", "0"], "max_workers"),
        (["aws-g5-spot", "--storage", "runs"], "s3://BUCKET/PATH"),
    ],
)
def test_what_cannot_be_made_is_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cluster", "new", *arguments]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert said in line


def test_a_file_of_somebodys_own_is_not_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("cluster_name: mine\n")
    assert main(["cluster", "new", "aws-g5-spot", "-o", str(file)]) == 1
    assert "was not rendered" in capsys.readouterr().err
    assert file.read_text() == "cluster_name: mine\n"


def test_outside_of_a_checkout_the_nodes_get_that_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["cluster", "new", "aws-g5-spot"]) == 0
    mounts = yaml.safe_load(capsys.readouterr().out)["file_mounts"]
    assert mounts["/home/ubuntu/spotray/spotray"] == f"{ROOT}/spotray"


def test_right_files_end_in_0_and_a_wrong_one_in_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = ROOT / "cluster-configs/aws-g5-spot.yaml"
    bad = tmp_path / "bad.yaml"
    bad.write_text(good.read_text().replace("head_node_type: head", "head_node_type: haed"))
    assert main(["cluster", "validate", "--quick", str(good)]) == 0
    out = capsys.readouterr().out
    assert f"{good}: fine" in out
    assert f"{good}: warning: (file): my-bucket" in out
    assert main(["cluster", "validate", "--quick", str(good), str(bad)]) == 1
    out = capsys.readouterr().out
    assert f"{bad}: head_node_type: 'haed' is none of" in out
    assert f"{bad}: fine" not in out


def test_json_has_every_problem_with_its_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("provider: {type: aws, regoin: x}\n")
    assert main(["cluster", "validate", "--json", "--quick", str(bad)]) == 1
    (verdict,) = json.loads(capsys.readouterr().out)
    assert verdict["is_wrong"] is True
    found = {one["path"]: one for one in verdict["problems"]}
    assert found["provider.regoin"]["cure"] == "did you mean region?"
    assert found["provider.regoin"]["is_warning"] is False


def test_a_file_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "validate", "/no/such/file"]) == 1
    assert "/no/such/file" in capsys.readouterr().err


def test_preparing_for_another_cloud_says_that_nothing_is_to_be_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["cluster", "prepare", "cluster-configs/gcp-l4-spot.yaml"]) == 1
    assert "only clusters on AWS" in capsys.readouterr().err
