"""How a watched launch ends: Ctrl-C, a job that is lost, a cluster that others use."""

from __future__ import annotations

import dataclasses
import io
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from spotray.cli.launch import DETACHED_CODE, end_cluster, ending, watch
from spotray.cluster.problems import Problem
from spotray.errors import LaunchError
from spotray.launch.jobs import JobServer, JobState
from spotray.launch.launch import Wishes, exit_code, job_environment, preflight
from spotray.launch.records import Launch, Records
from spotray.launch.remote import Tunnel

ONE = Launch(
    name="train-1",
    cluster_name="c",
    cluster_file="/c.yaml",
    submission_id="train-1-ab",
    command=("train.py",),
    workdir="/w",
    created_at_s=100.0,
    state="running",
    down=True,
    wandb_run_id="train-1-cd",
)


class FakeRemote:
    """A cluster that only counts how often it was taken down."""

    def __init__(self) -> None:
        self.downs = 0

    def head(self) -> str | None:
        return None if self.downs else "10.0.0.1"

    def up(self) -> None:
        raise AssertionError("nobody asked for it")

    def down(self) -> None:
        self.downs += 1

    def token(self) -> str:
        return ""

    def config(self) -> dict[str, Any] | None:
        return None

    def tunnel(self) -> Tunnel:
        raise AssertionError("the server is a fake")


class FakeServer(JobServer):
    """Each look at the log ends as the script says."""

    def __init__(self, *ends: JobState | BaseException, others: int = 0) -> None:
        super().__init__(FakeRemote())
        self.ends, self.others = list(ends), ["other"] * others
        self.skips: list[int] = []
        self.stopped: list[str] = []

    def follow(
        self,
        submission_id: str,
        *,
        show: Callable[[str], None],
        tell: Callable[[str], None],
        changed: Callable[[JobState], None] = lambda state: None,
        skip: int = 0,
    ) -> JobState:
        self.skips.append(skip)
        show("12345")
        end = self.ends.pop(0)
        if isinstance(end, BaseException):
            raise end
        return end

    def stop(self, submission_id: str) -> JobState:
        self.stopped.append(submission_id)
        return JobState(state="stopped")

    def running(self) -> list[str]:
        return self.others


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def records(tmp_path: Path) -> Records:
    made = Records(tmp_path)
    made.save(ONE)
    return made


DONE = JobState(state="succeeded", exit_code=0)


def test_a_ctrl_c_without_a_terminal_leaves_the_job_running(records: Records) -> None:
    server = FakeServer(KeyboardInterrupt())
    assert watch(ONE, server, records=records)[1] == DETACHED_CODE
    assert server.stopped == []


@pytest.mark.parametrize(
    ("answer", "code", "stopped"),
    [
        ("s\n", 143, True),
        ("l\n", DETACHED_CODE, False),
        ("", DETACHED_CODE, False),
        ("g\n", 0, False),
    ],
)
def test_a_ctrl_c_asks_what_to_do(
    records: Records, monkeypatch: pytest.MonkeyPatch, answer: str, code: int, stopped: bool
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    server = FakeServer(KeyboardInterrupt(), DONE)
    assert watch(ONE, server, records=records)[1] == code
    assert bool(server.stopped) == stopped
    if answer.startswith("g"):
        assert server.skips == [0, 5], "what was shown is not shown again"


def test_a_job_that_is_lost_is_written_down_and_its_cluster_still_goes_down(
    records: Records, capsys: pytest.CaptureFixture[str]
) -> None:
    server, remote = FakeServer(LaunchError("the head knows no such job")), FakeRemote()
    one, code = watch(ONE, server, records=records)
    assert (one.state, code) == ("lost", 1)
    assert "knows no such job" in capsys.readouterr().err
    ended = end_cluster(one, remote, server, records=records)
    assert remote.downs == 1
    assert ended.down_at_s is not None
    assert records.need("train-1") == ended


def test_a_cluster_where_others_work_stays_up(
    records: Records, capsys: pytest.CaptureFixture[str]
) -> None:
    remote = FakeRemote()
    end_cluster(ONE, remote, FakeServer(others=2), records=records)
    assert remote.downs == 0
    assert "2 other jobs run there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("state", "code", "expected"),
    [
        ("succeeded", 0, 0),
        ("failed", 3, 3),
        ("failed", -9, 137),
        ("failed", None, 1),
        ("stopped", None, 143),
        ("lost", None, 1),
    ],
)
def test_the_exit_code_is_the_job_s_where_it_has_one(
    state: str, code: int | None, expected: int
) -> None:
    assert exit_code(dataclasses.replace(ONE, state=state, exit_code=code)) == expected


def test_a_job_that_a_limit_stopped_says_how_to_go_on() -> None:
    one = dataclasses.replace(ONE, state="failed", exit_code=75, deadline_s=5.0, ended_at_s=160.0)
    assert "spotray launch --name train-1" in ending(one)
    assert "failed with 75" in ending(dataclasses.replace(one, deadline_s=None))


def test_the_job_gets_its_limits_and_one_wandb_run_and_the_user_s_own_win() -> None:
    wishes = Wishes(command=("train.py",), deadline_s=100.4, max_cost_usd=20.0, env={"A": "1"})
    assert job_environment(wishes, ONE) == {
        "A": "1",
        "SPOTRAY_LAUNCH": "train-1",
        "SPOTRAY_DEADLINE_S": "100",
        "SPOTRAY_MAX_COST_USD": "20",
        "WANDB_RUN_ID": "train-1-cd",
        "WANDB_RESUME": "allow",
    }
    own = Wishes(command=("train.py",), env={"WANDB_RUN_ID": "mine", "MLFLOW_RUN_ID": "m"})
    found = job_environment(own, ONE)
    assert (found["WANDB_RUN_ID"], found["MLFLOW_RUN_ID"]) == ("mine", "m")


def test_what_the_cloud_finds_wrong_is_asked_where_that_can_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong = Problem(path="auth", what="there are no credentials", cure="run aws configure")

    def check(config: Mapping[str, Any]) -> list[Problem]:
        return [wrong]

    module = types.ModuleType("spotray.cluster.preflight")
    module.check = check  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "spotray.cluster.preflight", module)
    assert preflight({"cluster_name": "c"}) == [wrong]
