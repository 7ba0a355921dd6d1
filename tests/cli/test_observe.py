"""``spotray observe`` from its first question to a simulation, on an EC2 that is moto.

Moto has no placement scores: these are of their documented shape.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from spotray.cli.main import main
from spotray.events import SpotObserved
from spotray.ledger.journal import JournalWriter
from spotray.market.trace import Trace
from spotray.storage import Store
from tests.cloud.aws.test_prices import SCORES, error, price_list
from tests.cloud.shapes import Answer, Api, Asked, api
from tests.conftest import S3Server

TYPES = ("g5.xlarge", "g5.2xlarge", "g6.xlarge")
ASK = [
    *("--cloud", "aws", "--region", "us-east-1", "--nodes", "4"),
    *[word for name in TYPES for word in ("--type", name)],
]
GAP_S = 600.0
Aws = Callable[..., AbstractContextManager[Api]]


def ec2_at(url: str, scores: Callable[[], Answer]) -> Callable[[Asked], Answer]:
    """EC2 as moto has it, and placement scores."""

    def answer(asked: Asked) -> Answer:
        if parse_qs(asked.body).get("Action") == ["GetSpotPlacementScores"]:
            return scores()
        request = urllib.request.Request(
            url + asked.path, data=asked.body.encode(), headers=asked.headers, method=asked.method
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as told:
                return told.status, told.read().decode(), {"Content-Type": "text/xml"}
        except urllib.error.HTTPError as exc:
            return exc.code, exc.read().decode(), {"Content-Type": "text/xml"}

    return answer


@pytest.fixture
def aws(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Aws:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")

    @contextmanager
    def at(scores: Callable[[], Answer] = lambda: SCORES) -> Iterator[Api]:
        with api(ec2_at(s3_server.endpoint_url, scores)) as ec2, api(price_list) as pricing:
            monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", ec2.url)
            monkeypatch.setenv("AWS_ENDPOINT_URL_PRICING", pricing.url)
            yield ec2

    return at


def observed_before(out: Path, ticks: int, *, gap_s: float = GAP_S) -> None:
    """What an earlier start of the command wrote, up to the tick before this one."""
    now = time.time() // gap_s
    with JournalWriter(Store.at(out).child("journal"), writer="earlier") as journal:
        for tick in range(ticks):
            for zone in ("us-east-1a", "us-east-1b"):
                journal.append(
                    SpotObserved(
                        at_s=(now - ticks + tick) * gap_s,
                        cloud="aws",
                        region="us-east-1",
                        zone=zone,
                        instance_types=TYPES,
                        nodes=4,
                        every_s=gap_s,
                        likely=0.9 if tick % 5 else 0.2,
                        usd_per_hour=0.4,
                    )
                )


def test_one_look_is_written_down_and_is_a_trace_at_once(
    aws: Aws, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with aws() as ec2:
        assert main(["observe", str(tmp_path), *ASK, "--for", "0", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    zones = {one["zone"]: one for one in told["zones"]}
    likely = {name: zone["likely"] for name, zone in zones.items()}
    assert likely == {"us-east-1a": 0.9, "us-east-1b": 0.3, "use1-az9": 0.1}
    assert not told["problems"]
    assert {one["refused"] for one in zones.values()} == {""}
    dry = [one.body for one in ec2.asked if "Action=RunInstances" in one.body]
    assert dry
    assert all("DryRun=true" in body for body in dry)
    traces = sorted((tmp_path / "availability" / "part-01").iterdir())
    assert sorted(Trace.load(file).values for file in traces) == [(0,), (0,), (4,)]
    assert all(file.name.endswith("_any-of-3.json") for file in traces)


def test_it_goes_on_where_it_was_and_simulate_reads_what_it_wrote(
    aws: Aws, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    observed_before(tmp_path, 20)
    with aws():
        assert main(["observe", str(tmp_path), "--for", "0", "--no-dry-runs"]) == 0
    told = capsys.readouterr()
    assert "4 spot nodes: " in told.out
    assert f"in 1 part: spotray simulate {tmp_path}/availability --nodes 4\n" in told.err
    part = tmp_path / "availability" / "part-01"
    lengths = {len(Trace.load(file).values) for file in part.iterdir()}
    assert lengths in ({21}, {22})  # the clock may have passed into the next tick meanwhile
    job = ["--hours", "1", "--deadline", "2", "--restart", "0", "--json"]
    assert main(["simulate", str(tmp_path / "availability"), *job]) == 0
    assert json.loads(capsys.readouterr().out)["standings"]
    for file in part.iterdir():
        if not file.name.startswith("us-east-1"):
            file.unlink()  # a zone without a price
    fleet = ["simulate", "--fleet", str(part), "--prices", str(tmp_path / "prices" / "part-01")]
    assert main([*fleet, "--nodes", "2", *job]) == 0
    assert capsys.readouterr().out


def test_ctrl_c_keeps_all_that_was_seen(aws: Aws, tmp_path: Path) -> None:
    with aws(), (tmp_path / "err").open("w+") as err:
        words = [sys.executable, "-m", "spotray.cli.main", "observe", str(tmp_path / "out"), *ASK]
        child = subprocess.Popen(
            [*words, "--no-dry-runs", "--every", "1440"],
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
            env=dict(os.environ),
        )
        assert child.stdout is not None
        try:
            line = child.stdout.readline()  # empty if it ended
            child.send_signal(signal.SIGINT)
            child.wait(60)
        finally:
            child.kill()
            child.wait()
            child.stdout.close()
        err.seek(0)
        said = err.read()
    assert "4 spot nodes" in line, said
    assert child.returncode == 0, said
    assert re.search(r"3 zones over (24|48)\.0 h in 1 part", said)  # 48: it was midnight
    assert "Traceback" not in said
    tmp_path = tmp_path / "out"
    assert len(list((tmp_path / "availability" / "part-01").iterdir())) == 3


def test_traces_are_written_anew_without_a_question(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    observed_before(tmp_path, 6)
    assert main(["observe", str(tmp_path), "--traces-only"]) == 0
    one = tmp_path / "availability" / "part-01" / "us-east-1a_any-of-3.json"
    assert Trace.load(one).values == (0, 4, 4, 4, 4, 0)
    assert main(["observe", str(tmp_path), "--traces-only", "--likely", "0.1"]) == 0
    assert Trace.load(one).values == (4, 4, 4, 4, 4, 4)
    assert "2 zones over 1.0 h in 1 part" in capsys.readouterr().out


def test_it_goes_on_as_often_as_before_and_another_gap_leaves_no_file_of_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    observed_before(tmp_path, 6, gap_s=7200.0)
    assert main(["observe", str(tmp_path), "--traces-only", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["gap_s"] == 7200.0
    assert [(part["ticks"], part["zones"]) for part in told["parts"]] == [
        (6, ["us-east-1a", "us-east-1b"])
    ]
    old = tmp_path / "availability" / "part-02"
    old.mkdir()
    (old / "us-east-1a_any-of-3.json").write_text("{}")
    gone = tmp_path / "prices" / "part-01" / "us-east-1z.json"
    gone.write_text("{}")
    mine = tmp_path / "availability" / "notes.txt"
    mine.write_text("mine")
    assert main(["observe", str(tmp_path), "--traces-only", "--every", "60"]) == 0
    assert not old.exists()
    assert not gone.exists()
    assert mine.exists()
    one = tmp_path / "availability" / "part-01" / "us-east-1a_any-of-3.json"
    assert Trace.load(one).values == (0, 0, *[4] * 8, 0)


def test_without_boto3_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    assert main(["observe", str(tmp_path), *ASK]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "pip install 'spotray[aws]'" in line


def test_throttling_is_one_line_and_the_next_start_asks_again(
    aws: Aws,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("spotray.clock.SystemClock.sleep", lambda self, seconds: None)
    slower = error("RequestLimitExceeded", "Request limit exceeded.", 503)
    with aws(lambda: slower):
        assert main(["observe", str(tmp_path), *ASK, "--for", "0"]) == 0
    told = capsys.readouterr().err.splitlines()
    assert [line for line in told if "RequestLimitExceeded" in line] == told[:1]
    assert "no look, the next will try again" in told[0]
    assert "nothing was observed yet" in told[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "say --cloud, --region, and --gpu or --type"),
        (
            ["--cloud", "aws", "--gpu", "K80", "--region", "x"],
            "no type of aws with K80 is known",
        ),
        (["--nodes", "0"], "--nodes is 0"),
        (["--every", "0.1"], "--every is 0.1: give 1 to 1440 minutes"),
        (["--likely", "50"], "--likely is 50: give a part of 1"),
        (["--for", "-1"], "--for is -1"),
        ([*ASK[:6], "--type", "g5.xlarge", "--for", "0"], "wants at least 3 types"),
    ],
)
def test_bad_input_is_one_line_with_the_cure(
    words: list[str],
    said: str,
    tmp_path: Path,
    s3_server: S3Server,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["observe", str(tmp_path / "out"), *words]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_another_question_in_the_same_folder_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    observed_before(tmp_path, 2)
    assert main(["observe", str(tmp_path), "--nodes", "8"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "is about 4 nodes of g5.xlarge, g5.2xlarge, g6.xlarge in aws us-east-1" in line
