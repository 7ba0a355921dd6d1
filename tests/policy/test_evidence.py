from __future__ import annotations

import pytest

from spotray.errors import ConfigError
from spotray.market.offer import Market
from spotray.policy.evidence import Block, CoolDowns, Told, blocks_of, losses
from spotray.policy.view import (
    Fact,
    Launched,
    LaunchView,
    Preempted,
    Progressed,
    Refusal,
    Refused,
)

A = Market.parse("aws/us-west-2a/g5.xlarge/spot")
B = Market.parse("aws/us-west-2b/g5.xlarge/spot")
OTHER_TYPE = Market.parse("aws/us-west-2a/g6.xlarge/spot")
OTHER_REGION = Market.parse("aws/us-east-1a/g5.xlarge/spot")
NOW_S = 10_000.0
RULES = CoolDowns()


def view(*facts: Fact, node_type: str = "gpu", asked_since_s: float = 0.0) -> LaunchView:
    return LaunchView(
        now_s=NOW_S,
        wanted=1,
        candidates=(A, B, A.on_demand(), B.on_demand()),
        node_type=node_type,
        facts=tuple(sorted(facts, key=lambda fact: fact.at_s)),
        asked_since_s=asked_since_s,
    )


def refused(
    kind: Refusal = Refusal.CAPACITY, *, ago_s: float = 1.0, market: Market = A, **more: str
) -> Refused:
    return Refused(at_s=NOW_S - ago_s, market=market, kind=kind, **more)


def block_of(market: Market, seen: LaunchView, rules: CoolDowns) -> Block | None:
    return blocks_of((market,), seen, Told.of(seen.facts), rules)[market]


def until_s(market: Market, seen: LaunchView) -> float | None:
    block = block_of(market, seen, RULES)
    return None if block is None else block.until_s - NOW_S


def test_a_market_without_a_past_is_free() -> None:
    assert block_of(A, view(), RULES) is None


@pytest.mark.parametrize(
    ("streak", "cooldown_s"), [(1, 120), (2, 240), (3, 480), (4, 960), (5, 1800), (5000, 1800)]
)
def test_refusals_in_a_row_double_the_cool_down_up_to_a_cap(streak: int, cooldown_s: float) -> None:
    seen = view(*[refused(ago_s=1.0)] * streak)
    assert until_s(A, seen) == cooldown_s - 1
    assert until_s(B, seen) is None
    assert until_s(A.on_demand(), seen) is None


def test_a_cool_down_ends() -> None:
    assert until_s(A, view(refused(ago_s=119.9))) == pytest.approx(0.1)
    assert until_s(A, view(refused(ago_s=120.0))) is None


def test_a_launch_clears_the_refusals_before_it() -> None:
    seen = view(refused(ago_s=50), refused(ago_s=40), Launched(at_s=NOW_S - 30, market=A))
    assert until_s(A, seen) is None
    again = view(*seen.facts, refused(ago_s=1))
    assert until_s(A, again) == 119


def test_a_launch_does_not_clear_the_preemptions_before_it() -> None:
    lost = [
        Preempted(at_s=NOW_S - 60, market=A, name="i-1", lived_s=5.0),
        Preempted(at_s=NOW_S - 40, market=A, name="i-2", lived_s=5.0),
    ]
    assert until_s(A, view(*lost, Launched(at_s=NOW_S - 1, market=A))) == 240 - 40


def test_a_node_that_lived_starts_the_count_of_preemptions_anew() -> None:
    lost = [
        Preempted(at_s=NOW_S - 60, market=A, name="i-1", lived_s=5.0),
        Preempted(at_s=NOW_S - 40, market=A, name="i-2", lived_s=700.0),
    ]
    assert until_s(A, view(*lost)) == 120 - 40


def test_a_quota_is_the_regions_for_one_type_and_one_kind() -> None:
    seen = view(refused(Refusal.QUOTA, code="MaxSpotInstanceCountExceeded"))
    assert until_s(A, seen) == until_s(B, seen) == 3599
    for other in (OTHER_TYPE, OTHER_REGION, A.on_demand()):
        assert until_s(other, seen) is None


def test_what_a_zone_does_not_sell_is_out_there_for_a_day_in_both_kinds() -> None:
    seen = view(refused(Refusal.NOT_OFFERED))
    assert until_s(A, seen) == until_s(A.on_demand(), seen) == 86399
    assert until_s(B, seen) is None
    assert until_s(OTHER_TYPE, seen) is None


def test_what_the_credentials_may_not_is_out_until_the_user_asks_again() -> None:
    denied = refused(Refusal.NOT_PERMITTED, ago_s=9_000, code="UnauthorizedOperation")
    for market in (A, B, OTHER_TYPE):
        block = block_of(market, view(denied), RULES)
        assert block is not None
        assert block.cure
        assert "UnauthorizedOperation" in block.why
        assert until_s(market, view(denied, asked_since_s=NOW_S - 8_000)) is None
    assert until_s(A.on_demand(), view(denied)) is None


def test_a_wrong_node_type_is_out_and_others_are_not() -> None:
    wrong = refused(Refusal.CONFIG, ago_s=9_000, code="InvalidAMIID.NotFound", node_type="gpu")
    assert until_s(B, view(wrong)) == until_s(A.on_demand(), view(wrong)) == 3600
    assert until_s(A, view(wrong, node_type="cpu")) is None
    assert until_s(A, view(wrong, asked_since_s=NOW_S - 8_000)) is None


def test_a_throttled_call_stops_all_markets_of_the_cloud_for_seconds() -> None:
    seen = view(refused(Refusal.THROTTLED, ago_s=3), refused(Refusal.THROTTLED, ago_s=1))
    assert until_s(A, seen) == until_s(OTHER_REGION, seen) == 9
    later = Refused(
        at_s=NOW_S - 1, market=A, kind=Refusal.THROTTLED, code="ExpiredToken", retry_after_s=60.0
    )
    assert until_s(B, view(later)) == 59
    assert until_s(B, view(later, Launched(at_s=NOW_S, market=A))) is None


def test_a_word_that_nobody_knows_cools_down_like_a_lack_of_capacity() -> None:
    block = block_of(A, view(refused(Refusal.UNKNOWN, code="NewWord")), RULES)
    assert block is not None
    assert block.until_s == NOW_S + 119
    assert block.why == "NewWord"


def test_a_fact_from_a_clock_that_ran_ahead_blocks_no_longer_than_one_from_now() -> None:
    assert until_s(A, view(refused(ago_s=-50_000))) == 120


def test_two_who_tell_of_one_preemption_tell_of_one() -> None:
    facts = [
        Launched(at_s=100.0, market=A, names=("i-1",)),
        Preempted(at_s=160.0, market=A, name="i-1"),
        Preempted(at_s=165.0, market=A, name="i-1", lived_s=65.0),
    ]
    (loss,) = losses(facts)
    assert (loss.at_s, loss.lived_s) == (160.0, 60.0)
    assert Told.of(facts).troubles(A, since_s=0.0) == 1


def test_a_node_that_is_started_again_can_be_lost_again() -> None:
    facts = (
        Launched(at_s=100.0, market=A, names=("i-1",)),
        Preempted(at_s=160.0, market=A, name="i-1"),
        Preempted(at_s=161.0, market=A, name="i-1"),
        Launched(at_s=200.0, market=A, names=("i-1",)),
        Preempted(at_s=290.0, market=A, name="i-1"),
    )
    assert [(loss.at_s, loss.lived_s) for loss in losses(facts)] == [(160.0, 60.0), (290.0, 90.0)]


def lost(at_s: float, name: str, *, lived_s: float, market: Market = A) -> Preempted:
    return Preempted(at_s=at_s, market=market, name=name, lived_s=lived_s)


def test_nodes_that_are_taken_together_are_one_round() -> None:
    together = [lost(100.0 + i, f"i-{i}", lived_s=60.0) for i in range(4)]
    assert Told.of(together).rounds_lost(since_s=0.0, progress_s=600.0) == [100.0]
    again = [*together, lost(200.0, "i-9", lived_s=90.0, market=B)]
    assert Told.of(again).rounds_lost(since_s=0.0, progress_s=600.0) == [100.0, 200.0]


def test_nodes_that_lived_and_a_job_that_went_on_are_no_loop() -> None:
    rounds = [lost(100.0 * i, f"i-{i}", lived_s=50.0) for i in range(1, 5)]
    assert len(Told.of(rounds).rounds_lost(since_s=0.0, progress_s=600.0)) == 4
    assert Told.of([*rounds, Progressed(at_s=250.0)]).rounds_lost(
        since_s=0.0, progress_s=600.0
    ) == [
        300.0,
        400.0,
    ]
    assert Told.of(rounds).rounds_lost(since_s=0.0, progress_s=50.0) == []
    forgotten = Preempted(at_s=500.0, market=A, name="launched long ago")
    assert Told.of([forgotten]).rounds_lost(since_s=0.0, progress_s=600.0) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"cooldown_s": 0},
        {"cooldown_s": "120"},
        {"quota_s": float("inf")},
        {"throttle_s": True},
        {"cooldown_s": 100.0, "cooldown_max_s": 50.0},
    ],
)
def test_a_cool_down_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        CoolDowns(**wrong)
