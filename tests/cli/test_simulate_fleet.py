"""``spotray simulate --fleet`` on traces with prices, on made-up zones, and on bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spotray.cli.main import main
from spotray.market.lives import LivesBook, NodeLife
from spotray.storage import Store

SMALL = ["--fleet", "--hours", "2", "--deadline", "6", "--speeds", "1,1.8"]


def write(path: Path, data: list[Any], gap: float = 600) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"metadata": {"gap_seconds": gap}, "data": data}))


@pytest.fixture
def zones(tmp_path: Path) -> Path:
    write(tmp_path / "zones" / "us-east-1a_v100.json", ([2] * 5 + [0] * 3) * 15)
    write(tmp_path / "zones" / "us-east-1b_v100.json", ([0] * 4 + [2] * 4) * 15)
    return tmp_path / "zones"


def test_it_compares_the_policies_for_several_nodes(
    zones: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", str(zones), *SMALL]) == 0
    out = capsys.readouterr().out
    assert out.startswith("3 jobs of 2 h on 2 nodes, to be done in 6 h, 3 min for a launch, 2 zon")
    policies = [line.split()[0] for line in out.splitlines()[3:]]
    assert policies == [
        *("on-demand-fleet", "one-zone", "multi-zone", "elastic-one-zone", "elastic"),
    ]


def test_prices_of_each_zone_are_read_and_paid(
    zones: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["simulate", str(zones), *SMALL, "--policy", "multi-zone", "--starts", "1", "--json"]
    paid = []
    for usd in (0.5, 1.0):
        for zone in ("us-east-1a", "us-east-1b"):
            write(tmp_path / "prices" / f"{zone}.json", [usd] * 120)
        assert main([*asked, "--prices", str(tmp_path / "prices")]) == 0
        (one,) = json.loads(capsys.readouterr().out)["jobs"]
        assert one["outcome"]["on_demand_usd"] == 0
        paid.append(one["outcome"]["cost_usd"])
    assert paid[1] == pytest.approx(2 * paid[0])


def test_without_traces_it_says_that_the_worlds_are_made_up(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = [*SMALL, "--policy", "elastic", "--starts", "1"]
    assert main(["simulate", *asked]) == 0
    assert "made-up worlds of 3 regions with 3 zones each" in capsys.readouterr().out


def test_a_book_of_ones_own_nodes_changes_where_it_goes(
    zones: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(zones / "us-east-1b_v100.json", [2] * 120)
    short = [
        NodeLife(
            market="aws/us-east-1a/node/spot",
            name=f"i-{index}",
            start_s=0.0,
            seconds=60.0,
            ended=True,
        )
        for index in range(30)
    ]
    LivesBook(Store.at(tmp_path / "book")).put("here", short)
    asked = ["simulate", str(zones), *SMALL, "--policy", "multi-zone", "--why"]
    for more, zone in (([], "us-east-1a"), (["--book", str(tmp_path / "book")], "us-east-1b")):
        assert main([*asked, *more]) == 0
        assert f"0.00 USD  2 in {zone} at " in capsys.readouterr().out


def test_nodes_end_at_the_limit_that_is_given_or_that_the_book_shows(
    zones: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["simulate", str(zones), *SMALL, "--policy", "multi-zone", "--cloud", "gcp"]
    ended = [
        NodeLife(
            market="gcp/us-central1-a/n1/spot",
            name=f"node-{index}",
            start_s=0.0,
            seconds=86400.0,
            ended=True,
        )
        for index in range(3)
    ]
    LivesBook(Store.at(tmp_path / "book")).put("here", ended)
    told = {}
    for more in ("", "--node-limit=2", f"--book={tmp_path / 'book'}"):
        assert main([*asked, *filter(None, [more])]) == 0
        told[more] = capsys.readouterr().out.splitlines()[0]
    lines = list(told.values())
    assert "ends after" not in lines[0]
    assert lines[1:] == [f"every spot node ends after {hours} h at most" for hours in (2, 24)]
    assert main([*asked, "--node-limit=0.5", "--json"]) == 0
    (one, *_) = json.loads(capsys.readouterr().out)["jobs"]
    assert one["outcome"]["at_limit"] > 0


def test_why_tells_each_change_of_the_first_job(
    zones: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", str(zones), *SMALL, "--policy", "multi-zone", "--why"]) == 0
    out = capsys.readouterr().out
    assert "from tick 0:" in out
    assert "2 in us-east-1a at " in out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--deadline", "2"], "2.00 h cannot be met even on on-demand: 2 nodes"),
        (["--speeds", "1,x"], "--speeds is '1,x': give numbers with commas"),
        (["--speeds", "2,1"], "speeds[2] is 1.0"),
        (["--node-limit", "0"], "--node-limit is 0: give hours above 0"),
        (["--node-limit", "0.1"], "us-east-1a: its nodes live 360 s, a tick lasts 600 s"),
        (["--silent", "2"], "--silent is 2.0"),
        (["--policy", "greedy"], "unknown policy 'greedy' for several nodes"),
        (["--spot-price", "-1"], "us-east-1a: its price at tick 0 is -1"),
        (["--prices", "NOWHERE"], "NOWHERE: no such file or folder"),
        (["--deadline", "90"], "no trace is as long as the deadline of 90 h (the longest: 20.0 h)"),
    ],
)
def test_bad_input_is_one_line(
    zones: Path, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", str(zones), *SMALL, *arguments]) == 1
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("file", "data", "gap", "told"),
    [
        ("zones/us-east-1b_v100.json", [2] * 119, 600, "us-east-1b_v100.json: 119 values every"),
        ("zones/us-east-1b_v100.json", [2] * 120, 300, "120 values every 300 s"),
        ("zones/us-east-1b_v100.json", [2, None] * 60, 600, "us-east-1b_v100.json: data[1] is N"),
        ("zones/us-east-1b_v100.json", [2, 1.5] * 60, 600, "data[1] is 1.5: availability is"),
        ("zones/us-east-1b_x.json", [2] * 120, 600, "another file is of zone us-east-1b"),
        ("prices/us-east-1b.json", [1, 0] * 60, 600, "us-east-1b.json: data[1] is 0: a price is"),
        ("prices/us-east-1b.json", [1, -2] * 60, 600, "us-east-1b.json: data[1] is -2"),
        ("prices/us-east-1b.json", [1] * 7, 600, "us-east-1b.json: 7 values every 600 s"),
        ("prices/other.json", [1] * 120, 600, "0 price traces of zone us-east-1b: give one"),
    ],
)
def test_traces_with_gaps_or_other_lengths_name_the_file_and_the_place(
    zones: Path,
    tmp_path: Path,
    file: str,
    data: list[Any],
    gap: float,
    told: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(tmp_path / "prices" / "us-east-1a.json", [1] * 120)
    if not file.startswith("prices"):
        write(tmp_path / "prices" / "us-east-1b.json", [1] * 120)
    write(tmp_path / file, data, gap)
    asked = ["simulate", str(zones), *SMALL, "--prices", str(tmp_path / "prices")]
    assert main(asked) == 1
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
