"""Looking at spot again and again, on a cloud and a clock that do not exist."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import pytest

from spotray.clock import FakeClock
from spotray.cloud.fake import FakeDryRuns, FakePrices, FakeScores
from spotray.cloud.observe import CloudProbe, Look, Watch, looks
from spotray.cloud.prices import Quote
from spotray.errors import (
    ConfigError,
    NotAnswered,
    NotPermittedError,
    SpotrayError,
    ThrottledError,
)

TYPES = ("g5.xlarge", "g6.xlarge")
WATCH = Watch(cloud="aws", region="us-east-1", types=TYPES, nodes=4, every_s=600.0)
THROTTLED = ThrottledError("slower", market="aws/us-east-1", retry_after_s=1.0)
BAD = (
    ConfigError("no credentials"),
    NotPermittedError("ec2:GetSpotPlacementScores", market="aws"),
)


def quote(zone: str, usd: float, *, spot: bool = True, name: str = "g5.xlarge") -> Quote:
    return Quote(
        cloud="aws",
        region="us-east-1",
        zone=zone,
        instance_type=name,
        spot=spot,
        usd_per_hour=usd,
        source="test",
    )


def look(scores: FakeScores, **more: object) -> Look:
    clock = FakeClock()
    return CloudProbe(scores, clock=clock, **more).look(WATCH)  # type: ignore[arg-type]


def run(scores: FakeScores, count: int, *, clock: FakeClock) -> Sequence[Look]:
    probe = CloudProbe(scores, clock=clock)
    return list(islice(looks(probe, WATCH, clock=clock), count))


def test_a_look_has_each_zone_with_the_cheapest_of_the_types() -> None:
    prices = FakePrices(
        [
            quote("us-east-1a", 0.5),
            quote("us-east-1a", 0.4, name="g6.xlarge"),
            quote("us-east-1a", 0.1, spot=False),
        ]
    )
    found = look(FakeScores({"us-east-1b": 0.3, "us-east-1a": 0.9}), prices=lambda: prices)
    assert [(z.zone, z.likely, z.usd_per_hour, z.nodes) for z in found.zones] == [
        ("us-east-1a", 0.9, 0.4, 4),
        ("us-east-1b", 0.3, None, 4),
    ]
    assert not found.problems


def test_a_price_of_the_region_is_that_of_each_zone() -> None:
    found = look(FakeScores({"a": 1.0, "b": 1.0}), prices=lambda: FakePrices([quote("", 0.3)]))
    assert [zone.usd_per_hour for zone in found.zones] == [0.3, 0.3]


def test_prices_are_asked_for_seldom_and_from_a_new_source() -> None:
    clock, made = FakeClock(), []

    def source() -> FakePrices:
        made.append(FakePrices([quote("a", 0.3 + len(made))]))
        return made[-1]

    probe = CloudProbe(FakeScores({"a": 1.0}), prices=source, clock=clock, prices_every_s=3600)
    told = []
    for _ in range(8):
        told.append(probe.look(WATCH).zones[0].usd_per_hour)
        clock.advance(600)
    assert told == [0.3] * 6 + [1.3] * 2


def test_prices_that_nobody_tells_are_a_problem_and_no_reason_not_to_look() -> None:
    away = FakePrices(script=[NotPermittedError("pricing:GetProducts", market="aws")])
    found = look(FakeScores({"a": 1.0}), prices=lambda: away)
    assert found.zones[0].usd_per_hour is None
    assert found.problems == ("no prices: pricing:GetProducts",)


def test_a_zone_is_refused_only_if_every_type_is() -> None:
    runs = FakeDryRuns(
        ["a", "b"],
        {
            ("a", "g5.xlarge"): "not-offered",
            ("b", "g5.xlarge"): "not-offered",
            ("b", "g6.xlarge"): "quota",
        },
    )
    found = look(FakeScores({"a": 1.0, "b": 1.0}), dry_runs=runs)
    assert [zone.refused for zone in found.zones] == ["", "not-offered"]


def test_dry_runs_that_may_not_be_asked_say_nothing_of_capacity_and_are_left_out() -> None:
    clock, runs = FakeClock(), FakeDryRuns(["a"], {})
    runs.script = [NotPermittedError("ec2:RunInstances", market="aws")]
    probe = CloudProbe(FakeScores({"a": 1.0}), dry_runs=runs, clock=clock)
    first, second = probe.look(WATCH), probe.look(WATCH)
    assert first.problems == ("no dry runs: ec2:RunInstances",)
    assert [one.zones[0].refused for one in (first, second)] == ["", ""]
    assert (second.problems, runs.asked) == ((), 1)


def test_dry_runs_without_an_answer_are_asked_again_at_the_next_look() -> None:
    clock, runs = FakeClock(), FakeDryRuns(["a"], {("a", name): "quota" for name in TYPES})
    runs.script = [NotAnswered("whatever")]
    probe = CloudProbe(FakeScores({"a": 1.0}), dry_runs=runs, clock=clock)
    first, second = probe.look(WATCH), probe.look(WATCH)
    assert first.problems == ("no dry runs at this look: whatever",)
    assert second.zones[0].refused == "quota"


def test_looks_come_at_full_multiples_so_that_a_new_start_goes_on_in_the_same_ticks() -> None:
    clock = FakeClock(1_700_000_000.0)
    found = run(FakeScores({"a": 1.0}), 3, clock=clock)
    assert [one.at_s for one in found] == [1_700_000_000.0, 1_700_000_400.0, 1_700_001_000.0]
    again = run(FakeScores({"a": 1.0}), 2, clock=clock)
    assert [one.at_s for one in again] == [1_700_001_000.0, 1_700_001_600.0]


class SetClock(FakeClock):
    """A clock that is being set while it runs: a sleep of 100 s takes 99 of its own."""

    def sleep(self, duration_s: float) -> None:
        self.advance(min(duration_s, max(0.99 * duration_s, 0.1)))


def test_a_sleep_that_ends_early_is_no_look_before_its_time() -> None:
    found = run(FakeScores({"a": 1.0}), 3, clock=SetClock(1_700_000_400.0))
    assert [one.at_s for one in found] == [1_700_000_400.0, 1_700_001_000.0, 1_700_001_600.0]


def test_a_throttled_question_is_asked_again_with_patience() -> None:
    clock = FakeClock()
    (found,) = run(FakeScores(THROTTLED, THROTTLED, {"a": 1.0}), 1, clock=clock)
    assert [zone.likely for zone in found.zones] == [1.0]
    assert not found.problems


def test_a_cloud_that_stays_throttled_is_one_line_and_the_next_look_comes() -> None:
    clock = FakeClock()
    script: list[SpotrayError | dict[str, float]] = [*[THROTTLED] * 5, {"a": 1.0}]
    first, second = run(FakeScores(*script), 2, clock=clock)
    assert first.zones == ()
    assert first.problems == ("no look, the next will try again: slower",)
    assert [zone.likely for zone in second.zones] == [1.0]


@pytest.mark.parametrize("bad", BAD, ids=["config", "not-permitted"])
def test_what_no_later_look_would_mend_ends_the_first_and_no_later_one(bad: SpotrayError) -> None:
    with pytest.raises(type(bad)):
        run(FakeScores(bad), 1, clock=FakeClock())
    found = run(FakeScores({"a": 1.0}, bad, {"a": 0.5}), 3, clock=FakeClock())
    assert [len(one.zones) for one in found] == [1, 0, 1]


def test_no_look_begins_after_the_end() -> None:
    clock = FakeClock(1_700_000_400.0)
    probe = CloudProbe(FakeScores({"a": 1.0}), clock=clock)
    found = list(looks(probe, WATCH, clock=clock, until_s=clock.now_s() + 1200.0))
    assert len(found) == 3
