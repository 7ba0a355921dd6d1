"""``spotray plan``: the table, JSON, kept rates, and one line for what cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spotray.cli.main import main

JOB = ["plan", "--gpus", "4", "--gpu", "A10G", "--hours", "4", "--deadline", "6"]


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def test_it_compares_the_ways_and_says_what_the_numbers_rest_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(JOB) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "4 h of work on 4 A10G, to be done in 6 h"
    ways = [line.split("  ")[1].strip() for line in lines[2:7]]
    assert ways == [
        "on-demand",
        "on-demand",
        "spot, lookahead",
        "spot, multi-zone",
        "spot only",
    ]
    assert any(line.startswith("note  prices: skypilot-catalog") for line in lines)
    assert any("made-up regions of 3 zones" in line for line in lines)
    assert "(" in lines[4]  # a range, not one number
    assert "(" not in lines[2]


def test_json_has_ranges_and_no_number_that_json_does_not_know(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*JOB, "--samples-per-s", "100", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    spot = told["options"][2]["forecast"]
    assert spot["cost_usd"]["low"] <= spot["cost_usd"]["middle"] <= spot["cost_usd"]["high"]
    assert spot["late_frac"] == 0
    assert told["ranking"][0]["usd_per_million_samples"] > 0


def test_rates_that_were_kept_are_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from spotray.plan.rates import Rate, keep_rate, rates_file

    for name, gpus, speed in (("g5.xlarge", 1, 100.0), ("g5.12xlarge", 4, 800.0)):
        rate = Rate(
            model="vit",
            cloud="aws",
            instance_type=name,
            gpu="A10G",
            gpus=gpus,
            samples_per_s=speed,
            low_samples_per_s=speed,
            high_samples_per_s=speed,
            at="2026-11-22",
        )
        keep_rate(rate, rates_file())
    assert rates_file().is_relative_to(tmp_path)
    assert main([*JOB, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["options"][0]["work_s"] == pytest.approx(2 * 3600)  # twice as fast as four others
    assert main([*JOB, "--model", "gpt"]) == 1
    assert "no rate of gpt was measured" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--deadline", "3"], "cannot be met even on on-demand"),
        (["--gpu", "K80"], "GPU 'K80'"),
        (["--gpus", "0"], "--gpus is 0"),
        (["--region", "mars"], "no price is known of a machine with A10G in mars"),
    ],
)
def test_what_cannot_be_is_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*JOB, *words]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_negative_price_is_told_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own.csv"
    own.write_text(
        "cloud,region,instance_type,kind,usd_low,usd_high\naws,us-east-1,g5.xlarge,spot,-1,1\n"
    )
    assert main([*JOB, "--prices", str(own)]) == 1
    assert "line 2: a price of -1 USD per hour" in capsys.readouterr().err
