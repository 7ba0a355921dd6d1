"""``spotray prices``: what is for sale, in a table and as JSON, and on bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spotray.cli.main import main

HEAD = "cloud,region,instance_type,kind,usd_low,usd_high\n"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_it_lists_what_fits_cheapest_first_and_says_where_the_prices_are_from(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["prices", "--cloud", "aws", "--gpu", "A10G", "--region", "us-east-1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split()[:3] == ["g5.xlarge", "1", "A10G"]
    assert any(line.split()[0] == "g5.12xlarge" and "EFA" in line for line in lines)
    assert lines[-1].startswith("from  skypilot-catalog")


def test_json_has_both_prices_and_what_the_machine_has(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["prices", "--cloud", "gcp", "--gpu", "L4", "--gpus", "4", "--market", "spot", "--json"]
    assert main(words) == 0
    told = json.loads(capsys.readouterr().out)
    assert {one["type"]["name"] for one in told["for_sale"]} == {"g2-standard-48"}
    assert all(one["spot"]["low_usd_per_hour"] > 0 for one in told["for_sale"])
    assert told["for_sale"][0]["type"]["gpus"] == 4
    assert told["doubtful"] == []


def test_own_rows_win_and_a_doubtful_one_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own.csv"
    own.write_text(HEAD + "aws,us-east-1,g5.xlarge,spot,1.5,1.5\n")
    words = ["prices", "--gpu", "A10G", "--gpus", "1", "--region", "us-east-1"]
    assert main([*words, "--prices", str(own)]) == 0
    out = capsys.readouterr().out
    assert "1.500" in out
    assert "doubtful  aws g5.xlarge in us-east-1: spot at 1.5 is above on-demand at 1.006" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpu", "K80"], "GPU 'K80': give one of"),
        (["--region", "mars"], "in mars: prices are known in"),
        (["--gpu", "T4", "--gpus", "3"], "T4 is known with 1, 4 GPUs a machine"),
        (["--prices", "/nowhere.csv"], "cannot read /nowhere.csv"),
    ],
)
def test_what_cannot_be_is_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prices", *words]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cloud", "aws", "--region", "mars-1"], "AWS has no region 'mars-1'"),
        (["--region", "mars-1"], "whose region is mars-1? Say --cloud aws"),
        (["--cloud", "gcp", "--gpu", "T4"], "no type that fits is known there"),
        (["--max-age", "-1"], "--max-age is -1"),
        (["--score", "4"], "--score wants --cloud aws or gcp, --region"),
        (["--score", "4", "--cloud", "azure", "--region", "eastus"], "Azure tells nobody"),
    ],
)
def test_a_question_that_no_cloud_can_answer_is_one_line_and_no_old_prices(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refresh = [] if "--score" in words else ["--refresh"]
    assert main(["prices", *refresh, *words]) == 1
    told = capsys.readouterr()
    (line,) = told.err.splitlines()
    assert said in line
    assert not told.out
