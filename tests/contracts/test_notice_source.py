"""What every `NoticeSource` promises, fakes included."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Protocol

import pytest

from spotray.clock import FakeClock
from spotray.cloud.aws.notices import AwsNotices
from spotray.cloud.azure.notices import AzureNotices
from spotray.cloud.fake import FakeNotices
from spotray.cloud.gcp.notices import NOTICE_S, GcpNotices
from spotray.cloud.provider import NodeOutlook, Notice, NoticeSource
from spotray.errors import MetadataError
from spotray.lab.metadata import MetadataServer, NodeMetadata
from tests.cloud.servers import AzureServer, GcpServer, azure_event

DEADLINE_S = float(int(time.time()) + 120)  # whole seconds: EC2 tells no others


class Cloud(Protocol):
    """A cloud that does what a test wants, and the source that reads it."""

    @property
    def source(self) -> NoticeSource: ...

    def notice(self, at_s: float) -> None: ...
    def cancel(self) -> None: ...
    def fall_silent(self) -> None: ...
    def heal(self) -> None: ...


class FakeRig:
    def __init__(self, spot: bool) -> None:
        self.source = FakeNotices(spot=spot)
        self._says = NodeOutlook()

    def _say(self, outlook: NodeOutlook) -> None:
        self._says = outlook
        self.source.script = [outlook]

    def notice(self, at_s: float) -> None:
        self._say(NodeOutlook(notice=Notice(deadline_s=at_s, source="fake")))

    def cancel(self) -> None:
        self._say(NodeOutlook())

    def rebalance(self) -> None:
        self._say(NodeOutlook(rebalance_hint=True))

    def fall_silent(self) -> None:
        self.source.script = [MetadataError("silent")]

    def heal(self) -> None:
        self._say(self._says)


class AwsRig:
    def __init__(self, server: MetadataServer, spot: bool) -> None:
        kind = "spot" if spot else "on-demand"
        server.add(
            "n1",
            NodeMetadata(
                instance_id="i-1",
                instance_type="g5.xlarge",
                zone="us-east-1a",
                region="us-east-1",
                life_cycle=kind,
            ),
        )
        self._server = server
        self.source = AwsNotices(server.url_for("n1"), timeout_s=0.2)

    def notice(self, at_s: float) -> None:
        self._server.notice("n1", at_s=at_s)

    def cancel(self) -> None:
        self._server.cancel("n1")

    def rebalance(self) -> None:
        self._server.rebalance("n1", at_s=time.time())

    def fall_silent(self) -> None:
        self._server.misbehave("n1", "timeout")

    def heal(self) -> None:
        self._server.misbehave("n1", None)


class GcpRig:
    def __init__(self, server: GcpServer) -> None:
        self._server = server
        self._clock = FakeClock()
        self.source = GcpNotices(server.url, timeout_s=0.2, wait_s=0, clock=self._clock)

    def notice(self, at_s: float) -> None:
        # Google tells no time: it is now, and the end comes 30 s later.
        self._clock.advance(at_s - NOTICE_S - self._clock.now_s())
        self._server.preempt()

    def cancel(self) -> None:
        self._server.say("instance/preempted", b"FALSE")

    def fall_silent(self) -> None:
        self._server.fall_silent()

    def heal(self) -> None:
        self._server.heal()


class AzureRig:
    def __init__(self, server: AzureServer) -> None:
        self._server = server
        self.source = AzureNotices(server.url, timeout_s=0.2, first_timeout_s=0.2)

    def notice(self, at_s: float) -> None:
        self._server.schedule(azure_event(at_s))

    def cancel(self) -> None:
        self._server.schedule()

    def fall_silent(self) -> None:
        self._server.fall_silent()

    def heal(self) -> None:
        self._server.heal()


class Hinting(Cloud, Protocol):
    """A cloud that also tells of a higher risk."""

    def rebalance(self) -> None: ...


def build(kind: str, spot: bool) -> Iterator[Cloud]:
    if kind == "gcp":
        with GcpServer(spot=spot) as gcp:
            yield GcpRig(gcp)
    elif kind == "azure":
        with AzureServer(spot=spot) as azure:
            yield AzureRig(azure)
    else:
        yield from build_hinting(kind, spot)


def build_hinting(kind: str, spot: bool) -> Iterator[Hinting]:
    if kind == "fake":
        yield FakeRig(spot)
        return
    with MetadataServer() as server:
        yield AwsRig(server, spot)


@pytest.fixture(params=["fake", "aws"])
def hinting(request: pytest.FixtureRequest) -> Iterator[Hinting]:
    yield from build_hinting(request.param, spot=True)


@pytest.fixture(params=["fake", "aws", "azure", "gcp"])
def cloud(request: pytest.FixtureRequest) -> Iterator[Cloud]:
    yield from build(request.param, spot=True)


@pytest.fixture(params=["fake", "aws", "azure", "gcp"])
def on_demand_cloud(request: pytest.FixtureRequest) -> Iterator[Cloud]:
    yield from build(request.param, spot=False)


def test_a_calm_cloud_gives_neither_notice_nor_hint(cloud: Cloud) -> None:
    assert cloud.source.outlook() == NodeOutlook()


def test_a_notice_carries_its_deadline_and_its_source(cloud: Cloud) -> None:
    cloud.notice(DEADLINE_S)
    notice = cloud.source.outlook().notice
    assert notice is not None
    assert (notice.deadline_s, notice.cause) == (DEADLINE_S, "preemption")
    assert notice.source


def test_asking_twice_gives_the_same_notice(cloud: Cloud) -> None:
    cloud.notice(DEADLINE_S)
    assert cloud.source.outlook() == cloud.source.outlook()


def test_a_cancelled_notice_is_gone(cloud: Cloud) -> None:
    cloud.notice(DEADLINE_S)
    cloud.source.outlook()
    cloud.cancel()
    assert cloud.source.outlook().notice is None


def test_a_rebalance_hint_is_no_notice(hinting: Hinting) -> None:
    hinting.rebalance()
    assert hinting.source.outlook() == NodeOutlook(rebalance_hint=True)


def test_a_silent_service_is_a_metadata_error_and_no_more(cloud: Cloud) -> None:
    cloud.notice(DEADLINE_S)
    cloud.fall_silent()
    with pytest.raises(MetadataError):
        cloud.source.outlook()
    with pytest.raises(MetadataError):
        cloud.source.is_spot()
    cloud.heal()
    assert cloud.source.outlook().notice is not None
    assert cloud.source.is_spot()


def test_it_knows_spot_from_on_demand(cloud: Cloud, on_demand_cloud: Cloud) -> None:
    assert cloud.source.is_spot()
    assert not on_demand_cloud.source.is_spot()


def test_it_says_how_often_to_ask(cloud: Cloud) -> None:
    assert cloud.source.poll_s > 0
