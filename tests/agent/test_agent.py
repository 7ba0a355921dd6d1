from __future__ import annotations

import logging
import threading

import pytest

from spotray.agent.agent import UNNAMED_DEADLINE_S, NodeAgent
from spotray.clock import FakeClock
from spotray.cloud.fake import FakeNotices
from spotray.cloud.provider import NodeOutlook, Notice
from spotray.errors import DrainRejected, JournalError, MetadataError
from spotray.events import (
    Drained,
    DrainRefused,
    Event,
    NodeDown,
    NoticeCancelled,
    NoticeReceived,
    RebalanceHint,
)

CLOCK = FakeClock()
NOW_S = CLOCK.now_s()
CALM = NodeOutlook()
HINT = NodeOutlook(rebalance_hint=True)
SILENT = MetadataError("http://imds: timed out")


def noticed(in_s: float | None) -> NodeOutlook:
    deadline_s = None if in_s is None else NOW_S + in_s
    return NodeOutlook(notice=Notice(deadline_s=deadline_s, source="fake"))


class Rig:
    """An agent with its cloud, its Ray and its journal, all in memory."""

    def __init__(
        self,
        *script: NodeOutlook | MetadataError,
        spot: bool = True,
        poll_s: float = 1.0,
        drain_margin_s: float = 0.0,
    ) -> None:
        self.clock = FakeClock(NOW_S)
        self.notices = FakeNotices(script, spot=spot, poll_s=poll_s)
        self.drains: list[float] = []  # seconds from NOW_S
        self.refusals: list[Exception] = []  # what Ray says first
        self.events: list[Event] = []
        self.agent = NodeAgent(
            self.notices,
            self.drain,
            self.record,
            node_id="n1",
            drain_margin_s=drain_margin_s,
            clock=self.clock,
        )

    def drain(self, notice: Notice) -> None:
        if self.refusals:
            raise self.refusals.pop(0)
        assert notice.deadline_s is not None
        self.drains.append(notice.deadline_s - NOW_S)

    def record(self, event: Event) -> None:
        self.events.append(event)

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.agent.step()

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if type(event) is kind]


def test_a_calm_cloud_drains_nothing_and_writes_nothing() -> None:
    rig = Rig()
    rig.steps(5)
    assert (rig.drains, rig.events) == ([], [])


def test_a_notice_drains_once_however_often_it_is_heard() -> None:
    rig = Rig(CALM, noticed(120))
    rig.steps(6)
    assert rig.drains == [120]
    assert rig.events == [
        NoticeReceived(at_s=NOW_S, node_id="n1", deadline_s=NOW_S + 120, source="fake"),
        Drained(
            at_s=NOW_S,
            node_id="n1",
            deadline_s=NOW_S + 120,
            why="preemption notice from fake",
        ),
    ]


def test_an_earlier_deadline_drains_again_and_a_later_one_does_not() -> None:
    rig = Rig(noticed(120), noticed(60), noticed(90), noticed(60))
    rig.steps(5)
    assert rig.drains == [120, 60]
    assert len(rig.of(NoticeReceived)) == 2


def test_a_named_deadline_after_an_unnamed_one_drains_again() -> None:
    rig = Rig(noticed(None), noticed(None), noticed(20), noticed(None))
    rig.steps(5)
    assert rig.drains == [UNNAMED_DEADLINE_S, 20]


def test_a_cancelled_notice_lets_a_later_one_drain_anew() -> None:
    rig = Rig(noticed(120), CALM, CALM, noticed(120))
    rig.steps(5)
    assert rig.drains == [120, 120]
    assert len(rig.of(NoticeCancelled)) == 1


def test_a_refused_drain_is_tried_at_the_next_poll_and_told_once() -> None:
    rig = Rig(noticed(120))
    rig.refusals = [*[DrainRejected("no")] * 3, DrainRejected("not you")]
    rig.steps(6)
    assert rig.drains == [120]
    assert [event.why for event in rig.of(DrainRefused)] == ["no", "not you"]  # type: ignore[attr-defined]


def test_a_bug_in_the_drain_ends_neither_the_agent_nor_its_trying(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig(noticed(120), poll_s=0.001)
    rig.refusals = [RuntimeError("boom"), KeyError("boom")]
    stop = threading.Event()

    def drain_and_stop(notice: Notice) -> None:
        rig.drain(notice)
        stop.set()

    agent = NodeAgent(rig.notices, drain_and_stop, rig.record, node_id="n1", clock=rig.clock)
    agent.run(stop)
    assert rig.drains == [120]
    assert "poll failed, 2 in a row" in caplog.text


def test_rays_deadline_is_before_the_clouds_but_never_in_the_past() -> None:
    rig = Rig(noticed(120), noticed(3), noticed(-50), drain_margin_s=5)
    rig.steps(3)
    assert rig.drains == [115, 0, 0]
    assert [event.deadline_s - NOW_S for event in rig.of(NoticeReceived)] == [120, 3, -50]  # type: ignore[attr-defined]


def test_a_rebalance_hint_is_written_down_once_and_drains_nothing() -> None:
    rig = Rig(HINT, HINT, CALM, HINT)
    rig.steps(5)
    assert rig.events == [RebalanceHint(at_s=NOW_S, node_id="n1")]
    assert rig.drains == []


def test_a_journal_that_cannot_be_written_does_not_stop_the_drain(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig(HINT, noticed(120))

    def broken(event: Event) -> None:
        raise JournalError("disk full") if rig.drains else OSError("no disk")

    agent = NodeAgent(rig.notices, rig.drain, broken, node_id="n1", clock=rig.clock)
    for _ in range(4):
        agent.step()
    agent.shut_down()
    assert rig.drains == [120]
    assert caplog.text.count("cannot write down") == 1


def test_failures_of_the_service_are_survived_and_logged_once_a_streak(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    rig = Rig(CALM, SILENT, SILENT, SILENT, CALM, SILENT, noticed(120))
    rig.steps(7)
    assert rig.drains == [120]
    assert caplog.text.count("no answer about this node") == 2
    assert "after 3 failures" in caplog.text


def test_back_off_grows_to_a_cap_well_within_a_notice_and_ends_with_the_streak() -> None:
    rig = Rig(SILENT, SILENT, SILENT, SILENT, SILENT, SILENT, CALM, poll_s=1)
    waits = []
    for _ in range(7):
        rig.agent.step()
        waits.append(rig.agent.wait_s)
    assert waits == [1, 2, 4, 8, 15, 15, 1]


def test_a_slow_poll_is_not_made_faster_by_failures() -> None:
    rig = Rig(SILENT, poll_s=40)
    rig.steps(3)
    assert rig.agent.wait_s == 40


def test_an_on_demand_node_is_asked_about_rarely_but_lives() -> None:
    rig = Rig(CALM, CALM, noticed(120), spot=False, poll_s=5)
    rig.agent.step()
    assert rig.agent.wait_s == 60
    rig.steps(2)
    assert rig.drains == [120]  # the cloud's word counts more than the purchase kind
    assert rig.agent.wait_s == 5


def test_a_notice_is_heard_while_the_purchase_kind_is_unknown() -> None:
    class NoKind(FakeNotices):
        def is_spot(self) -> bool:
            raise SILENT

    rig = Rig()
    agent = NodeAgent(NoKind([noticed(120)]), rig.drain, rig.record, node_id="n1", clock=rig.clock)
    agent.step()
    assert rig.drains == [120]


@pytest.mark.parametrize(
    ("script", "cause", "was_noticed"),
    [
        ([CALM], "shutdown", False),
        ([HINT], "shutdown", False),
        ([noticed(120)], "preemption", True),
        ([noticed(120), CALM], "shutdown", False),
    ],
)
def test_the_end_is_a_preemption_only_under_a_notice(
    script: list[NodeOutlook], cause: str, was_noticed: bool
) -> None:
    rig = Rig(*script)
    rig.steps(2)
    rig.agent.shut_down()
    rig.agent.shut_down()
    assert rig.of(NodeDown) == [
        NodeDown(at_s=NOW_S, node_id="n1", cause=cause, noticed=was_noticed)
    ]


def test_run_ends_as_soon_as_it_is_told() -> None:
    rig = Rig(poll_s=3600)
    stop = threading.Event()
    thread = threading.Thread(target=rig.agent.run, args=(stop,))
    thread.start()
    stop.set()
    thread.join(5)
    assert not thread.is_alive()
    assert len(rig.of(NodeDown)) == 1


def test_maintenance_is_drained_and_is_no_preemption_in_the_journal() -> None:
    notice = Notice(deadline_s=NOW_S + 600, cause="maintenance", source="fake")
    rig = Rig(NodeOutlook(notice=notice))
    rig.steps(2)
    rig.agent.shut_down()
    assert rig.drains == [600]
    assert [event.cause for event in rig.of(NoticeReceived)] == ["maintenance"]  # type: ignore[attr-defined]
    assert [event.cause for event in rig.of(NodeDown)] == ["maintenance"]  # type: ignore[attr-defined]


def test_a_preemption_before_announced_maintenance_drains_again_and_counts() -> None:
    notice = Notice(deadline_s=NOW_S + 3600, cause="maintenance", source="fake")
    rig = Rig(NodeOutlook(notice=notice), noticed(30))
    rig.steps(2)
    rig.agent.shut_down()
    assert rig.drains == [3600, 30]
    assert [event.cause for event in rig.of(NodeDown)] == ["preemption"]  # type: ignore[attr-defined]
