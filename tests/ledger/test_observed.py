"""Traces from what was observed."""

from __future__ import annotations

from spotray.events import SpotObserved
from spotray.ledger.observed import Part, parts

GAP_S = 600.0
START = 1_700_000_400.0  # a full multiple of the gap


def seen(tick: float, zone: str, likely: float, **more: object) -> SpotObserved:
    fields = {
        "at_s": START + GAP_S * tick,
        "cloud": "aws",
        "region": "us-east-1",
        "zone": zone,
        "instance_types": ("g5.xlarge",),
        "nodes": 4,
        "every_s": GAP_S,
        "likely": likely,
        **more,
    }
    return SpotObserved(**fields)  # type: ignore[arg-type]


def traces(*events: SpotObserved, likely: float = 0.5, gap_s: float = GAP_S) -> list[Part]:
    return parts(events, gap_s=gap_s, likely=likely)


def values(part: Part) -> dict[str, tuple[float, ...]]:
    return {zone: trace.values for zone, trace in part.availability.items()}


def test_a_zone_has_its_nodes_while_they_are_likely_and_not_refused() -> None:
    (part,) = traces(
        seen(0, "a", 0.5),
        seen(1, "a", 0.4),
        seen(2, "a", 0.9, refused="quota"),
        seen(3, "a", 1.0),
    )
    assert values(part) == {"a": (4, 0, 0, 4)}
    assert part.start_s == START
    assert part.availability["a"].gap_s == GAP_S


def test_all_zones_have_one_length_and_one_that_an_answer_leaves_out_has_nothing() -> None:
    (part,) = traces(seen(0, "a", 0.9), seen(1, "a", 0.9), seen(1, "b", 0.9), seen(2, "b", 0.9))
    assert values(part) == {"a": (4, 4, 0), "b": (0, 4, 4)}


def test_an_answer_stands_for_a_short_gap_and_a_long_one_begins_a_new_part() -> None:
    first, second = traces(seen(0, "a", 0.9), seen(4, "a", 0.1), seen(9, "a", 0.9))
    assert values(first) == {"a": (4, 4, 4, 4, 0)}
    assert values(second) == {"a": (4,)}
    assert (second.start_s, second.ticks) == (START + 9 * GAP_S, 1)


def test_where_looks_were_seldomer_than_ticks_each_stands_until_the_next() -> None:
    hourly = [seen(tick, "a", likely, every_s=3600.0) for tick, likely in ((0, 0.9), (6, 0.1))]
    (part,) = traces(*hourly, seen(30, "a", 0.9), seen(34, "a", 0.9))
    assert values(part)["a"] == (4,) * 6 + (0,) * 24 + (4,) * 5
    assert len(traces(*hourly, seen(31, "a", 0.9))) == 2  # three more were missing


def test_looks_that_are_some_seconds_late_fall_into_their_ticks() -> None:
    (part,) = traces(seen(0.01, "a", 0.9), seen(1.2, "a", 0.1), seen(2.005, "a", 0.9))
    assert values(part) == {"a": (4, 0, 4)}


def test_of_two_answers_in_a_tick_the_later_counts() -> None:
    (part,) = traces(seen(0.5, "a", 0.1), seen(0.0, "a", 0.9))
    assert values(part) == {"a": (0,)}


def test_another_threshold_is_another_trace_of_the_same_facts() -> None:
    events = [seen(0, "a", 0.3), seen(1, "a", 0.8)]
    assert values(traces(*events, likely=0.2)[0]) == {"a": (4, 4)}
    assert values(traces(*events, likely=0.9)[0]) == {"a": (0, 0)}


def test_a_price_holds_until_the_next_one_and_before_the_first() -> None:
    (part,) = traces(
        seen(0, "a", 0.9),
        seen(1, "a", 0.9, usd_per_hour=0.4),
        seen(2, "a", 0.9),
        seen(3, "a", 0.9, usd_per_hour=0.5),
        seen(3, "b", 0.9),
    )
    assert part.usd_per_hour["a"].values == (0.4, 0.4, 0.4, 0.5)
    assert "b" not in part.usd_per_hour  # nobody told its price


def test_nothing_observed_is_no_part() -> None:
    assert traces() == []
