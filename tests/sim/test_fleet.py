"""Several nodes in several zones, tick by tick, against sums done by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from spotray.errors import ConfigError, PolicyError, TraceError
from spotray.market.offer import Market
from spotray.policy.fleet import FleetDecision, FleetJob, FleetView, Pauses, Place
from spotray.sim.fleet import FleetMoment, FleetOutcome, simulate_fleet
from spotray.sim.fleet_market import FleetMarket

GAP = 300.0
HOUR = 3600.0
NONE = (0, 0)
# Round numbers, so that sums can be done by hand.
PAUSES = Pauses(
    noticed_s=1.0,
    silent_s=2.0,
    joined_s=3.0,
    restart_s=30.0,
    launch_s=100.0,
    checkpoint_s=60.0,
    save_frac=0.0,
)


def place(zone: str, *, cloud: str = "aws", on_demand: float = 3.6) -> Place:
    market = Market(cloud=cloud, zone=zone, instance_type="g5.xlarge", spot=True)
    return Place(market=market, on_demand_usd_per_hour=on_demand)


A, B, FAR = place("us-east-1a"), place("us-east-1b"), place("us-west-2a")


def job(**changes: Any) -> FleetJob:
    base: dict[str, Any] = {
        "gap_s": GAP,
        "work_s": 1e6,
        "speeds": (0.0, 1.0, 1.8, 2.4),
        "places": (A, B),
        "pauses": PAUSES,
    }
    return FleetJob(**base | changes)


def market(
    *capacity: Sequence[int], places: Sequence[Place] = (A, B), usd: float = 1.0, **changes: Any
) -> FleetMarket:
    prices = [[usd] * len(row) for row in capacity]
    return FleetMarket(places, capacity, prices, gap_s=GAP, **{"notice_s": 0.0} | changes)


@dataclass
class Scripted:
    """Wants what it was told to, the last of it for ever, and remembers what it saw."""

    spot: list[Any]
    on_demand: list[Any] = field(default_factory=lambda: [NONE])
    saw: list[dict[str, Any]] = field(default_factory=list)

    def begin(self, job: FleetJob) -> Scripted:
        return self

    def decide(self, view: FleetView) -> FleetDecision:
        names = ("done_s", "working", "on_spot", "on_demand", "lost", "ready_on_spot", "capacity")
        self.saw.append({name: getattr(view, name) for name in names})
        return FleetDecision(
            spot=self.spot[min(view.tick, len(self.spot) - 1)],
            on_demand=self.on_demand[min(view.tick, len(self.on_demand) - 1)],
            why="scripted",
        )

    def done(self) -> list[float]:
        return [seen["done_s"] for seen in self.saw]


def run(policy: Scripted, the_market: FleetMarket, **changes: Any) -> FleetOutcome:
    return simulate_fleet(policy, job(places=the_market.places, **changes), the_market)


def test_a_start_takes_the_launch_and_a_restart_then_all_nodes_work() -> None:
    policy = Scripted([(2, 0)])
    outcome = run(policy, market([2] * 3, [0] * 3))
    assert policy.done() == [0, 170 * 1.8, 470 * 1.8]
    assert [seen["ready_on_spot"] for seen in policy.saw] == [[0, 0], [2, 0], [2, 0]]
    assert outcome.launches == 2
    assert outcome.restarts == 0  # nobody was lost before
    assert outcome.spot_usd == pytest.approx(2 * 900 / HOUR)


def test_who_comes_later_costs_the_others_a_short_pause() -> None:
    policy = Scripted([(1, 0), (3, 0)])
    run(policy, market([3] * 3, [0] * 3))
    assert policy.done() == [0, 170, 170 + 100 + (200 - 3) * 2.4]


def test_a_loss_leaves_the_others_at_work_the_youngest_is_gone() -> None:
    policy = Scripted([(1, 0), (2, 0), (2, 0), (1, 0)])
    outcome = run(policy, market([2, 2, 2, 1, 1], [0] * 5, silent_frac=1.0))
    at = policy.done()
    assert policy.saw[3]["lost"] == [1, 0]
    assert policy.saw[3]["working"] == 1
    assert at[4] - at[3] == 300 - 2
    # The younger one ran 600 s: free, for EC2 took it in its first hour.
    assert outcome.free_usd == pytest.approx(600 / HOUR)
    assert outcome.spot_usd == pytest.approx(1500 / HOUR)
    assert (outcome.preemptions, outcome.restarts) == (1, 0)


def test_a_noticed_loss_of_some_pauses_shorter() -> None:
    policy = Scripted([(2, 0), (2, 0), (1, 0)])
    run(policy, market([2, 2, 1, 1], [0] * 4, silent_frac=0.0))
    at = policy.done()
    assert at[3] - at[2] == 300 - 1


def test_a_silent_loss_of_all_goes_back_to_the_checkpoint_and_starts_anew() -> None:
    policy = Scripted([(1, 0), (1, 0), NONE, (1, 0)])
    outcome = run(policy, market([1, 1, 0, 1, 1], [0] * 5, silent_frac=1.0))
    at = policy.done()
    assert at[1] == 170
    # 470 s of work hold 7 checkpoints, the last at 420.
    assert at[2] == 420
    assert outcome.redone_s == 50
    assert at[4] == 420 + 170
    assert outcome.restarts == 1


def test_a_noticed_loss_of_all_loses_no_work() -> None:
    policy = Scripted([(1, 0), (1, 0), NONE])
    outcome = run(policy, market([1, 1, 0], [0] * 3, silent_frac=0.0))
    assert policy.done()[2] == 470
    assert outcome.redone_s == 0


def test_what_replaces_an_announced_loss_was_launched_at_the_notice() -> None:
    policy = Scripted([(1, 0), (1, 0), (0, 1)])
    outcome = run(policy, market([1, 1, 0, 0], [1] * 4, notice_s=70.0))
    at = policy.done()
    assert at[3] - at[2] == 300 - 30 - 30  # the rest of its launch, and a restart
    # The first is free; the second ran two ticks and 70 s, and was let go at the end.
    assert outcome.spot_usd == pytest.approx(670 / HOUR)


def test_to_end_a_node_is_paid_though_it_was_young() -> None:
    policy = Scripted([(1, 0), NONE])
    outcome = run(policy, market([1, 1, 1], [0] * 3))
    assert outcome.free_usd == 0
    assert outcome.spot_usd == pytest.approx(300 / HOUR)


def test_nodes_of_a_cloud_without_a_free_hour_are_paid_until_they_are_taken() -> None:
    places = (place("us-central1-a", cloud="gcp"), place("us-central1-b", cloud="gcp"))
    policy = Scripted([(1, 0), NONE])
    outcome = run(policy, market([1, 0], [0, 0], places=places))
    assert outcome.spot_usd == pytest.approx(300 / HOUR)


def test_prices_change_while_a_node_runs() -> None:
    rows = [[1.0, 2.0, 4.0], [1.0, 1.0, 1.0]]
    changing = FleetMarket((A, B), [[1] * 3, [0] * 3], rows, gap_s=GAP)
    outcome = simulate_fleet(Scripted([(1, 0)]), job(), changing)
    assert outcome.spot_usd == pytest.approx(7 * 300 / HOUR)


def test_on_demand_is_always_there_at_its_own_price() -> None:
    policy = Scripted([NONE], [(0, 1)])
    outcome = run(policy, market([0] * 3, [0] * 3), work_s=770.0)
    assert policy.done() == [0, 170, 470]
    assert outcome.on_demand_usd == pytest.approx(900 * 3.6 / HOUR)


def test_the_bill_ends_in_the_second_in_which_the_work_does() -> None:
    outcome = run(Scripted([(1, 0)]), market([1] * 9, [0] * 9), work_s=400.0)
    assert outcome.ended_s == 530
    assert outcome.cost_usd == pytest.approx(530 / HOUR)
    assert not outcome.is_late


def test_a_move_to_another_region_costs_a_restart_and_the_way_of_the_data() -> None:
    policy = Scripted([(1, 0), (0, 1)])
    there = market([1] * 3, [1] * 3, places=(A, FAR))
    outcome = run(policy, there, move_usd=5.0)
    at = policy.done()
    assert at[2] - at[1] == 170
    assert (outcome.moves, outcome.move_usd, outcome.restarts) == (1, 5.0, 1)


def test_the_new_node_first_trains_on_while_it_starts() -> None:
    policy = Scripted([(1, 0), (1, 1), (0, 1)])
    outcome = run(policy, market([1] * 4, [1] * 4))
    at = policy.done()
    assert at[2] - at[1] == 100 + (200 - 3) * 1.8
    assert at[3] - at[2] == 300 - 1
    assert (outcome.restarts, outcome.moves) == (0, 0)


def test_saving_takes_its_part_of_the_time() -> None:
    saving = Pauses(restart_s=0.0, launch_s=0.0, save_frac=0.25)
    policy = Scripted([(1, 0)])
    run(policy, market([1] * 2, [0] * 2), pauses=saving)
    assert policy.done() == [0, 225]


def test_too_few_nodes_to_train_on_do_no_work_and_keep_what_is_done() -> None:
    policy = Scripted([(2, 0), (2, 0), (1, 0), (2, 0)])
    outcome = run(policy, market([2, 2, 1, 2, 2], [0] * 5), speeds=(0.0, 0.0, 2.0))
    at = policy.done()
    assert at[3] == at[2]
    assert at[4] - at[3] == (200 - 3 - 1) * 2.0
    assert outcome.restarts == 0


def test_a_job_that_does_not_end_pays_for_the_rest_on_on_demand_and_is_late() -> None:
    outcome = run(Scripted([NONE]), market([0] * 9, [0] * 9), work_s=2400.0, deadline_s=2700.0)
    assert outcome.is_late
    assert outcome.ended_s is None
    assert outcome.cost_usd == pytest.approx(3 * 3.6 * (130 + 1000) / HOUR)


def test_moments_tell_every_tick_and_what_was_paid() -> None:
    moments: list[FleetMoment] = []
    the_market = market([1, 1, 0], [0] * 3)
    simulate_fleet(Scripted([(1, 0), (1, 0), NONE]), job(), the_market, moments=moments)
    assert [(one.tick, one.capacity, one.spot) for one in moments] == [
        (0, (1, 0), (1, 0)),
        (1, (1, 0), (1, 0)),
        (2, (0, 0), (0, 0)),
    ]
    assert [one.usd for one in moments] == pytest.approx([0, 300 / HOUR, 0])


def test_a_policy_cannot_change_what_is_by_changing_what_it_sees() -> None:
    class Forger(Scripted):
        def decide(self, view: FleetView) -> FleetDecision:
            decision = super().decide(view)
            view.done_s, view.working = 1e9, 99
            view.capacity[0] = view.on_spot[0] = view.lost[0] = 7
            view.spot_usd_per_hour[0] = 0.0
            return decision

    asked = {"work_s": 900.0}
    the_market = market([1, 1, 0, 1, 1, 1, 1], [0] * 7)
    script = [(1, 0), (1, 0), NONE, (1, 0)]
    honest = run(Scripted(script), the_market, **asked)
    assert run(Forger(script), the_market, **asked) == honest


@pytest.mark.parametrize(
    ("decide", "told"),
    [
        (lambda view: {}["zone"], "Mine failed at tick 0: KeyError: 'zone'"),
        (lambda view: None, "Mine failed at tick 0: AttributeError"),
        (
            lambda view: FleetDecision(spot=(2, 0), on_demand=NONE, why="x"),
            "Mine at tick 1 asked for 2 spot nodes in us-east-1a, which holds 1",
        ),
        (
            lambda view: FleetDecision(spot=(1,), on_demand=NONE, why="x"),
            "Mine at tick 0 answered for 1 and 2 places: there are 2",
        ),
        (
            lambda view: FleetDecision(spot=NONE, on_demand=(-1, 0), why="x"),
            "Mine at tick 0 asked for -1 nodes",
        ),
        (
            lambda view: FleetDecision(spot=(1.5, 0), on_demand=NONE, why="x"),  # type: ignore
            "Mine at tick 0 asked for 1.5 nodes",
        ),
        (
            lambda view: FleetDecision(spot=NONE, on_demand=(0, 7), why="x"),
            "Mine at tick 0 asked for 7 nodes: at most 6",
        ),
        (
            lambda view: FleetDecision(spot=NONE, on_demand=NONE, why=" "),
            "Mine at tick 0 gave the reason ' '",
        ),
    ],
)
def test_a_policy_that_fails_or_answers_nonsense_is_named_with_its_tick(
    decide: Callable[[FleetView], FleetDecision], told: str
) -> None:
    class Mine:
        def begin(self, job: FleetJob) -> Any:
            return self

        def decide(self, view: FleetView) -> FleetDecision:
            return decide(view)

    with pytest.raises(PolicyError, match=told):
        simulate_fleet(Mine(), job(), market([2, 1], [0, 0]))


def test_a_job_is_in_one_region_at_a_time() -> None:
    with pytest.raises(PolicyError, match="in aws/us-east-1 and in aws/us-west-2: one region"):
        run(Scripted([(1, 1)]), market([1], [1], places=(A, FAR)))


@pytest.mark.parametrize(
    ("capacity", "prices", "told"),
    [
        ([[1, 2], [1]], [[1.0, 1.0], [1.0]], "us-east-1b has 1 ticks, us-east-1a 2"),
        ([[1], [1]], [[1.0, 2.0], [1.0, 1.0]], "1 ticks of capacity and 2 of prices"),
        ([[1, 2], [1, -3]], [[1.0] * 2] * 2, "us-east-1b: its capacity at tick 1 is -3"),
        ([[1, 1], [0.5, 1]], [[1.0] * 2] * 2, "us-east-1b: its capacity at tick 0 is 0.5"),
        ([[1], [1]], [[1.0], [0.0]], "us-east-1b: its price at tick 0 is 0"),
        ([[1], [1]], [[1.0], [float("nan")]], "us-east-1b: its price at tick 0 is nan"),
        ([[1]], [[1.0]], r"2 places, and rows of \[1\] ticks"),
    ],
)
def test_a_market_with_gaps_or_other_lengths_is_refused(
    capacity: Any, prices: Any, told: str
) -> None:
    with pytest.raises(TraceError, match=told):
        FleetMarket((A, B), capacity, prices, gap_s=GAP)


def test_traces_that_end_before_the_deadline_are_refused() -> None:
    with pytest.raises(TraceError, match=r"end after 0\.2 h, the job's deadline is 1\.0 h"):
        run(Scripted([NONE]), market([1] * 2, [1] * 2), work_s=600.0, deadline_s=HOUR)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"speeds": (0.0,)}, "speeds are"),
        ({"speeds": (1.0, 2.0)}, "speeds are"),
        ({"speeds": (0.0, 2.0, 1.0)}, r"speeds\[2\] is 1.0"),
        ({"speeds": (0.0, float("nan"))}, r"speeds\[1\] is nan"),
        ({"places": ()}, "give at least one"),
        ({"places": (A, A)}, "each zone once"),
        ({"work_s": 24 * 3600.0, "deadline_s": 10 * HOUR}, r"10\.00 h cannot be met.*10\.04 h"),
        ({"move_usd": -1.0}, "move_usd is -1"),
        ({"gap_s": 0.0}, "gap_s is 0"),
    ],
)
def test_a_job_that_cannot_be_is_refused_in_one_line(changes: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        job(**changes)


def test_a_place_is_a_spot_market_with_a_price() -> None:
    with pytest.raises(ConfigError, match="end it in spot"):
        Place(market=A.market.on_demand(), on_demand_usd_per_hour=1.0)
    with pytest.raises(ConfigError, match="on_demand_usd_per_hour is 0"):
        place("us-east-1a", on_demand=0.0)


def preemptible(zone: str, limit_s: float = HOUR, cloud: str = "gcp") -> Place:
    return dataclasses.replace(place(zone, cloud=cloud), limit_s=limit_s)


def test_a_node_ends_at_its_limit_and_is_paid_for_until_then() -> None:
    places = (preemptible("us-central1-a"), preemptible("us-central1-b"))
    policy = Scripted([(1, 0)])
    ticks = 26  # 2 h 10 min
    outcome = simulate_fleet(
        policy, job(places=places), market([1] * ticks, [1] * ticks, places=places)
    )
    lost = [tick for tick, saw in enumerate(policy.saw) if any(saw["lost"])]
    assert lost == [12, 24]
    assert policy.saw[12]["on_spot"] == [0, 0]
    assert (outcome.preemptions, outcome.at_limit, outcome.launches) == (2, 2, 3)
    assert outcome.spot_node_s == ticks * GAP
    assert outcome.restarts == 2
    assert outcome.redone_s == 0  # it was announced


def test_the_oldest_reach_their_limit_and_the_younger_ones_train_on() -> None:
    places = (preemptible("us-central1-a"), preemptible("us-central1-b"))
    policy = Scripted([(1, 0)] * 3 + [(2, 0)] * 9 + [(1, 0)])
    outcome = simulate_fleet(policy, job(places=places), market([2] * 15, [2] * 15, places=places))
    assert policy.saw[12]["lost"] == [1, 0]
    assert policy.saw[12]["working"] == 1
    assert (outcome.at_limit, outcome.launches, outcome.restarts) == (1, 2, 0)
    assert outcome.ended_s is None


def test_a_node_does_not_outlive_its_limit_within_a_tick() -> None:
    places = (preemptible("us-central1-a", 1000.0), preemptible("us-central1-b", 1000.0))
    policy = Scripted([(1, 0)])
    outcome = simulate_fleet(policy, job(places=places), market([1] * 6, [1] * 6, places=places))
    assert [tick for tick, saw in enumerate(policy.saw) if any(saw["lost"])] == [3]
    assert outcome.at_limit == 1


def test_capacity_and_limit_in_one_tick_take_each_node_once() -> None:
    places = (preemptible("us-central1-a"), preemptible("us-central1-b"))
    policy = Scripted([(1, 0)] * 3 + [(3, 0)] * 9 + [(0, 0)])
    capacity = [3] * 12 + [1, 1]
    outcome = simulate_fleet(policy, job(places=places), market(capacity, [0] * 14, places=places))
    assert policy.saw[12]["lost"] == [2, 0]
    assert (outcome.preemptions, outcome.at_limit) == (2, 1)


@pytest.mark.parametrize("limit_s", [0.0, -1.0, float("nan")])
def test_a_limit_that_is_none_is_refused(limit_s: float) -> None:
    with pytest.raises(ConfigError, match="limit_s is"):
        preemptible("us-central1-a", limit_s)


def test_nodes_that_live_no_longer_than_a_tick_are_refused() -> None:
    places = (preemptible("us-central1-a", GAP), B)
    with pytest.raises(ConfigError, match="us-central1-a: its nodes live 300 s, a tick lasts 300"):
        market([1], [1], places=places)
