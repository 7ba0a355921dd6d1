from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from email.message import Message
from urllib.error import HTTPError

import pytest

from spotray.clock import FakeClock
from spotray.errors import LabError
from spotray.lab.metadata import MetadataServer, NodeMetadata

METADATA = NodeMetadata(
    instance_id="i-1",
    instance_type="g5.xlarge",
    zone="us-east-1a",
    region="us-east-1",
    life_cycle="spot",
)
AT_S = 1_505_722_920.9  # 2017-09-18T08:22:00.9Z
TTL = "X-aws-ec2-metadata-token-ttl-seconds"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def server(clock: FakeClock) -> Iterator[MetadataServer]:
    with MetadataServer(clock=clock) as server:
        server.add("n1", METADATA)
        yield server


def call(url: str, method: str = "GET", **headers: str) -> tuple[int, str, Message[str, str]]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, method=method, headers=named)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=10) as answer:
            return answer.status, answer.read().decode(errors="replace"), answer.headers
    except HTTPError as exc:
        with exc:
            return exc.code, exc.read().decode(errors="replace"), exc.headers


def token(server: MetadataServer, node: str = "n1", ttl_s: int = 60) -> str:
    status, body, _ = call(f"{server.url_for(node)}/latest/api/token", "PUT", **{TTL: str(ttl_s)})
    assert status == 200
    return body


def get(server: MetadataServer, path: str, node: str = "n1", tok: str = "") -> tuple[int, str]:
    status, body, _ = call(
        f"{server.url_for(node)}/latest/meta-data/{path}",
        X_aws_ec2_metadata_token=tok or token(server, node),
    )
    return status, body


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("instance-id", "i-1"),
        ("instance-type", "g5.xlarge"),
        ("instance-life-cycle", "spot"),
        ("placement/availability-zone", "us-east-1a"),
        ("placement/region", "us-east-1"),
    ],
)
def test_a_node_is_told_what_it_is(server: MetadataServer, path: str, body: str) -> None:
    assert get(server, path) == (200, body)


@pytest.mark.parametrize(
    "path", ["spot/instance-action", "events/recommendations/rebalance", "nothing"]
)
def test_what_is_not_there_is_404(server: MetadataServer, path: str) -> None:
    assert get(server, path)[0] == 404


def test_a_notice_looks_as_ec2_writes_it_and_can_be_cancelled(server: MetadataServer) -> None:
    server.notice("n1", at_s=AT_S)
    status, body = get(server, "spot/instance-action")
    assert status == 200
    assert json.loads(body) == {"action": "terminate", "time": "2017-09-18T08:22:00Z"}
    server.cancel("n1")
    server.cancel("n1")
    assert get(server, "spot/instance-action")[0] == 404


def test_a_rebalance_hint_looks_as_ec2_writes_it(server: MetadataServer) -> None:
    server.rebalance("n1", at_s=AT_S)
    _, body = get(server, "events/recommendations/rebalance")
    assert json.loads(body) == {"noticeTime": "2017-09-18T08:22:00Z"}


def test_each_node_hears_only_of_itself(server: MetadataServer) -> None:
    server.add("n 2/ä", METADATA)
    server.notice("n 2/ä", at_s=AT_S)
    assert get(server, "spot/instance-action", "n 2/ä")[0] == 200
    assert get(server, "spot/instance-action", "n1")[0] == 404
    other = token(server, "n1")
    assert get(server, "instance-id", "n 2/ä", tok=other)[0] == 401


def test_a_removed_node_is_gone_and_may_come_back(server: MetadataServer) -> None:
    old = token(server)
    server.remove("n1")
    assert get(server, "instance-id", tok=old)[0] == 404
    server.add("n1", METADATA)
    assert get(server, "instance-id", tok=old)[0] == 401
    assert get(server, "instance-id") == (200, "i-1")


def test_without_a_token_it_says_nothing(server: MetadataServer) -> None:
    assert call(f"{server.url_for('n1')}/latest/meta-data/instance-id")[0] == 401
    assert get(server, "instance-id", tok="made-up")[0] == 401


def test_a_token_ends_when_it_said(server: MetadataServer, clock: FakeClock) -> None:
    tok = token(server, ttl_s=60)
    clock.advance(59)
    assert get(server, "instance-id", tok=tok)[0] == 200
    clock.advance(1)
    assert get(server, "instance-id", tok=tok)[0] == 401


@pytest.mark.parametrize("ttl", ["", "0", "-1", "21601", "long"])
def test_a_token_without_a_sane_life_is_refused(server: MetadataServer, ttl: str) -> None:
    url = f"{server.url_for('n1')}/latest/api/token"
    assert call(url, "PUT", **{TTL: ttl})[0] == 400


def test_a_proxy_gets_no_token_and_others_hear_its_life(server: MetadataServer) -> None:
    url = f"{server.url_for('n1')}/latest/api/token"
    assert call(url, "PUT", **{TTL: "60", "X-Forwarded-For": "1.2.3.4"})[0] == 403
    assert call(url, "PUT", **{TTL: "60"})[2][TTL] == "60"


def test_an_unknown_node_or_misbehaviour_is_named(server: MetadataServer) -> None:
    with pytest.raises(LabError, match="no node 'n9'; there are: n1"):
        server.notice("n9", at_s=AT_S)
    with pytest.raises(LabError, match="half-json"):
        server.misbehave("n1", "sulk")  # type: ignore[arg-type]


def test_a_port_in_use_is_named_with_the_cure(server: MetadataServer) -> None:
    with pytest.raises(LabError, match=f"port {server.port} .*port 0"):
        MetadataServer(port=server.port)


def test_close_frees_the_port_and_the_threads_and_ends_hanging_calls() -> None:
    before = set(threading.enumerate())  # of other tests, and they may end meanwhile
    server = MetadataServer()
    server.add("n1", METADATA)
    tok = token(server)
    server.misbehave("n1", "timeout")
    failures: list[Exception] = []

    def hang() -> None:
        try:
            get(server, "instance-id", tok=tok)
        except OSError as exc:
            failures.append(exc)

    hangs = threading.Event()

    class Released(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            hangs.set()
            return super().wait(timeout)

    server._nodes["n1"].released = Released()
    client = threading.Thread(target=hang)
    client.start()
    assert hangs.wait(10)
    server.close()
    server.close()
    client.join()
    assert len(failures) == 1
    assert set(threading.enumerate()) <= before
    MetadataServer(port=server.port).close()
