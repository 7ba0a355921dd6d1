"""What every launch policy keeps, whatever it has learnt. A new policy joins `POLICIES`."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotray.market.offer import Market
from spotray.policy.decision import Decision, Launch, LaunchPolicy, Wait
from spotray.policy.expected_cost import ExpectedCost
from spotray.policy.spot_first import SpotFirst
from spotray.policy.view import (
    Fact,
    Launched,
    LaunchView,
    Preempted,
    Progressed,
    Refusal,
    Refused,
    SpotOnly,
)

POLICIES: dict[str, type[LaunchPolicy]] = {"spot-first": SpotFirst, "expected-cost": ExpectedCost}
NOW_S = 1_700_000_000.0
ALL = tuple(
    Market(cloud="aws", zone=f"us-west-2{zone}", instance_type=kind, spot=spot)
    for spot in (True, False)
    for kind in ("g5.xlarge", "g6.xlarge")
    for zone in "abc"
)
pytestmark = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())

markets = st.sampled_from(ALL)
times = st.floats(NOW_S - 90_000, NOW_S + 100)
facts = st.lists(
    st.one_of(
        st.builds(Launched, at_s=times, market=markets, names=st.tuples(st.text("ab", max_size=2))),
        st.builds(
            Refused,
            at_s=times,
            market=markets,
            kind=st.sampled_from(Refusal),
            node_type=st.sampled_from(["gpu", "cpu"]),
            retry_after_s=st.none() | st.floats(0, 1e6),
        ),
        st.builds(
            Preempted,
            at_s=times,
            market=markets,
            name=st.text("abc", max_size=2),
            lived_s=st.none() | st.floats(0, 1e6),
        ),
        st.builds(Progressed, at_s=times),
        st.builds(SpotOnly, at_s=times, until_s=times),
    ),
    max_size=25,
).map(lambda some: tuple(sorted(some, key=lambda fact: fact.at_s)))


@st.composite
def views(draw: st.DrawFn) -> LaunchView:
    candidates = tuple(draw(st.lists(markets, min_size=1, max_size=12, unique=True)))
    head = draw(st.booleans()) and not any(market.spot for market in candidates)
    return LaunchView(
        now_s=NOW_S,
        wanted=draw(st.integers(1, 9)),
        candidates=candidates,
        node_type="gpu",
        facts=draw(facts),
        tried=tuple(draw(st.lists(st.sampled_from(candidates), unique=True))),
        head=head,
        asked_since_s=draw(times),
    )


@given(view=views())
def test_it_asks_only_what_is_left_to_ask_and_ends_every_wait(
    policy: type[LaunchPolicy], view: LaunchView
) -> None:
    decision = policy().decide(view)
    if isinstance(decision, Wait):
        assert view.now_s < decision.until_s <= view.now_s + 7 * 86400
        return
    asked = [attempt.market for attempt in decision.attempts]
    assert len(set(asked)) == len(asked)
    assert set(asked) <= set(view.left)  # no on-demand while somebody probes for spot
    assert not (view.head and any(market.spot for market in asked))


@given(view=views())
def test_the_same_view_gets_the_same_answer(policy: type[LaunchPolicy], view: LaunchView) -> None:
    one = policy()
    one.decide(dataclasses.replace(view, facts=(), tried=()))  # keeps nothing of what it saw
    assert one.decide(view) == policy().decide(view)


@given(seed=st.integers(0, 2**32), kind=st.sampled_from(Refusal))
def test_one_launch_ends_whatever_the_cloud_says(
    policy: type[LaunchPolicy], seed: int, kind: Refusal
) -> None:
    rng, one = random.Random(seed), policy()
    candidates = tuple(rng.sample(ALL, rng.randint(1, len(ALL))))
    tried: tuple[Market, ...] = ()
    told: tuple[Fact, ...] = ()
    while isinstance(decision := ask(one, candidates, told, tried, NOW_S), Launch):
        market = decision.attempts[0].market
        tried = (*tried, market)
        told = (*told, Refused(at_s=NOW_S, market=market, kind=kind, node_type="gpu"))
        assert len(tried) <= len(candidates)


@pytest.mark.parametrize("kind", list(Refusal))
def test_a_market_that_keeps_refusing_is_asked_ever_less(
    policy: type[LaunchPolicy], kind: Refusal
) -> None:
    hours = 6
    calls = calls_in_an_outage(policy(), ALL, kind, seconds=hours * 3600)
    assert calls, "nobody was asked at all"
    assert max(calls.values()) <= 60 * hours, "more than one call a minute to one market"
    if kind in (Refusal.NOT_PERMITTED, Refusal.CONFIG, Refusal.NOT_OFFERED):
        assert max(calls.values()) == 1, "that refusal does not pass by itself"
    if kind is Refusal.QUOTA:
        assert max(calls.values()) <= hours + 1


def test_when_the_outage_ends_spot_is_asked_again_within_an_hour(
    policy: type[LaunchPolicy],
) -> None:
    told = tuple(
        Refused(at_s=NOW_S - 7200 + 120 * i, market=market, kind=Refusal.CAPACITY)
        for i in range(60)
        for market in ALL
    )
    asked = [ask(policy(), ALL, told, (), NOW_S + 60.0 * minute) for minute in range(60)]
    assert any(isinstance(one, Launch) and one.attempts[0].market.spot for one in asked)


def test_young_nodes_taken_again_and_again_do_not_go_on_for_ever(
    policy: type[LaunchPolicy],
) -> None:
    """Every spot node is taken after a minute; on-demand stays. A day of it."""
    one, now_s = policy(), NOW_S
    candidates = tuple(market for market in ALL if market.zone.endswith("a"))
    told: tuple[Fact, ...] = ()
    taken, on_demand_s = 0, 0.0
    while now_s < NOW_S + 86400:
        decision = ask(one, candidates, told, (), now_s)
        if isinstance(decision, Wait):
            now_s = decision.until_s
            continue
        market = decision.attempts[0].market
        name = f"i-{now_s}"
        told = (*told, Launched(at_s=now_s, market=market, names=(name,)))
        if market.spot:
            taken += 1
            now_s += 60.0
            told = (*told, Preempted(at_s=now_s, market=market, name=name))
        else:
            on_demand_s += 600.0
            now_s += 600.0  # then the user's demand moves on, and a node is wanted anew
    assert taken <= 24 * 8, "a day of preemptions is no plan"
    assert on_demand_s >= 0.8 * 86400, "most of the day, work was done"


def ask(
    policy: LaunchPolicy,
    candidates: tuple[Market, ...],
    told: tuple[Fact, ...],
    tried: tuple[Market, ...],
    now_s: float,
) -> Decision:
    return policy.decide(
        LaunchView(
            now_s=now_s,
            wanted=1,
            candidates=candidates,
            node_type="gpu",
            facts=told,
            tried=tried,
            asked_since_s=NOW_S,
        )
    )


def calls_in_an_outage(
    policy: LaunchPolicy, candidates: tuple[Market, ...], kind: Refusal, *, seconds: float
) -> Counter[Market]:
    """Calls to each market if all refuse, and a node is wanted every 5 s."""
    calls: Counter[Market] = Counter()
    told: tuple[Fact, ...] = ()
    now_s, tried = NOW_S, ()
    while now_s < NOW_S + seconds:
        decision = ask(policy, candidates, told, tried, now_s)
        if isinstance(decision, Wait):
            now_s, tried = max(now_s + 5.0, decision.until_s), ()
            continue
        market = decision.attempts[0].market
        calls[market] += 1
        tried = (*tried, market)
        told = (*told, Refused(at_s=now_s, market=market, kind=kind, node_type="gpu"))
    return calls
