"""The agent as a process of its own, against the lab's metadata server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spotray.clock import SystemClock, wait_until
from spotray.events import DrainRefused, Event, NodeDown, NoticeCancelled, NoticeReceived
from spotray.lab.metadata import MetadataServer, NodeMetadata
from spotray.ledger.journal import read_journal
from spotray.storage import Store
from tests.cloud.servers import AzureServer, GcpServer, azure_event

NODE_ID = "ab" * 28
METADATA = NodeMetadata(
    instance_id="i-1",
    instance_type="g5.xlarge",
    zone="us-east-1a",
    region="us-east-1",
    life_cycle="spot",
)
CLOSED = "127.0.0.1:1"  # nobody listens on port 1


class Agent:
    """``python -m spotray.agent``, its output in a file."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.log = folder / "agent.log"
        self.journal = Store.at(folder / "journal")
        command = [sys.executable, "-m", "spotray.agent", *arguments]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def until(self, ready: Callable[[], bool]) -> None:
        ok = wait_until(ready, timeout_s=30, clock=SystemClock(), poll_s=0.05)
        assert ok, self.log.read_text()

    def until_said(self, words: str) -> None:
        self.until(lambda: words in self.log.read_text())

    def until_recorded(self, kind: type[Event]) -> None:
        self.until(lambda: any(isinstance(e, kind) for e in read_journal(self.journal)))

    def end(self, how: signal.Signals = signal.SIGTERM) -> float:
        """Seconds from the signal to the end, which has to be a clean one."""
        start_s = time.monotonic()
        self.process.send_signal(how)
        assert self.process.wait(30) == 0, self.log.read_text()
        return time.monotonic() - start_s


@pytest.fixture
def server() -> Iterator[MetadataServer]:
    with MetadataServer() as server:
        server.add("n1", METADATA)
        yield server


@pytest.fixture
def agent(server: MetadataServer, tmp_path: Path) -> Iterator[Agent]:
    agent = Agent(
        tmp_path,
        *("--cloud", "aws", "--endpoint", server.url_for("n1"), "--ray-address", CLOSED),
        *("--node-id", NODE_ID, "--journal", str(tmp_path / "journal"), "--poll-s", "0.1"),
    )
    yield agent
    agent.process.kill()
    agent.process.wait()


def test_it_lives_through_garbage_and_a_notice_and_ends_as_preempted(
    server: MetadataServer, agent: Agent
) -> None:
    server.misbehave("n1", "garbage")
    agent.until_said("no answer about this node")
    server.misbehave("n1", None)
    agent.until_said("is spot")
    server.notice("n1", at_s=time.time() + 60)
    agent.until_recorded(NoticeReceived)
    agent.until_recorded(DrainRefused)  # there is no Ray, and it lives
    agent.end()
    last = read_journal(agent.journal)[-1]
    assert isinstance(last, NodeDown)
    assert (last.node_id, last.cause, last.noticed) == (NODE_ID, "preemption", True)


def test_an_ordinary_end_is_a_shutdown_and_quick(agent: Agent) -> None:
    agent.until_said("is spot")
    assert agent.end() < 5  # one second on a machine that has nothing else to do
    (down,) = read_journal(agent.journal)
    assert isinstance(down, NodeDown)
    assert (down.cause, down.noticed) == ("shutdown", False)


def test_a_cancelled_notice_makes_the_end_ordinary_again(
    server: MetadataServer, agent: Agent
) -> None:
    server.notice("n1", at_s=time.time() + 60)
    agent.until_recorded(NoticeReceived)
    server.cancel("n1")
    agent.until_recorded(NoticeCancelled)
    agent.end(signal.SIGINT)
    last = read_journal(agent.journal)[-1]
    assert isinstance(last, NodeDown)
    assert last.cause == "shutdown"


def test_a_hanging_service_does_not_hold_up_the_end(server: MetadataServer, agent: Agent) -> None:
    agent.until_said("is spot")
    server.misbehave("n1", "timeout")
    agent.until_said("timed out")  # the next question hangs as well
    assert agent.end() < 5


def test_before_ray_is_up_it_waits_and_can_be_ended(server: MetadataServer, tmp_path: Path) -> None:
    agent = Agent(
        tmp_path,
        *("--cloud", "aws", "--endpoint", server.url_for("n1"), "--ray-address", CLOSED),
        *("--journal", str(tmp_path / "journal"), "--poll-s", "0.1"),
    )
    agent.until_said("no Ray head at 127.0.0.1:1")
    agent.end()
    assert read_journal(agent.journal) == []


def run_agent(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "spotray.agent", *arguments]
    env = os.environ | environment
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)


def test_help_names_every_option() -> None:
    done = run_agent("--help")
    assert done.returncode == 0
    for option in ("--cloud", "--endpoint", "--ray-address", "--node-id", "--node-ip"):
        assert option in done.stdout


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        ["--cloud", "dew", "--ray-address", CLOSED],
        ["--cloud", "aws", "--ray-address", CLOSED, "--node-id", "xyz"],
        ["--cloud", "aws", "--ray-address", CLOSED, "--node-id", "ab", "--node-ip", "1.2.3.4"],
        ["--cloud", "aws", "--ray-address", CLOSED, "--poll-s", "0"],
        ["--cloud", "aws", "--ray-address", CLOSED, "--drain-margin-s", "nan"],
    ],
)
def test_wrong_usage_is_exit_code_2(wrong: list[str]) -> None:
    assert run_agent(*wrong).returncode == 2


@pytest.mark.parametrize("address", ["auto", "head", "head:port", ":6379", "head:99999"])
def test_an_address_that_is_none_is_found_at_the_start_not_at_the_notice(address: str) -> None:
    done = run_agent("--cloud", "aws", "--ray-address", address, "--node-id", "ab")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "write HOST:PORT" in done.stderr


def test_the_endpoint_of_the_environment_counts_where_no_argument_is() -> None:
    usual = ["--cloud", "aws", "--ray-address", CLOSED, "--node-id", "ab"]
    wrong = run_agent(*usual, AWS_EC2_METADATA_SERVICE_ENDPOINT="gopher://imds")
    assert (wrong.returncode, "gopher://imds" in wrong.stderr) == (1, True)
    wrong = run_agent(
        *usual, "--endpoint", "ftp://imds", AWS_EC2_METADATA_SERVICE_ENDPOINT="http://imds"
    )
    assert (wrong.returncode, "ftp://imds" in wrong.stderr) == (1, True)


@pytest.mark.parametrize("kind", ["azure", "gcp"])
def test_it_hears_the_notices_of_other_clouds(kind: str, tmp_path: Path) -> None:
    cloud = AzureServer() if kind == "azure" else GcpServer()
    with cloud:
        agent = Agent(
            tmp_path,
            *("--cloud", kind, "--endpoint", cloud.url, "--ray-address", CLOSED),
            *("--node-id", NODE_ID, "--journal", str(tmp_path / "journal")),
        )
        try:
            agent.until_said("is spot")
            if isinstance(cloud, GcpServer):
                cloud.preempt()
            else:
                cloud.schedule(azure_event(time.time() + 30))
            agent.until_recorded(NoticeReceived)
            agent.end()
        finally:
            agent.process.kill()
            agent.process.wait()
    events = read_journal(agent.journal)
    (notice,) = [event for event in events if isinstance(event, NoticeReceived)]
    assert notice.source.startswith(kind)
    assert notice.deadline_s is not None
    assert 0 < notice.deadline_s - notice.at_s <= 30.5
    assert isinstance(events[-1], NodeDown)
    assert events[-1].cause == "preemption"
