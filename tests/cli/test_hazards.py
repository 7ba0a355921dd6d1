"""``spotray hazards`` on journals, with a book, a plot, and on bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spotray.cli.main import main
from spotray.events import Event, NodeDown, NodeUp, encode

AWS = "aws/us-east-1a/g5.xlarge/spot"
GCP = "gcp/us-central1-a/n1-standard-4/spot"
HOUR = 3600.0


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path_factory.mktemp("data")
    monkeypatch.setenv("XDG_DATA_HOME", str(home))
    return home


def journal(folder: Path, market: str, hours: list[float], cause: str = "preemption") -> Path:
    folder.mkdir(parents=True)
    events: list[Event] = []
    for index, lived_h in enumerate(hours):
        name, start_s = f"i-{folder.name}-{index}", 1000.0 * index
        events.append(NodeUp(at_s=start_s, node_id=name, name=name, market=market, spot=True))
        events.append(NodeDown(at_s=start_s + lived_h * HOUR, node_id=name, cause=cause))
    (folder / "agent.jsonl").write_text("".join(encode(one) + "\n" for one in events))
    return folder


def test_it_tells_every_level_the_ages_and_the_hours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal(tmp_path / "a", AWS, [0.1, 0.3, 1.5, 3.0, 9.0])
    assert main(["hazards", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    names = [line.split()[0] for line in out.splitlines()[2:6]]
    assert names == ["all", "aws", "aws/g5.xlarge", "aws/us-east-1a/g5.xlarge"]
    assert "Losses per hour by age, aws/us-east-1a/g5.xlarge" in out
    assert "hour of the day (UTC), aws/us-east-1:" in out
    assert "Google" not in out


def test_a_book_remembers_clusters_whose_journals_are_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = journal(tmp_path / "a", AWS, [1.0, 2.0]), journal(tmp_path / "b", AWS, [3.0])
    book = str(tmp_path / "book")
    assert main(["hazards", str(first), "--book", book]) == 0
    (first / "agent.jsonl").unlink()
    capsys.readouterr()
    assert main(["hazards", str(second), "--book", book, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["levels"]["all spot"]["losses"] == 3
    assert main(["hazards", "--book", book, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["levels"]["all spot"]["losses"] == 3


def test_a_storage_path_keeps_its_own_book_for_other_clusters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = journal(tmp_path / "runs" / "a", AWS, [1.0, 2.0])
    runs, book = str(tmp_path / "runs"), str(tmp_path / "runs" / "hazards")
    assert main(["hazards", runs]) == 0
    assert f"kept in {book}: " in capsys.readouterr().out
    (first / "agent.jsonl").unlink()
    journal(tmp_path / "runs" / "b", AWS, [3.0])
    for asked in ([runs], [runs], ["--book", book]):
        assert main(["hazards", *asked, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["levels"]["all spot"]["losses"] == 3
        assert told["books"] == [book]
    (tmp_path / "runs" / "b" / "agent.jsonl").unlink()
    assert main(["hazards", runs, "--json"]) == 0  # its book is enough
    assert json.loads(capsys.readouterr().out)["levels"]["all spot"]["losses"] == 3


def test_who_only_looks_keeps_nothing(
    tmp_path: Path, own_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal(tmp_path / "a", AWS, [1.0])
    assert main(["hazards", str(tmp_path), "--no-keep", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["levels"]["all spot"]["losses"], told["books"]) == (1, [])
    assert not (tmp_path / "hazards").exists()
    assert not list(own_home.rglob("*.json"))
    assert main(["hazards"]) == 1
    assert "nothing to read" in capsys.readouterr().err


def test_a_storage_path_that_cannot_be_written_is_told_and_read_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal(tmp_path / "a", AWS, [1.0])
    # Nobody can make a folder there, not even root.
    assert main(["hazards", str(tmp_path / "a"), "--book", "/proc/spotray-book"]) == 0
    out = capsys.readouterr().out
    assert "warning: cannot keep lives in " in out
    assert "aws/us-east-1a/g5.xlarge" in out


def test_the_next_plan_here_knows_what_was_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    asked = ["plan", "--gpus", "1", "--gpu", "A10G", "--hours", "2", "--cloud", "aws"]
    assert main(asked) == 0
    assert "own nodes" not in capsys.readouterr().out
    journal(tmp_path / "a", AWS, [0.1] * 20)
    assert main(["hazards", str(tmp_path)]) == 0
    capsys.readouterr()
    assert main(asked) == 0
    (note,) = [line for line in capsys.readouterr().out.splitlines() if "own nodes" in line]
    assert "by 20 lives of your own nodes (aws/g5.xlarge, 20 lost)" in note
    assert main(["hazards", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["levels"]["all spot"]["losses"] == 20
    assert main([*asked, "--book", str(tmp_path / "nothing")]) == 1
    assert "no lives of nodes in" in capsys.readouterr().err


def test_a_plot_is_drawn_with_googles_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal(tmp_path / "g", GCP, [0.5, 4.0, 11.0, 24.0, 24.0, 24.0])
    picture = tmp_path / "hazard.svg"
    asked = ["hazards", str(tmp_path), "--market", GCP, "--plot", str(picture), "--json"]
    assert main(asked) == 0
    fit = json.loads(capsys.readouterr().out)["levels"]["gcp/us-central1-a/n1-standard-4"]["fit"]
    assert fit["limit_s"] == 24 * HOUR
    assert picture.read_text().startswith("<?xml")
    assert main(["hazards", str(tmp_path)]) == 0
    assert "Google stops preemptible machines after 24 h" in capsys.readouterr().out
    journal(tmp_path / "a", AWS, [2.0])
    assert main(["hazards", str(tmp_path)]) == 0
    assert "Losses per hour by age, all spot" in capsys.readouterr().out


def test_nodes_of_which_none_was_spot_leave_the_prior(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal(tmp_path / "a", AWS.replace("/spot", "/on-demand"), [1.0])
    assert main(["hazards", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("no spot node was seen: what follows is the prior")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "nothing to read: give folders"),
        (["EMPTY"], "no journal in"),
        (["EMPTY", "--market", "aws/g5"], "write CLOUD/ZONE/INSTANCE_TYPE/spot"),
        (
            ["EMPTY", "--market", AWS.replace("/spot", "/on-demand")],
            "only spot nodes have a hazard",
        ),
        (["A", "--plot", "x.xlsx"], "x.xlsx: name a file that ends in .png"),
        (["A", "--plot", "/nowhere/x.png"], "cannot write /nowhere/x.png"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "EMPTY").mkdir()
    journal(tmp_path / "A", AWS, [1.0])
    given = [str(tmp_path / one) if one in ("EMPTY", "A") else one for one in arguments]
    assert main(["hazards", *given]) == 1
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
