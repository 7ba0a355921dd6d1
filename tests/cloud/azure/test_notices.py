"""Azure's scheduled events, as they are and as they may go wrong."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotray.cloud.azure.notices import AzureNotices, NodeIdentity, parse_events
from spotray.cloud.provider import Notice
from spotray.errors import ConfigError, MetadataError
from tests.cloud.servers import AzureServer, azure_event

AT_S = float(int(time.time()) + 30)
URL = "http://169.254.169.254/metadata/scheduledevents"


@pytest.fixture
def server() -> Iterator[AzureServer]:
    with AzureServer() as server:
        yield server


def notices_of(server: AzureServer) -> AzureNotices:
    return AzureNotices(server.url, timeout_s=0.5, first_timeout_s=0.5)


def heard(*events: Any) -> list[Notice]:
    body = json.dumps({"DocumentIncarnation": 1, "Events": events}).encode()
    return parse_events(body, machine="worker_1", url=URL, now_s=AT_S - 30)


def read(*events: Any) -> list[float | None]:
    return [notice.deadline_s for notice in heard(*events)]


def test_identity_is_read_and_a_location_without_zones_has_none(server: AzureServer) -> None:
    assert notices_of(server).identity() == NodeIdentity(
        vm_id="13f56399-bd52-4150-9748-7190aae1ff21",
        name="worker_1",
        vm_size="Standard_NC4as_T4_v3",
        location="eastus",
        zone="",
    )


def test_the_vendors_time_is_understood() -> None:
    body = json.dumps({"Events": [azure_event(0, NotBefore="Mon, 19 Sep 2016 18:29:47 GMT")]})
    (notice,) = parse_events(body.encode(), machine="worker_1", url=URL, now_s=1_474_309_757.0)
    assert notice.deadline_s == 1_474_309_787.0


def test_only_a_preemption_of_this_machine_is_a_notice() -> None:
    assert (
        read(
            azure_event(AT_S, Resources=["worker_2"]),
            azure_event(AT_S, EventType="Freeze"),
            azure_event(AT_S, EventType="Terminate", EventSource="User"),
        )
        == []
    )
    assert read(azure_event(AT_S, Resources=["WORKER_1"])) == [AT_S]


@pytest.mark.parametrize("kind", ["Reboot", "Redeploy"])
def test_maintenance_is_a_notice_but_no_preemption(kind: str) -> None:
    (notice,) = heard(azure_event(AT_S, EventType=kind))
    assert (notice.deadline_s, notice.cause) == (AT_S, "maintenance")
    (notice,) = heard(azure_event(AT_S))
    assert notice.cause == "preemption"


def test_of_maintenance_and_a_preemption_the_earlier_counts(server: AzureServer) -> None:
    server.schedule(azure_event(AT_S + 600, EventType="Redeploy"), azure_event(AT_S))
    notice = notices_of(server).outlook().notice
    assert notice is not None
    assert notice.cause == "preemption"
    server.schedule(azure_event(AT_S + 600), azure_event(AT_S, EventType="Redeploy"))
    notice = notices_of(server).outlook().notice
    assert notice is not None
    assert (notice.deadline_s, notice.cause) == (AT_S, "maintenance")


def test_one_that_has_started_names_no_time_and_comes_first(server: AzureServer) -> None:
    started = azure_event(AT_S, EventStatus="Started", NotBefore="")
    assert read(started) == [None]
    server.schedule(azure_event(AT_S), started)
    notice = notices_of(server).outlook().notice
    assert notice is not None
    assert notice.deadline_s is None


@pytest.mark.parametrize(
    "event",
    [
        "Preempt",
        {"EventType": "Preempt"},
        azure_event(AT_S, Resources="worker_1"),
        azure_event(AT_S, NotBefore=""),
        azure_event(AT_S, NotBefore="soon"),
        azure_event(AT_S, NotBefore=7),
        azure_event(AT_S, NotBefore="Mon, 19 Sep 2016 18:29:47 GMT"),
    ],
)
def test_what_cannot_be_read_is_a_metadata_error_with_the_url(event: Any) -> None:
    with pytest.raises(MetadataError, match=URL):
        read(event)


@given(
    st.binary()
    | st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.sampled_from(["Events", "EventType"]), inner)
        ),
    ).map(lambda value: json.dumps(value).encode())
)
def test_no_body_leads_anywhere_but_to_notices_or_a_metadata_error(body: bytes) -> None:
    with contextlib.suppress(MetadataError):
        for notice in parse_events(body, machine="worker_1", url=URL, now_s=AT_S):
            assert notice.deadline_s is None or abs(notice.deadline_s - AT_S) <= 86400


def test_the_first_question_may_take_longer_than_others(server: AzureServer) -> None:
    notices = AzureNotices(server.url, timeout_s=0.2, first_timeout_s=20.0)
    notices.is_spot()
    slow = server.answer

    def answer(path: str, headers: dict[str, str]) -> Any:
        if "scheduledevents" in path:
            time.sleep(0.6)  # Azure takes up to two minutes
        return slow(path, headers)

    server.answer = answer  # type: ignore[method-assign]
    assert notices.outlook().notice is None
    with pytest.raises(MetadataError, match="timed out"):
        notices.outlook()


def test_a_word_that_is_no_priority_is_not_taken_for_on_demand(server: AzureServer) -> None:
    server.say("instance/compute/priority", b"<html>")
    with pytest.raises(MetadataError, match="no priority"):
        notices_of(server).is_spot()


@pytest.mark.parametrize("wrong", [{"endpoint": "x"}, {"poll_s": 0}, {"first_timeout_s": 0}])
def test_settings_out_of_range_are_told(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        AzureNotices(**wrong)  # type: ignore[arg-type]
