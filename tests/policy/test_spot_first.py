from __future__ import annotations

import pytest

from spotray.errors import ConfigError
from spotray.market.offer import Market
from spotray.policy.decision import Launch, Wait
from spotray.policy.spot_first import SpotFirst, SpotFirstConfig
from spotray.policy.view import Fact, LaunchView, Preempted, Progressed, Refusal, Refused, SpotOnly

NOW_S = 10_000.0


def market(zone: str, *, spot: bool = True, instance_type: str = "g5.xlarge") -> Market:
    return Market(cloud="aws", zone=f"us-west-2{zone}", instance_type=instance_type, spot=spot)


A, B, C, D = (market(zone) for zone in "abcd")
ZONES = (A, B, C, D, *(one.on_demand() for one in (A, B, C, D)))


def view(
    *facts: Fact,
    candidates: tuple[Market, ...] = ZONES,
    tried: tuple[Market, ...] = (),
    now_s: float = NOW_S,
) -> LaunchView:
    told = tuple(sorted(facts, key=lambda fact: fact.at_s))
    return LaunchView(now_s=now_s, wanted=1, candidates=candidates, facts=told, tried=tried)


def refused(*markets: Market, ago_s: float = 1.0, kind: Refusal = Refusal.CAPACITY) -> list[Fact]:
    return [Refused(at_s=NOW_S - ago_s, market=one, kind=kind) for one in markets]


def taken(where: Market, *, times: int, every_s: float = 300.0, ago_s: float = 500.0) -> list[Fact]:
    return [
        Preempted(at_s=NOW_S - ago_s - every_s * back, market=where, name=f"i-{back}", lived_s=60.0)
        for back in range(times)
    ]


def order(seen: LaunchView, **config: int) -> list[Market]:
    decision = SpotFirst(SpotFirstConfig(**config)).decide(seen)
    assert isinstance(decision, Launch), decision
    return [attempt.market for attempt in decision.attempts]


def test_without_a_past_it_is_spot_in_the_order_of_the_config_then_on_demand() -> None:
    found = order(view())
    assert found[:4] == [A, B, C, A.on_demand()]
    assert found[-1] == D, "the spot market beyond the limit comes after on-demand"


def test_markets_with_fewer_failures_come_first() -> None:
    old = refused(A, A, B, ago_s=3000)
    assert order(view(*old))[:3] == [C, D, B]
    assert order(view(*refused(A, ago_s=3700)))[0] == A, "an hour ago is long ago"


def test_a_full_outage_costs_three_refusals_then_on_demand() -> None:
    tried: tuple[Market, ...] = ()
    facts: list[Fact] = []
    while (asked := order(view(*facts, tried=tried))[0]).spot:
        tried, facts = (*tried, asked), facts + refused(asked, ago_s=0)
    assert tried == (A, B, C)
    assert asked == A.on_demand()
    assert order(view(*facts, tried=tried))[0] == asked
    # The next launch goes on where this one stopped.
    assert order(view(*facts))[0] == D


def test_in_a_cool_down_on_demand_is_the_first_call() -> None:
    decision = SpotFirst().decide(view(*refused(A, B, C, D)))
    assert isinstance(decision, Launch)
    assert decision.attempts[0].market == A.on_demand()
    assert "us-west-2a g5.xlarge out for 119 s (capacity)" in decision.why


def test_when_the_cool_down_is_over_it_is_spot_again() -> None:
    assert order(view(*refused(A, B, C, D, ago_s=121)))[0] == A


def test_the_second_market_is_as_unlike_the_refused_one_as_can_be() -> None:
    types = ("g5.xlarge", "g6.xlarge")
    candidates = tuple(market(zone, instance_type=one) for one in types for zone in "ab")
    first = candidates[0]
    seen = view(*refused(first, ago_s=0), candidates=candidates, tried=(first,))
    assert order(seen)[0] == market("b", instance_type="g6.xlarge")


def test_without_on_demand_all_spot_markets_are_asked_then_it_waits() -> None:
    spot = (A, B, C, D)
    assert order(view(candidates=spot)) == [A, B, C, D]
    decision = SpotFirst().decide(
        view(*refused(A, B, ago_s=20), *refused(C, D, ago_s=5), candidates=spot)
    )
    assert decision == Wait(until_s=NOW_S + 100, why=decision.why)


def test_when_all_is_out_it_waits_for_the_first_market_to_come_back() -> None:
    everything = refused(*ZONES[1:], ago_s=5) + refused(A, ago_s=60)
    decision = SpotFirst().decide(view(*everything))
    assert isinstance(decision, Wait)
    assert decision.until_s == NOW_S + 60
    assert "us-west-2d g5.xlarge on-demand" in decision.why


def test_a_quota_takes_all_zones_out_with_one_call() -> None:
    seen = view(*refused(A, ago_s=0, kind=Refusal.QUOTA), tried=(A,))
    assert order(seen) == [one.on_demand() for one in (A, B, C, D)]


def test_young_nodes_taken_three_times_force_on_demand_with_the_count() -> None:
    one_zone = (A, A.on_demand())
    assert order(view(*taken(A, times=2), candidates=one_zone))[0] == A
    decision = SpotFirst().decide(view(*taken(A, times=3), candidates=one_zone))
    assert isinstance(decision, Launch)
    assert [one.market for one in decision.attempts] == [A.on_demand()]
    assert "3 rounds of young spot nodes taken in 18 min" in decision.why


def test_a_loop_without_on_demand_goes_to_a_zone_that_lost_none_or_waits_for_the_end() -> None:
    facts = taken(A, times=3)
    assert order(view(*facts, candidates=(A, B))) == [B]
    decision = SpotFirst().decide(view(*facts, candidates=(A,)))
    assert isinstance(decision, Wait)
    oldest_s = min(fact.at_s for fact in facts)
    assert NOW_S < decision.until_s <= oldest_s + 1800
    assert "loop guard" in decision.why


def test_a_loop_ends_when_it_is_old_or_the_job_went_on() -> None:
    facts = taken(A, times=3)
    assert order(view(*facts, Progressed(at_s=NOW_S - 1)))[0].spot
    later_s = NOW_S + 1800
    assert order(view(*facts, candidates=(A, A.on_demand()), now_s=later_s))[0] == A


def test_a_gang_that_is_taken_at_once_is_no_loop() -> None:
    gang = [Preempted(at_s=NOW_S - 200, market=A, name=f"i-{i}", lived_s=300.0) for i in range(8)]
    assert order(view(*gang))[0] == B


def test_a_probe_never_falls_back() -> None:
    probe = SpotOnly(at_s=NOW_S - 1, until_s=NOW_S + 59)
    assert order(view(probe)) == [A, B, C, D]
    decision = SpotFirst().decide(view(probe, *refused(A, B, C, D)))
    assert isinstance(decision, Wait)
    assert decision.until_s == NOW_S + 59
    assert decision.why.startswith("spot only for 59 s")


def test_on_demand_only_says_so() -> None:
    decision = SpotFirst().decide(view(candidates=(A.on_demand(),)))
    assert isinstance(decision, Launch)
    assert decision.why == "only on-demand is allowed"


@pytest.mark.parametrize("wrong", [{"max_refusals": 0}, {"guard_preemptions": 1.5}])
def test_counts_are_whole_and_positive(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        SpotFirstConfig(**wrong)
