"""`spotray launch` before anything is billed: what it shows, asks and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spotray.cli.launch import split
from spotray.cli.main import main
from spotray.clock import SystemClock
from spotray.cloud.price_cache import PriceCache, Told
from spotray.cloud.prices import Quote
from spotray.errors import ConfigError
from spotray.market.prices import SHIPPED_ON

ROOT = Path(__file__).parents[2]
G5 = str(ROOT / "cluster-configs" / "aws-g5-spot.yaml")


@pytest.fixture(autouse=True)
def _at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the checkout, whose files the configs name, with a home of its own."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def work(tmp_path: Path) -> str:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "train.py").write_text("print('hello')\n")
    (folder / "notes.txt").touch()
    return str(folder)


def test_a_dry_run_shows_the_cost_and_does_nothing(
    work: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--workdir", work, "--hours", "10", "--max-cost", "20", "--down"]
    assert main(["launch", "--dry-run", *words, G5, "train.py"]) == 0
    out, err = capsys.readouterr()
    assert "g5.xlarge" in out
    assert "0.357-0.415" in out
    assert "1.006-1.212" in out
    # A head of 0.096 and five workers, from 0.357 to 1.212 each: four, and a replacement.
    assert "with all 5 workers  $1.88 to $6.16 per hour" in out
    assert "for 10 hours  $18.81 to $61.56" in out
    assert "budget  $20.00 from the job's start: 3 h 14 min at the highest" in out
    assert out.count("skypilot-catalog v8 at 00148f2 2025-2026") == 1
    assert "goes down" in out
    assert "2 files, 0.0 MiB" in err
    assert not (tmp_path / "home" / ".spotray").exists()


def test_an_unknown_price_is_said_to_be_unknown(
    work: str, capsys: pytest.CaptureFixture[str]
) -> None:
    azure = str(ROOT / "cluster-configs" / "azure-nc-t4-spot.yaml")
    words = ["launch", "--dry-run", "--hours", "2", "--workdir", work, azure, "train.py"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "with all 4 workers  at least $0.2508 per hour, without what is unknown" in out
    assert "unknown  Standard_D2s_v3 on-demand in eastus" in out
    assert main([*words[:-2], "--max-cost", "5", *words[-2:]]) == 1
    assert "--max-cost cannot be kept" in capsys.readouterr().err


def test_prices_that_nobody_knows_are_one_line_whatever_the_cloud(
    work: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "cluster-configs" / "gcp-t4-spot.yaml").read_text(encoding="utf-8")
    nowhere = tmp_path / "nowhere.yaml"
    nowhere.write_text(text.replace("us-central1", "atlantis1"))
    words = ["--dry-run", "--no-check", "--workdir", work, str(nowhere), "train.py"]
    assert main(["launch", *words]) == 0
    (told,) = [one for one in capsys.readouterr().out.splitlines() if "price unknown" in one]
    assert "n2-standard-2 on-demand in atlantis1" in told
    assert "n1-standard-8+nvidia-tesla-t4 spot in atlantis1" in told


def test_own_prices_fill_the_gap(
    work: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prices = tmp_path / "prices.csv"
    prices.write_text(
        "cloud,region,instance_type,kind,usd_low,usd_high,source\n"
        "azure,eastus,Standard_NC4as_T4_v3,spot,0.1,0.2,mine\n"
        "azure,*,Standard_D2s_v3,on-demand,0.1,0.1,mine\n"
    )
    azure = str(ROOT / "cluster-configs" / "azure-nc-t4-spot.yaml")
    words = ["--dry-run", "--workdir", work, "--prices", str(prices)]
    assert main(["launch", *words, azure, "train.py"]) == 0
    out = capsys.readouterr().out
    assert "with all 4 workers  $0.5000 to $0.9000 per hour" in out
    assert "prices  mine" in out


def test_what_the_cloud_was_asked_wins_over_the_package_and_says_its_age(
    work: str, capsys: pytest.CaptureFixture[str]
) -> None:
    quotes = tuple(
        Quote(
            cloud="aws",
            region="us-west-2",
            zone="us-west-2a",
            instance_type="g5.xlarge",
            spot=True,
            usd_per_hour=usd,
            source="EC2 DescribeSpotPriceHistory",
        )
        for usd in (0.111, 0.222)
    )
    now_s = SystemClock().now_s()
    told = Told(cloud="aws", region="us-west-2", at_s=now_s, types=("g5.xlarge",), quotes=quotes)
    PriceCache().keep(told)
    assert main(["launch", "--dry-run", "--workdir", work, G5, "train.py"]) == 0
    out = capsys.readouterr().out
    assert "0.111-" in out
    assert "1.006-1.212" in out  # on demand as shipped: nobody asked
    (line,) = [one for one in out.splitlines() if one.startswith("prices")]
    assert "EC2 DescribeSpotPriceHistory" in line
    assert "asked " in line
    assert f"shipped {SHIPPED_ON}, " in line


def test_a_dry_run_prints_the_same_as_json(work: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "--dry-run", "--json", "--workdir", work, G5, "train.py"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["estimate"]["high_usd_per_hour"] == pytest.approx(6.156)
    assert found["estimate"]["low_usd"] is None
    assert found["launch"]["command"] == ["train.py"]


def test_without_anybody_to_ask_nothing_is_launched(
    work: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["launch", "--workdir", work, G5, "train.py"]) == 1
    assert "give -y" in capsys.readouterr().err
    assert not (tmp_path / "home" / ".spotray").exists()


def test_a_wrong_cluster_is_refused_with_each_problem_and_its_cure(
    work: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = Path(G5).read_text().replace("region: us-west-2", "regoin: us-west-2")
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(text.replace("max_workers: 5\nidle", "max_wokers: 5\nidle"))
    assert main(["launch", "-y", "--workdir", work, str(wrong), "train.py"]) == 1
    err = capsys.readouterr().err
    assert "did you mean region?" in err
    assert "did you mean max_workers?" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([G5, "none.py"], "there is no none.py"),
        (["/no/such.yaml", "train.py"], "cannot read /no/such.yaml"),
        ([str(ROOT / "pyproject.toml"), "train.py"], "is no YAML"),
        (["--deadline", "soon", G5, "train.py"], "write a duration (6h)"),
        (["--max-cost", "-1", G5, "train.py"], "above 0"),
        (["--hours", "0", G5, "train.py"], "above 0"),
        (["--env", "NOT_SET_ANYWHERE", G5, "train.py"], "not set here"),
        (["--env-file", "/no/such.env", G5, "train.py"], "cannot read /no/such.env"),
        (["--prices", "/no/such.csv", G5, "train.py"], "cannot read /no/such.csv"),
        (["--name", "a/b", G5, "train.py"], "use letters"),
        ([G5, "notes.txt"], "give a Python script (.py)"),
    ],
)
def test_bad_input_is_one_line(
    work: str, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["launch", "--dry-run", "--workdir", work, *words]) == 1
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "ours", "theirs"),
    [
        ([], [], []),
        (["--down"], ["--down"], []),
        (["--down", "--lr", "3"], ["--down"], ["--lr", "3"]),
        (["--name", "x", "-y", "data", "-d"], ["--name", "x", "-y"], ["data", "-d"]),
        (["--env=A=1", "--", "--down"], ["--env=A=1"], ["--down"]),
        (["--lr", "3"], [], ["--lr", "3"]),
    ],
)
def test_options_may_stand_behind_the_script(
    words: list[str], ours: list[str], theirs: list[str]
) -> None:
    assert split(words) == (ours, theirs)


def test_an_option_among_the_script_s_arguments_is_not_taken_silently() -> None:
    with pytest.raises(ConfigError, match="--down stands among"):
        split(["--lr", "3", "--down"])


def test_there_is_nothing_to_list_at_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs"]) == 0
    assert "nothing was launched" in capsys.readouterr().out
    assert main(["logs", "x"]) == 1
    assert "no launch 'x'" in capsys.readouterr().err
