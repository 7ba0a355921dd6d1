from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spotray.clock import FakeClock
from spotray.cloud.aws.notices import AwsNotices, NodeIdentity, parse_instance_action
from spotray.errors import ConfigError, MetadataError
from spotray.lab.metadata import MetadataServer, Misbehaviour, NodeMetadata

NOW_S = 1_505_722_800.0  # 2017-09-18T08:20:00Z
URL = "http://imds/latest/meta-data/spot/instance-action"
METADATA = NodeMetadata(
    instance_id="i-0123456789abcdef0",
    instance_type="g5.xlarge",
    zone="us-east-1a",
    region="us-east-1",
    life_cycle="spot",
)


@pytest.fixture
def server() -> Iterator[MetadataServer]:
    with MetadataServer() as server:
        server.add("n1", METADATA)
        yield server


@pytest.fixture
def notices(server: MetadataServer) -> AwsNotices:
    return AwsNotices(server.url_for("n1"), timeout_s=0.2)


# -- the body of instance-action ---------------------------------------------


def test_the_vendors_example_is_understood() -> None:
    body = b'{"action": "terminate", "time": "2017-09-18T08:22:00Z"}'
    notice = parse_instance_action(body, url=URL, now_s=NOW_S)
    assert notice.deadline_s == NOW_S + 120
    assert notice.source == "aws/instance-action"


@pytest.mark.parametrize("action", ["stop", "hibernate", "a-word-of-next-year"])
def test_every_action_takes_the_node(action: str) -> None:
    body = json.dumps({"action": action, "time": "2017-09-18T08:22:00Z"}).encode()
    assert parse_instance_action(body, url=URL, now_s=NOW_S).deadline_s == NOW_S + 120


def test_a_hibernation_may_name_no_time() -> None:
    notice = parse_instance_action(b'{"action": "hibernate"}', url=URL, now_s=NOW_S)
    assert notice.deadline_s is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"\xff\xfe\x00",
        b"null",
        b"[]",
        b'{"action": "terminate"',
        b'{"action": "terminate"}',
        b'{"action": 7, "time": "2017-09-18T08:22:00Z"}',
        b'{"time": "2017-09-18T08:22:00Z"}',
        b'{"action": "terminate", "time": 1505722920}',
        b'{"action": "terminate", "time": "soon"}',
        b'{"action": "terminate", "time": "2017-09-18T08:22:00"}',
        b'{"action": "terminate", "time": "2017-09-18T08:99:00Z"}',
        b'{"action": "terminate", "time": "0001-01-01T00:00:00+23:59"}',
        b'{"action": "terminate", "time": "1970-01-01T00:00:00Z"}',
        b'{"action": "terminate", "time": "9999-12-31T23:59:59Z"}',
        b"[" * 100_000,
    ],
)
def test_anything_else_is_a_metadata_error_with_the_url(body: bytes) -> None:
    with pytest.raises(MetadataError, match=URL):
        parse_instance_action(body, url=URL, now_s=NOW_S)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
action_like = st.fixed_dictionaries(
    {}, optional={"action": st.just("terminate") | json_values, "time": st.text() | json_values}
)
bodies = st.binary() | (json_values | action_like).map(lambda value: json.dumps(value).encode())


@given(bodies)
@example(b'{"action": "terminate", "time": "2017-09-18T08:22:00Z"}'[:40])
def test_no_body_leads_anywhere_but_to_a_sane_notice_or_a_metadata_error(body: bytes) -> None:
    with contextlib.suppress(MetadataError):
        notice = parse_instance_action(body, url=URL, now_s=NOW_S)
        assert notice.deadline_s is None or abs(notice.deadline_s - NOW_S) <= 86400


@given(st.datetimes(), st.floats(0, 4e9))
def test_a_time_is_read_exactly_or_not_at_all(when: object, now_s: float) -> None:
    body = json.dumps({"action": "stop", "time": f"{when.isoformat()}Z"}).encode()  # type: ignore[attr-defined]
    with contextlib.suppress(MetadataError):
        deadline_s = parse_instance_action(body, url=URL, now_s=now_s).deadline_s
        assert deadline_s is not None
        assert abs(deadline_s - now_s) <= 86400


# -- the service -------------------------------------------------------------


def test_identity_is_read_from_the_placement(notices: AwsNotices) -> None:
    assert notices.identity() == NodeIdentity(
        instance_id="i-0123456789abcdef0",
        instance_type="g5.xlarge",
        zone="us-east-1a",
        region="us-east-1",
    )


@pytest.mark.parametrize("how", ["timeout", "garbage", "half-json", "500", "expired-token"])
def test_misbehaviour_is_a_metadata_error_and_heals(
    server: MetadataServer, notices: AwsNotices, how: Misbehaviour
) -> None:
    server.notice("n1", at_s=time.time() + 60)
    assert notices.outlook().notice is not None
    server.misbehave("n1", how)
    for _ in range(2):  # with the cached token, and without
        with pytest.raises(MetadataError, match=f"127.0.0.1:{server.port}/n1/latest/"):
            notices.outlook()
    server.misbehave("n1", None)
    assert notices.outlook().notice is not None


def test_a_word_that_is_no_life_cycle_is_not_taken_for_on_demand(server: MetadataServer) -> None:
    server.add("n2", NodeMetadata(**{**vars(METADATA), "life_cycle": "normal-ish"}))
    with pytest.raises(MetadataError, match="normal-ish"):
        AwsNotices(server.url_for("n2")).is_spot()


def test_a_service_that_forgot_the_token_is_asked_for_a_new_one(
    server: MetadataServer, notices: AwsNotices
) -> None:
    notices.outlook()
    server.add("n1", METADATA)  # afresh: the old token is unknown
    assert notices.outlook().notice is None


def test_the_token_is_renewed_before_it_ends() -> None:
    clock = FakeClock(time.time())
    with MetadataServer(clock=clock) as server:
        server.add("n1", METADATA)
        notices = AwsNotices(server.url_for("n1"), clock=clock)
        for _ in range(5):
            notices.outlook()
            clock.advance(21_590)
        assert notices.is_spot()


def test_an_unknown_node_has_no_token_and_so_no_answer(server: MetadataServer) -> None:
    with pytest.raises(MetadataError, match="404"):
        AwsNotices(server.url_for("nobody")).outlook()


def test_a_closed_port_is_a_metadata_error() -> None:
    with MetadataServer() as server:
        url = server.url_for("n1")
    with pytest.raises(MetadataError, match="refused"):
        AwsNotices(url).outlook()


def test_the_environments_proxy_is_not_asked(
    server: MetadataServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert AwsNotices(server.url_for("n1")).is_spot()


@pytest.mark.parametrize("endpoint", ["", "169.254.169.254", "file:///etc/passwd", "http://"])
def test_an_endpoint_that_is_no_http_url_is_refused_at_once(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="http://HOST"):
        AwsNotices(endpoint)


@contextlib.contextmanager
def raw_server(reply: Callable[[bytes], bytes]) -> Iterator[str]:
    """A server that answers each connection with whatever bytes ``reply`` makes of the request."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):  # closed below
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.sendall(reply(connection.recv(65536)))

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


TOKEN = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nt"


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x00\xff\x00\xff",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nspo",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n" + b"s" * 100_000,
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nspot",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000 + b"\r\n",
        b"HTTP/1.1 999999 ?\r\n\r\n",
    ],
)
def test_broken_http_is_a_metadata_error(answer: bytes) -> None:
    def reply(request: bytes) -> bytes:
        return TOKEN if request.startswith(b"PUT") else answer

    with raw_server(reply) as url, pytest.raises(MetadataError, match="127.0.0.1"):
        AwsNotices(url, timeout_s=0.5).is_spot()


@pytest.mark.parametrize("token", [b"", b"two words", b"\xff", b"a\r\nb"])
def test_a_token_that_cannot_be_one_is_a_metadata_error(token: bytes) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(token), token)
    with raw_server(lambda _: answer) as url, pytest.raises(MetadataError, match="token"):
        AwsNotices(url, timeout_s=0.5).is_spot()
