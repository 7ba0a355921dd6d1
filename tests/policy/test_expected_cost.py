from __future__ import annotations

import re

import pytest

from spotray.market.hazards import learn
from spotray.market.lives import NodeLife
from spotray.market.offer import Market
from spotray.market.prices import PriceTable
from spotray.policy.decision import Decision, Launch, Wait
from spotray.policy.evidence import Told
from spotray.policy.expected_cost import (
    PRIOR_HAZARD_PER_HOUR,
    PRIOR_REFUSED_FRAC,
    Belief,
    ExpectedCost,
    ExpectedCostConfig,
)
from spotray.policy.view import (
    Fact,
    Launched,
    LaunchView,
    Preempted,
    Refusal,
    Refused,
    SpotOnly,
)

NOW_S = 1_700_000_000.0
HOUR_S = 3600.0
HEADER = "cloud,region,instance_type,kind,usd_low,usd_high\n"


def market(zone: str, *, spot: bool = True, kind: str = "g5.xlarge", cloud: str = "aws") -> Market:
    return Market(cloud=cloud, zone=f"us-west-2{zone}", instance_type=kind, spot=spot)


A, B, C = (market(zone) for zone in "abc")
ON_DEMAND = A.on_demand()
PRICES = PriceTable.parse(
    HEADER + "aws,us-west-2,g5.xlarge,spot,0.4,0.4\naws,us-west-2,g5.xlarge,on-demand,1,1\n",
    name="prices",
)


def decide(
    *facts: Fact,
    candidates: tuple[Market, ...] = (A, B, C, ON_DEMAND),
    tried: tuple[Market, ...] = (),
    now_s: float = NOW_S,
    prices: PriceTable = PRICES,
    **config: float,
) -> Decision:
    told = tuple(sorted(facts, key=lambda fact: fact.at_s))
    policy = ExpectedCost(ExpectedCostConfig(**config), prices=prices)  # type: ignore[arg-type]
    return policy.decide(
        LaunchView(now_s=now_s, wanted=1, candidates=candidates, facts=told, tried=tried)
    )


def order(*facts: Fact, **more: object) -> list[Market]:
    decision = decide(*facts, **more)  # type: ignore[arg-type]
    assert isinstance(decision, Launch), decision
    return [attempt.market for attempt in decision.attempts]


def lives(where: Market, *hours: float, ago_s: float = 3 * HOUR_S) -> list[Fact]:
    """Nodes that were taken, each after so long a life."""
    return [
        Preempted(at_s=NOW_S - ago_s, market=where, name=f"{where}-{n}", lived_s=h * HOUR_S)
        for n, h in enumerate(hours)
    ]


def believed(where: Market, *facts: Fact, now_s: float = NOW_S, **config: float) -> Belief:
    policy = ExpectedCost(ExpectedCostConfig(**config), prices=PRICES)  # type: ignore[arg-type]
    told = Told.of(sorted(facts, key=lambda fact: fact.at_s))
    return policy.beliefs([where], now_s, told)[where]


def test_without_a_past_it_believes_the_public_traces_and_takes_spot_as_configured() -> None:
    assert order() == [A, B, C, ON_DEMAND]
    belief = believed(A)
    assert belief.hazard_per_hour == pytest.approx(PRIOR_HAZARD_PER_HOUR) == pytest.approx(0.25)
    assert belief.refusals == pytest.approx(PRIOR_REFUSED_FRAC / (1 - PRIOR_REFUSED_FRAC))


def test_a_decision_says_why_with_its_numbers() -> None:
    decision = decide()
    assert isinstance(decision, Launch)
    cost = 0.4 * (1 + 0.25 * (180 + 28.6) / 3600)
    assert decision.why == (
        f"{cost:.4g} USD a useful hour: spot at 0.4, 0.25 losses an hour, 0.8 refusals a launch; "
        "on-demand 1"
    )
    last = decision.attempts[-1]
    assert last.why.startswith(f"on-demand at 1 USD a useful hour; spot {cost:.4g} at best")


def test_the_market_whose_nodes_live_longer_comes_first() -> None:
    told = [*lives(A, *[0.2] * 6), *lives(B, *[8.0] * 6)]
    assert order(*told)[:3] == [B, C, A]
    assert believed(B, *told).hazard_per_hour < 0.25 < believed(A, *told).hazard_per_hour


def test_it_counts_losses_over_node_hours_and_is_drawn_to_the_level_above() -> None:
    told = lives(A, 1.0, 1.0, ago_s=0.0)
    forget_nothing = {"half_life_s": 1e9}
    own = believed(A, *told, prior_losses=1.0, **forget_nothing)
    assert own.hazard_per_hour == pytest.approx((1 + 2) / (1 / 0.25 + 2), rel=1e-3)
    stiff = believed(A, *told, prior_losses=100.0, **forget_nothing)
    assert stiff.hazard_per_hour == pytest.approx(0.25, rel=0.02)


def test_siblings_speak_for_a_market_without_a_past_and_the_cloud_for_one_without_siblings() -> (
    None
):
    told = lives(A, *[0.1] * 8)
    sibling = believed(B, *told).hazard_per_hour
    distant = believed(market("b", kind="g6.xlarge"), *told).hazard_per_hour
    elsewhere = believed(market("b", cloud="gcp"), *told).hazard_per_hour
    own = believed(A, *told).hazard_per_hour
    assert elsewhere == pytest.approx(0.25)
    assert own > sibling > 2 * elsewhere
    assert distant > 2 * elsewhere, "the rest of its cloud speaks for it"


def test_one_that_was_refused_comes_after_its_equals_once_it_may_be_asked_again() -> None:
    told = Refused(at_s=NOW_S - 200, market=A, kind=Refusal.CAPACITY)
    assert order(told)[:3] == [B, C, A]
    assert order(told, now_s=NOW_S + 86400)[:1] == [A], "a day later that says nothing"


def test_what_is_old_counts_less_until_the_prior_is_back() -> None:
    told = lives(A, *[0.05] * 12, ago_s=600.0)
    hazards = [
        believed(A, *told, now_s=NOW_S + hours * HOUR_S).hazard_per_hour for hours in (0, 6, 12, 48)
    ]
    assert hazards == sorted(hazards, reverse=True)
    assert hazards[0] > 1.0
    assert hazards[-1] == pytest.approx(0.25, rel=0.05)


def test_a_node_that_runs_is_evidence_for_its_market() -> None:
    told = Launched(at_s=NOW_S - 4 * HOUR_S, market=A, names=("i-1", "i-2"))
    assert believed(A, told).hazard_per_hour < 0.15
    taken = Preempted(at_s=NOW_S - 3.9 * HOUR_S, market=A, name="i-1")
    assert believed(A, told, taken).hazard_per_hour > believed(A, told).hazard_per_hour


def test_on_demand_comes_first_where_spot_would_cost_more() -> None:
    told = [one for where in (A, B, C) for one in lives(where, *[0.02] * 15, ago_s=2400.0)]
    slow = {"start_s": 1200.0}
    decision = decide(*told, **slow)
    assert isinstance(decision, Launch)
    assert decision.attempts[0].market == ON_DEMAND
    said = re.fullmatch(
        r"on-demand at 1 USD a useful hour; spot ([\d.]+) at best, in us-west-2a g5\.xlarge: "
        r"([\d.]+) losses an hour, ([\d.]+) refusals a launch",
        decision.why,
    )
    assert said, decision.why
    assert float(said[1]) > 1.0
    assert order(*told, start_s=30.0, recovery_s=1.0)[0].spot, "quick starts bear it"
    # Nodes are wanted: where on-demand gives none, dear spot is better than nothing.
    assert set(order(*told, tried=(ON_DEMAND,), **slow)) == {A, B, C}
    probe = SpotOnly(at_s=NOW_S - 1, until_s=NOW_S + 59)
    assert all(one.spot for one in order(*told, probe, **slow))


def test_it_goes_for_the_cheaper_type_unless_that_one_is_lost_too_often() -> None:
    table = PriceTable.parse(
        HEADER + "aws,us-west-2,g5.xlarge,spot,0.40,0.40\naws,us-west-2,g6.xlarge,spot,0.36,0.36\n",
        name="prices",
    )
    cheap = market("a", kind="g6.xlarge")
    both = (A, cheap)
    assert order(candidates=both, prices=table) == [cheap, A]
    told = [*lives(cheap, *[0.1] * 10), *lives(A, *[6.0] * 4)]
    assert order(*told, candidates=both, prices=table, start_s=600.0) == [A, cheap]


def test_a_type_without_a_price_is_ranked_all_the_same() -> None:
    strange = market("a", kind="x9.huge")
    decision = decide(candidates=(strange, strange.on_demand()))
    assert isinstance(decision, Launch)
    assert decision.attempts[0].market == strange
    assert "0.3956 of on-demand a useful hour: spot at 0.39" in decision.why
    assert "on-demand 1" in decision.why


def test_without_on_demand_it_waits_for_the_first_market_to_come_back() -> None:
    told = [Refused(at_s=NOW_S - 20, market=one, kind=Refusal.CAPACITY) for one in (A, B, C)]
    decision = decide(*told, candidates=(A, B, C))
    assert isinstance(decision, Wait)
    assert decision.until_s == NOW_S + 100


def test_it_leaves_a_market_that_turns_bad_and_comes_back_once_it_is_good_again() -> None:
    """Zone a loses nodes within 4 minutes from hour 12 to hour 24; b's live for 2 hours."""
    policy = ExpectedCost(ExpectedCostConfig(start_s=600.0), prices=PRICES)
    facts: list[Fact] = []
    now_s, chosen = 0.0, [0.0, 0.0, 0.0]  # hours in zone a: while good, bad, good again
    bad_s, good_s, end_s = 12 * HOUR_S, 24 * HOUR_S, 72 * HOUR_S
    while now_s < end_s:
        view = LaunchView(now_s=now_s, wanted=1, candidates=(A, B, ON_DEMAND), facts=tuple(facts))
        decision = policy.decide(view)
        if isinstance(decision, Wait):
            now_s = decision.until_s
            continue
        where, name = decision.attempts[0].market, f"i-{len(facts)}"
        facts.append(Launched(at_s=now_s, market=where, names=(name,)))
        lives_s = {A: 240.0 if bad_s <= now_s < good_s else 4 * HOUR_S, B: 2 * HOUR_S}
        until_s = now_s + lives_s.get(where, 600.0)
        if where == A:
            phase = 0 if now_s < bad_s else 1 if now_s < good_s else 2
            chosen[phase] += (until_s - now_s) / HOUR_S
        now_s = until_s
        if where.spot:
            facts.append(Preempted(at_s=now_s, market=where, name=name))
    assert chosen[0] >= 8, "it was the better one"
    assert chosen[1] < 1.5, "4-minute lives are not sought"
    assert chosen[2] > 12, "what was bad long ago is tried again, and kept"


def test_lives_of_earlier_clusters_stand_in_the_place_of_public_traces() -> None:
    seen = [
        NodeLife(market=str(A), name=f"i-{n}", start_s=0.0, seconds=1800.0 + n, ended=True)
        for n in range(100)
    ]
    policy = ExpectedCost(prices=PRICES, hazards=learn(seen))
    beliefs = policy.beliefs([A, B, market("a", cloud="gcp")], NOW_S, Told.of([]))
    assert beliefs[A].hazard_per_hour == pytest.approx(2.0, rel=0.2)
    assert beliefs[B].hazard_per_hour == pytest.approx(2.0, rel=0.2)  # of its type
    # Then what is remembered counts against it, as against the traces.
    told = Told.of([Launched(at_s=NOW_S - 20 * HOUR_S, market=A, names=("i-new",))])
    assert policy.beliefs([A], NOW_S, told)[A].hazard_per_hour < beliefs[A].hazard_per_hour
    assert ExpectedCost(prices=PRICES, hazards=learn([])).beliefs([A], NOW_S, Told.of([]))[
        A
    ].hazard_per_hour == pytest.approx(PRIOR_HAZARD_PER_HOUR, rel=0.2)
