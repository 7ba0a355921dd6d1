from __future__ import annotations

from pathlib import Path

import pytest

from spotray.clock import FakeClock
from spotray.cluster.memory import LaunchMemory
from spotray.cluster.vanished import Fate, Lookout, Machine
from spotray.events import Event, InstanceVanished
from spotray.market.offer import Market
from spotray.policy.view import Launched, Preempted

SPOT = Market.parse("aws/us-west-2a/g5.xlarge/spot")


class Rig:
    def __init__(self, path: Path) -> None:
        self.clock = FakeClock(start_s=1000.0)
        self.memory = LaunchMemory(path, clock=self.clock)
        self.events: list[Event] = []
        self.lookout = Lookout(self.memory, tell=self.events.append, clock=self.clock)
        self.asked: list[str] = []
        self.fate = Fate()

    def see(self, *names: str, market: Market = SPOT) -> None:
        listing = {name: Machine(market=market, launched_s=900.0) for name in names}

        def fate(name: str, machine: Machine) -> Fate:
            assert machine.market == market
            self.asked.append(name)
            return self.fate

        self.lookout.look(lambda: listing, fate)

    def preempted(self) -> list[str]:
        return [fact.name for fact in self.memory.facts() if isinstance(fact, Preempted)]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path / "launches.jsonl")


def test_a_spot_machine_that_is_gone_was_preempted_and_is_told_of_once(rig: Rig) -> None:
    rig.see("i-1", "i-2")
    assert rig.asked == []
    rig.see("i-2")
    rig.see("i-2")
    assert rig.preempted() == ["i-1"]
    (event,) = rig.events
    assert event == InstanceVanished(
        at_s=1000.0, name="i-1", market=str(SPOT), preempted=True, lived_s=100.0
    )


@pytest.mark.parametrize(
    ("market", "told", "preempted"),
    [
        (SPOT, None, True),
        (SPOT, False, False),
        (SPOT.on_demand(), None, False),
        (SPOT.on_demand(), True, True),
    ],
)
def test_what_the_cloud_says_beats_what_is_likely(
    rig: Rig, market: Market, told: bool | None, preempted: bool
) -> None:
    rig.fate = Fate(preempted=told, why="the cloud's words")
    rig.see("i-1", market=market)
    rig.see(market=market)
    assert bool(rig.preempted()) is preempted
    (event,) = rig.events
    assert isinstance(event, InstanceVanished)
    assert (event.preempted, event.why) == (preempted, "the cloud's words")


def test_what_ray_ended_has_not_vanished_even_if_it_is_listed_for_a_while(rig: Rig) -> None:
    rig.see("i-1")
    rig.lookout.ending(["i-1"])
    rig.see("i-1")
    rig.see()
    assert rig.asked == []
    assert rig.events == []


def test_a_machine_that_one_listing_left_out_is_still_watched(rig: Rig) -> None:
    rig.see("i-1")
    rig.fate = Fate(alive=True)
    rig.see()
    assert rig.events == []
    rig.fate = Fate()
    rig.see()
    assert rig.preempted() == ["i-1"]


def test_a_life_is_counted_from_the_launch_that_is_remembered(rig: Rig) -> None:
    rig.memory.add(Launched(at_s=990.0, market=SPOT, names=("i-1",)))
    rig.see("i-1")
    rig.see()
    (event,) = rig.events
    assert isinstance(event, InstanceVanished)
    assert event.lived_s == 10.0


def launch(rig: Rig, name: str) -> None:
    rig.memory.add(Launched(at_s=rig.clock.now_s(), market=SPOT, names=(name,)))


def test_a_machine_that_was_taken_before_any_listing_had_it_is_told_of_once(rig: Rig) -> None:
    rig.see()
    launch(rig, "i-1")
    rig.clock.advance(2.0)
    rig.fate = Fate(why="Server.SpotInstanceTermination")
    rig.see()
    rig.see()
    assert rig.preempted() == ["i-1"]
    (event,) = rig.events
    assert isinstance(event, InstanceVanished)
    assert event.lived_s == 2.0


def test_a_new_machine_that_the_cloud_does_not_know_yet_has_not_vanished(rig: Rig) -> None:
    launch(rig, "i-1")
    rig.see()
    assert rig.asked == ["i-1"]
    rig.see("i-1")
    rig.see("i-1")
    assert rig.asked == ["i-1"]
    assert rig.events == []


def test_a_machine_that_the_cloud_never_knew_is_gone_after_a_minute(rig: Rig) -> None:
    launch(rig, "i-1")
    rig.see()
    rig.clock.advance(61.0)
    rig.see()
    assert rig.preempted() == ["i-1"]


def test_a_machine_that_ray_ended_before_it_was_listed_has_not_vanished(rig: Rig) -> None:
    launch(rig, "i-1")
    rig.lookout.ending(["i-1"])
    rig.see()
    assert rig.asked == []
    assert rig.events == []


def test_launches_of_an_earlier_start_are_not_looked_for(tmp_path: Path) -> None:
    before = Rig(tmp_path / "launches.jsonl")
    launch(before, "i-1")
    after = Rig(before.memory.path)
    after.clock.advance(100.0)
    after.lookout = Lookout(after.memory, tell=after.events.append, clock=after.clock)
    after.see()
    assert after.asked == []


def test_a_head_is_not_looked_for_whoever_launched_it(rig: Rig) -> None:
    launch(rig, "head")
    rig.fate = Fate(alive=True)
    rig.see()  # before a listing has it
    rig.lookout.pass_over(["head"])
    rig.asked.clear()
    rig.see()
    rig.see()
    assert rig.asked == []
    assert rig.events == []
