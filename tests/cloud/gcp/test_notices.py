"""Google's metadata server, as it is and as it may go wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from spotray.clock import FakeClock, SystemClock, wait_until
from spotray.cloud.gcp.notices import MAINTENANCE_S, NOTICE_S, GcpNotices, NodeIdentity
from spotray.cloud.provider import NodeOutlook
from spotray.errors import ConfigError, MetadataError
from tests.cloud.servers import GcpServer


@pytest.fixture
def server() -> Iterator[GcpServer]:
    with GcpServer() as server:
        yield server


def notices_of(
    server: GcpServer, *, wait_s: float = 0, clock: FakeClock | None = None
) -> GcpNotices:
    return GcpNotices(server.url, timeout_s=0.5, wait_s=wait_s, clock=clock)


def test_identity_is_read_without_the_paths_around_it(server: GcpServer) -> None:
    assert notices_of(server).identity() == NodeIdentity(
        instance_id="4520031799277581759",
        name="ray-worker-1",
        machine_type="g2-standard-4",
        zone="us-central1-a",
    )


def test_the_thirty_seconds_count_from_the_first_word(server: GcpServer) -> None:
    clock = FakeClock(1000.0)
    notices = notices_of(server, clock=clock)
    server.preempt()
    clock.advance(5.0)
    first = notices.outlook().notice
    clock.advance(7.0)
    assert first is not None
    assert first.deadline_s == 1005.0 + NOTICE_S
    assert notices.outlook().notice == first


def test_a_change_is_heard_at_once_by_a_question_that_waits(server: GcpServer) -> None:
    notices = notices_of(server, wait_s=30)
    assert notices.outlook() == NodeOutlook()
    heard: list[NodeOutlook] = []
    began_s = time.monotonic()
    thread = threading.Thread(target=lambda: heard.append(notices.outlook()))
    thread.start()
    assert wait_until(
        lambda: "instance/preempted?wait_for_change=true" in server.asked[-1],
        timeout_s=10,
        clock=SystemClock(),
        poll_s=0.01,
    )
    server.preempt()
    thread.join(10)
    assert len(heard) == 1
    assert heard[0].notice is not None
    assert time.monotonic() - began_s < 10, "the server was to be asked for 30 s"


def test_once_it_is_known_no_question_waits(server: GcpServer) -> None:
    notices = notices_of(server, wait_s=30)
    notices.outlook()
    server.preempt()
    for _ in range(3):  # a drain that is refused is tried again at each poll
        assert notices.outlook().notice is not None
    assert sum("wait_for_change" in path for path in server.asked) == 1


@pytest.mark.parametrize("body", [b"", b"true", b"MAYBE", b"<html>", b"\xff"])
def test_anything_but_true_and_false_is_a_metadata_error(server: GcpServer, body: bytes) -> None:
    notices = notices_of(server)
    server.say("instance/preempted", body)
    server.say("instance/scheduling/preemptible", body)
    for ask in (notices.outlook, notices.is_spot):
        with pytest.raises(MetadataError, match="neither TRUE nor FALSE"):
            ask()
    server.preempt()
    assert notices.outlook().notice is not None


def test_an_answer_of_somebody_else_is_not_believed(server: GcpServer) -> None:
    server.flavor = "Captive Portal"
    with pytest.raises(MetadataError, match="not of Google's"):
        notices_of(server).outlook()


def test_a_path_that_is_not_there_is_a_metadata_error(server: GcpServer) -> None:
    del server.answers["instance/id"]
    with pytest.raises(MetadataError, match="instance/id: HTTP 404"):
        notices_of(server).identity()


@pytest.mark.parametrize("wrong", [{"endpoint": "metadata"}, {"poll_s": 0}, {"wait_s": -1}])
def test_settings_out_of_range_are_told(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        GcpNotices(**wrong)  # type: ignore[arg-type]


def test_maintenance_that_stops_the_machine_is_a_notice_but_no_preemption(
    server: GcpServer,
) -> None:
    clock = FakeClock()
    notices = notices_of(server, clock=clock)
    server.say("instance/maintenance-event", b"TERMINATE_ON_HOST_MAINTENANCE")
    first = notices.outlook().notice
    assert first is not None
    assert (first.cause, first.source) == ("maintenance", "gcp/maintenance-event")
    assert first.deadline_s == clock.now_s() + MAINTENANCE_S
    clock.advance(60)
    assert notices.outlook().notice == first  # counted from when it was first heard of
    server.preempt()
    taken = notices.outlook().notice
    assert taken is not None
    assert taken.cause == "preemption"


@pytest.mark.parametrize("word", [b"NONE", b"MIGRATE_ON_HOST_MAINTENANCE"])
def test_maintenance_that_stops_nothing_is_no_notice(server: GcpServer, word: bytes) -> None:
    server.say("instance/maintenance-event", word)
    assert notices_of(server).outlook().notice is None


def test_maintenance_that_is_over_takes_its_notice_back(server: GcpServer) -> None:
    notices = notices_of(server)
    server.say("instance/maintenance-event", b"TERMINATE_ON_HOST_MAINTENANCE")
    assert notices.outlook().notice is not None
    server.say("instance/maintenance-event", b"NONE")
    assert notices.outlook().notice is None


def test_an_unknown_word_about_maintenance_is_an_error(server: GcpServer) -> None:
    server.say("instance/maintenance-event", b"<html>")
    with pytest.raises(MetadataError, match="no such event"):
        notices_of(server).outlook()
