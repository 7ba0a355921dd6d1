from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from spotray.clock import FakeClock
from spotray.cluster.launcher import Launcher, NothingLaunched, launch_head
from spotray.cluster.memory import LaunchMemory
from spotray.errors import (
    ConfigError,
    NoCapacityError,
    NotPermittedError,
    QuotaError,
    ThrottledError,
)
from spotray.events import Event, LaunchTried, LaunchWaited
from spotray.market.offer import Market
from spotray.policy.spot_first import SpotFirst
from spotray.policy.view import Launched, OnDemandFirst, Refusal, Refused

A, B = (Market.parse(f"aws/us-west-2{zone}/g5.xlarge/spot") for zone in "ab")
CANDIDATES = (A, B, A.on_demand(), B.on_demand())


class Cloud:
    """Gives what its markets hold; a market may raise instead."""

    def __init__(self, clock: FakeClock) -> None:
        self.holds: dict[Market, int] = dict.fromkeys(CANDIDATES, 99)
        self.raises: dict[Market, Exception] = {}
        self.calls: list[tuple[Market, int]] = []
        self._clock = clock

    def ask(self, market: Market, count: int) -> Mapping[str, str]:
        self.calls.append((market, count))
        self._clock.advance(0.5)
        if market in self.raises:
            raise self.raises[market]
        given = min(count, self.holds[market])
        if not given:
            raise NoCapacityError("none", market=str(market), code="Insufficient")
        return {f"i-{len(self.calls)}-{i}": "node" for i in range(given)}

    def markets(self) -> list[Market]:
        asked = [market for market, _ in self.calls]
        self.calls.clear()
        return asked


class Rig:
    def __init__(self, path: Path) -> None:
        self.clock = FakeClock()
        self.cloud = Cloud(self.clock)
        self.events: list[Event] = []
        self.path = path
        self.restart()

    def restart(self) -> None:
        self.launcher = Launcher(
            SpotFirst(),
            LaunchMemory(self.path, clock=self.clock),
            tell=self.events.append,
            clock=self.clock,
            foreign=(OSError,),
        )

    def launch(self, wanted: int = 1, candidates: tuple[Market, ...] = CANDIDATES) -> list[str]:
        got = self.launcher.launch(
            self.cloud.ask, node_type="gpu", candidates=candidates, wanted=wanted
        )
        return sorted(got)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path / "launches.jsonl")


def test_all_that_is_wanted_comes_from_the_first_market_by_one_call(rig: Rig) -> None:
    assert len(rig.launch(3)) == 3
    assert rig.cloud.calls == [(A, 3)]


def test_what_a_market_lacks_is_topped_up_from_the_next(rig: Rig) -> None:
    rig.cloud.holds |= {A: 2, B: 1}
    assert len(rig.launch(5)) == 5
    assert rig.cloud.calls == [(A, 5), (B, 3), (A.on_demand(), 2)]
    assert rig.launch()
    assert rig.cloud.calls[3:] == [(A.on_demand(), 1)], "the two that ran dry rest"


def test_fewer_than_wanted_are_better_than_none(rig: Rig) -> None:
    rig.cloud.holds = dict.fromkeys(CANDIDATES, 0) | {B: 1}
    assert len(rig.launch(3)) == 1
    assert len(rig.cloud.calls) == 4


def test_the_facts_hold_what_was_given_and_what_was_not(rig: Rig) -> None:
    rig.cloud.holds[A] = 1
    rig.launch(2)
    first, partial, second = rig.launcher.memory.facts()
    assert isinstance(first, Launched)
    assert isinstance(second, Launched)
    assert isinstance(partial, Refused)
    assert (first.market, first.names) == (A, ("i-1-0",))
    assert (partial.market, partial.code) == (A, "PartialCapacity")
    assert second.market == B


def test_when_all_is_out_the_error_says_why_and_nobody_is_asked_again_at_once(rig: Rig) -> None:
    rig.cloud.holds = dict.fromkeys(CANDIDATES, 0)
    with pytest.raises(NothingLaunched, match="us-west-2b g5.xlarge on-demand out for") as caught:
        rig.launch()
    assert caught.value.word == "Insufficient"
    assert rig.cloud.markets() == list(CANDIDATES)
    for _ in range(20):
        rig.clock.advance(5)
        with pytest.raises(NothingLaunched) as caught:
            rig.launch()
    assert caught.value.word == "waiting"
    assert rig.cloud.markets() == []
    rig.clock.advance(25)
    rig.cloud.holds[A] = 1
    assert rig.launch()
    assert rig.cloud.markets() == [A]


def test_the_journal_hears_of_each_call_and_once_of_a_wait(rig: Rig) -> None:
    rig.cloud.holds = dict.fromkeys(CANDIDATES, 0)
    for _ in range(10):
        with pytest.raises(NothingLaunched):
            rig.launch()
        rig.clock.advance(5)
    tried = [event for event in rig.events if isinstance(event, LaunchTried)]
    waited = [event for event in rig.events if isinstance(event, LaunchWaited)]
    assert [event.market for event in tried] == [str(market) for market in CANDIDATES]
    assert {event.refused for event in tried} == {"capacity"}
    assert tried[0].seconds == 0.5
    assert tried[0].code == "Insufficient"
    assert len(waited) == 1
    assert waited[0].until_s > waited[0].at_s


@pytest.mark.parametrize(
    ("error", "kind", "asked"),
    [
        (QuotaError("no", market="m", code="Max"), Refusal.QUOTA, [A, A.on_demand()]),
        (NotPermittedError("no", market="m"), Refusal.NOT_PERMITTED, [A, A.on_demand()]),
        (ThrottledError("no", market="m", retry_after_s=60.0), Refusal.THROTTLED, [A]),
        (ConfigError("no such image"), Refusal.CONFIG, [A]),
        (OSError("a word of the SDK"), Refusal.UNKNOWN, [A, B]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_kind_of_refusal_has_its_own_next_step(
    rig: Rig, error: Exception, kind: Refusal, asked: list[Market]
) -> None:
    rig.cloud.raises = {A: error}
    if kind in (Refusal.THROTTLED, Refusal.CONFIG):
        with pytest.raises(NothingLaunched):
            rig.launch()
    else:
        rig.launch()
    assert rig.cloud.markets() == asked
    (refused,) = (fact for fact in rig.launcher.memory.facts() if isinstance(fact, Refused))
    assert refused.kind is kind


def test_an_error_that_is_nobodys_refusal_is_not_swallowed(rig: Rig) -> None:
    rig.cloud.raises = {A: ZeroDivisionError("a bug")}
    with pytest.raises(ZeroDivisionError):
        rig.launch()


def test_a_restart_of_the_head_keeps_the_cool_downs(rig: Rig) -> None:
    rig.cloud.holds |= {A: 0, B: 0}
    rig.launch()
    rig.cloud.markets()
    rig.restart()
    rig.launch()
    assert rig.cloud.markets() == [A.on_demand()]


def test_what_was_forbidden_is_asked_once_more_after_a_restart(rig: Rig) -> None:
    rig.cloud.raises = dict.fromkeys(CANDIDATES, NotPermittedError("no", market="m", code="Un"))
    for _ in range(50):
        rig.clock.advance(600)
        with pytest.raises(NothingLaunched, match="ray up"):
            rig.launch()
    assert rig.cloud.markets() == [A, A.on_demand()]
    rig.clock.advance(10)
    rig.restart()
    with pytest.raises(NothingLaunched):
        rig.launch()
    assert rig.cloud.markets() == [A, A.on_demand()]


def test_of_two_launches_at_once_the_second_knows_what_the_first_was_refused(rig: Rig) -> None:
    rig.cloud.holds |= {A: 0, B: 0}
    threads = [threading.Thread(target=rig.launch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    asked = rig.cloud.markets()
    assert [asked.count(market) for market in CANDIDATES] == [1, 1, 4, 0]


def test_a_policy_that_asks_what_it_may_not_is_a_bug_that_shows(rig: Rig) -> None:
    from spotray.policy.decision import Attempt, Decision, Launch
    from spotray.policy.view import LaunchView

    class Stubborn:
        def decide(self, view: LaunchView) -> Decision:
            return Launch(attempts=(Attempt(market=A, why="always there"),))

    rig.cloud.holds[A] = 0
    launcher = Launcher(Stubborn(), rig.launcher.memory, tell=rig.events.append, clock=rig.clock)
    with pytest.raises(AssertionError, match="not to be asked"):
        launcher.launch(rig.cloud.ask, node_type="gpu", candidates=CANDIDATES, wanted=1)


def test_a_head_takes_the_first_zone_that_has_it_on_demand(rig: Rig) -> None:
    zones = ("us-west-2a", "us-west-2b")
    rig.cloud.holds[A.on_demand()] = 0

    def head() -> dict[str, object]:
        return launch_head(
            rig.cloud.ask, cloud="aws", zones=zones, instance_type="g5.xlarge", count=1
        )

    assert len(head()) == 1
    assert rig.cloud.markets() == [A.on_demand(), B.on_demand()]
    rig.cloud.holds[B.on_demand()] = 0
    with pytest.raises(NoCapacityError, match="none; none"):
        head()
    rig.cloud.raises = {A.on_demand(): QuotaError("no", market="m")}
    rig.cloud.markets()
    with pytest.raises(QuotaError):
        head()
    assert rig.cloud.markets() == [A.on_demand()], "no other zone cures that"


# -- a floor of on-demand nodes --------------------------------------------------


def launch_with_floor(rig: Rig, wanted: int, on_demand: int) -> int:
    got = rig.launcher.launch(
        rig.cloud.ask,
        node_type="gpu",
        candidates=CANDIDATES,
        wanted=wanted,
        on_demand=on_demand,
    )
    return len(got)


def test_what_a_floor_lacks_comes_first_and_on_demand(rig: Rig) -> None:
    assert launch_with_floor(rig, wanted=3, on_demand=1) == 3
    assert rig.cloud.calls == [(A.on_demand(), 1), (A, 2)]
    rig.cloud.calls.clear()
    assert launch_with_floor(rig, wanted=1, on_demand=2) == 1
    assert rig.cloud.calls == [(A.on_demand(), 1)]


def test_a_floor_that_cannot_be_had_does_not_hold_up_the_others(rig: Rig) -> None:
    rig.cloud.holds |= {A.on_demand(): 0, B.on_demand(): 0}
    assert launch_with_floor(rig, wanted=3, on_demand=1) == 2
    with pytest.raises(NothingLaunched):
        launch_with_floor(rig, wanted=1, on_demand=1)
    assert {market.spot for market in rig.cloud.markets()[:2]} == {False}


def hurry(rig: Rig, until_s: float) -> None:
    rig.launcher.memory.add(
        OnDemandFirst(at_s=rig.clock.now_s(), until_s=until_s, why="vit shall be done in 600 s")
    )


def test_near_a_deadline_on_demand_comes_first_and_the_journal_says_why(rig: Rig) -> None:
    hurry(rig, rig.clock.now_s() + 600)
    rig.launch(2)
    assert rig.cloud.markets() == [A.on_demand()]
    (told,) = [one for one in rig.events if isinstance(one, LaunchTried)]
    assert told.why == "vit shall be done in 600 s"


def test_near_a_deadline_spot_stands_in_where_on_demand_is_out(rig: Rig) -> None:
    hurry(rig, rig.clock.now_s() + 600)
    rig.cloud.holds |= {A.on_demand(): 1, B.on_demand(): 0}
    assert len(rig.launch(3)) == 3
    assert rig.cloud.markets() == [A.on_demand(), B.on_demand(), A]


def test_near_a_deadline_on_demand_that_the_user_forbids_stays_forbidden(rig: Rig) -> None:
    hurry(rig, rig.clock.now_s() + 600)
    rig.launch(candidates=(A, B))
    assert rig.cloud.markets() == [A]


def test_after_the_deadline_spot_comes_first_again(rig: Rig) -> None:
    hurry(rig, rig.clock.now_s() + 600)
    rig.clock.advance(601)
    rig.launch()
    assert rig.cloud.markets() == [A]
