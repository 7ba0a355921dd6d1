"""A sweep's money is split among its trials without rest, and nothing unknown is guessed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotray.events import (
    DiskMounted,
    Event,
    JobEnded,
    JobStarted,
    NodeUp,
    PriceChanged,
    TrainingDone,
    TrialHeldBack,
    Warned,
)
from spotray.ledger.charges import FREE
from spotray.ledger.pricing import Money
from spotray.ledger.sweep import (
    SweepEvents,
    SweepState,
    best_trial,
    metric_of,
    summarize_sweep,
    watch_sweep,
)

from .sweep_story import HOUR_S, SPOT, SweepStory, two_trials
from .test_account import same


def costs(state: SweepState) -> dict[str, float | None]:
    found = {trial: bill.money.cost_usd for trial, bill in state.cost.trials.items()}
    return {**found, "idle": state.cost.idle.cost_usd, "head": state.cost.head.cost_usd}


def test_a_nodes_price_is_shared_by_the_workers_on_it() -> None:
    state = watch_sweep(two_trials().told())
    assert costs(state) == pytest.approx(
        {"one": 2.5, "two": 1 + 0.5 + 1, "idle": None, "head": 4 * 0.5}
    )
    assert state.cost.total.total.cost_usd == pytest.approx(7.0)
    assert state.cost.trials["two"].money.seconds == pytest.approx(2.5 * HOUR_S)
    assert state.cost.trials["one"].saved_frac == pytest.approx(0.75)
    assert state.cost.trials["one"].by_market.keys() == {SPOT}
    assert state.cost.overhead_frac == pytest.approx(2 / 5)


def test_two_workers_on_a_node_take_two_shares() -> None:
    story = SweepStory()
    story.up("a")
    story.starts("one", "a", "a", "a")
    story.starts("two", "a")
    assert costs(watch_sweep(story.told(), until_s=HOUR_S)) == pytest.approx(
        {"one": 0.75, "two": 0.25, "idle": None, "head": None}
    )


def test_a_node_without_a_worker_is_the_sweeps_own() -> None:
    story = SweepStory()
    story.up("a", "b")
    story.starts("one", "a")
    story.at(1).ends("one")
    story.at(3).starts("two", "a")
    story.at(4).ends("two")
    assert costs(watch_sweep(story.told())) == pytest.approx(
        {"one": 1, "two": 1, "idle": 4 + 2, "head": None}
    )


def test_a_head_that_trains_is_paid_by_who_trains_on_it() -> None:
    story = SweepStory()
    story.up("head")
    story.starts("one", "head")
    story.at(1).ends("one")
    assert costs(watch_sweep(story.told())) == {"one": 1.0, "idle": None, "head": None}


def test_a_new_price_is_paid_by_who_is_there_then() -> None:
    story = SweepStory()
    story.up("a")
    story.starts("one", "a")
    story.at(1).ends("one")
    story.starts("two", "a")
    story.at(3).ends("two")
    dearer = PriceChanged(at_s=2 * HOUR_S, market=SPOT, usd_per_hour=5.0)
    assert costs(watch_sweep(story.told(dearer))) == pytest.approx(
        {"one": 1, "two": 1 + 5, "idle": None, "head": None}
    )


def test_an_unknown_price_is_unknown_for_the_trial_too() -> None:
    story = SweepStory()
    story.up("a", usd=None, on_demand=None)
    story.up("b")
    story.starts("one", "a")
    story.starts("two", "a", "b")
    story.at(1).ends("one")
    story.ends("two")
    state = watch_sweep(story.told())
    assert state.cost.trials["one"].money == Money(seconds=HOUR_S / 2, unpriced_s=HOUR_S / 2)
    assert state.cost.trials["one"].saved_frac is None
    assert state.cost.trials["two"].money.cost_usd == pytest.approx(1.0)
    assert state.cost.trials["two"].money.unpriced_s == pytest.approx(HOUR_S / 2)
    assert state.cost.total.total.unpriced_s == pytest.approx(HOUR_S)


def test_nodes_that_nobody_saw_come_up_are_counted_where_they_served() -> None:
    story = SweepStory()
    story.starts("one", "a", "b")
    story.starts("two")
    state = watch_sweep(story.told(), until_s=HOUR_S)
    assert state.cost.trials["one"].unseen_nodes == 2
    assert state.cost.trials["one"].money == Money()
    assert state.cost.trials["two"].unseen_nodes == 0
    assert state.cost.total.unseen_nodes == 2
    assert state.presence["one"].markets == {"unknown": 2}


def test_a_clone_is_paid_by_its_trial() -> None:
    story = SweepStory()
    story.up("a")
    story.starts("one", "a")
    story.at(1).ends("one", "interrupted")
    story.starts("one-0123abcd", "a")
    story.at(2).ends("one-0123abcd")
    summary = summarize_sweep(story.told())
    (trial,) = summary.trials
    assert trial.runs == ("one", "one-0123abcd")
    assert trial.bill.money.cost_usd == pytest.approx(2.0)
    assert trial.state == "finished"


def test_nodes_that_run_before_and_after_the_sweep_are_not_its_cost() -> None:
    story = SweepStory()
    story.up("a")
    story.at(2).starts("one", "a")
    story.at(3).ends("one")
    story.at(9).down("a")
    assert watch_sweep(story.told()).cost.total.total.cost_usd == pytest.approx(1.0)


def test_the_sweeps_own_start_and_end_are_its_time() -> None:
    story = SweepStory()
    story.up("a")
    story.at(2).starts("one", "a")
    story.at(3).ends("one")
    own: list[Event] = [JobStarted(at_s=HOUR_S, job="vit", run_id="s")]
    assert summarize_sweep(story.told(*own), until_s=6 * HOUR_S).state == "running"
    own.append(JobEnded(at_s=4 * HOUR_S, job="vit", status="finished"))
    summary = summarize_sweep(story.told(*own), until_s=6 * HOUR_S)
    assert (summary.state, summary.started_at_s) == ("ended", HOUR_S)
    assert summary.cost.total.total.cost_usd == pytest.approx(3.0)
    assert summary.cost.idle.cost_usd == pytest.approx(2.0)


def test_a_sweep_is_over_when_every_trial_has_ended() -> None:
    story = SweepStory()
    story.starts("one", "a")
    story.starts("two", "a")
    story.at(1).ends("one")
    assert summarize_sweep(story.told()).state == "running"
    story.ends("two")
    assert summarize_sweep(story.told()).state == "ended"
    assert summarize_sweep(SweepEvents(sweep_dir="x")).state == "no trial"


def test_each_trial_has_its_own_losses_and_steps() -> None:
    summary = summarize_sweep(two_trials().told())
    one, two = summary.trials
    assert (one.presence.preemptions_silent, one.steps_lost, one.step) == (0, 0, 40)
    assert (two.presence.preemptions_silent, two.steps_lost, two.step) == (1, 2, 30)
    assert (two.state, two.why) == ("interrupted", "stopped by the scheduler")
    assert (summary.preemptions_silent, summary.preemptions_noticed, summary.steps_lost) == (
        1,
        0,
        2,
    )


def test_a_node_under_two_trials_is_one_preemption_of_the_sweep() -> None:
    story = SweepStory()
    story.starts("one", "a")
    story.starts("two", "a")
    story.at(1).down("a")
    summary = summarize_sweep(story.told())
    assert [t.presence.preemptions_silent for t in summary.trials] == [1, 1]
    assert summary.preemptions_silent == 1


def test_workers_are_told_as_long_as_their_node_lives() -> None:
    story = SweepStory()
    story.up("a", "b")
    story.starts("one", "a", "b", "b")
    state = watch_sweep(story.told())
    assert (state.presence["one"].workers, state.presence["one"].markets) == (3, {SPOT: 3})
    story.at(1).down("b")
    assert watch_sweep(story.told()).presence["one"].workers == 1
    story.at(2).ends("one")
    assert watch_sweep(story.told()).presence["one"].markets == {}


def test_who_knows_a_nodes_market_has_the_last_word() -> None:
    story = SweepStory()
    story.starts("one", "a", "b")
    story.up("a")
    by_ray = [NodeUp(at_s=1.0, node_id=n, spot=True) for n in "ab"]
    assert watch_sweep(story.told(*by_ray)).presence["one"].markets == {SPOT: 1, "spot": 1}


def test_the_last_report_of_a_trial_counts_and_the_best_is_named() -> None:
    summary = summarize_sweep(two_trials().told())
    assert {t.trial: t.metric for t in summary.trials} == {"one": 0.25, "two": 0.75}
    assert summary.best == "one"


def test_a_pause_that_the_scheduler_ordered_is_no_loss() -> None:
    story = SweepStory()
    story.starts("one", "a")
    story.at(1).steps("one", 1, 60, seconds=HOUR_S)
    story.ends("one", "interrupted")
    story.at(9).starts("one", "a")
    story.at(10).steps("one", 61, 90, seconds=HOUR_S / 2)
    story.ends("one")
    (trial,) = summarize_sweep(story.told()).trials
    assert trial.goodput.stopped_s == pytest.approx(8 * HOUR_S)
    assert trial.goodput_frac == pytest.approx(1.5 / 2)


def test_waiting_for_a_turn_is_no_loss_and_is_told() -> None:
    story = SweepStory()
    story.starts("one")
    story.at(3).meet("one", "a")
    story.at(4).steps("one", 1, 60, seconds=HOUR_S)
    story.ends("one")
    story.starts("two")
    summary = summarize_sweep(story.told(), until_s=6 * HOUR_S)
    one, two = summary.trials
    assert (one.waited_s, one.goodput_frac) == (3 * HOUR_S, 1.0)
    assert (two.waited_s, two.goodput_frac) == (2 * HOUR_S, None)
    assert (summary.waited_s, summary.goodput_frac) == (5 * HOUR_S, 1.0)


def test_a_run_that_a_clone_replaced_does_not_count_on() -> None:
    story = SweepStory()
    story.starts("one", "a")
    story.at(1).steps("one", 1, 60, seconds=HOUR_S)
    story.starts("one-0123abcd", "a")
    story.at(2).steps("one-0123abcd", 31, 90, seconds=HOUR_S)
    (trial,) = summarize_sweep(story.told(), until_s=2 * HOUR_S).trials
    assert trial.goodput.wall_s == pytest.approx(2 * HOUR_S)
    assert trial.goodput_frac == pytest.approx(1.0)
    assert trial.steps_lost == 0
    assert trial.step == 90


def test_a_sweeps_causes_are_those_of_each_trial_and_nobodys_time() -> None:
    story = SweepStory()
    story.up("a", "b")
    story.starts("one", "a")
    story.starts("two", "b")
    story.at(2).steps("two", 1, 10, seconds=HOUR_S)
    story.runs["two"].append(TrainingDone(at_s=story.now_s, step=10))
    story.at(3).ends("two")
    story.at(4).steps("one", 1, 60, seconds=3 * HOUR_S)
    story.ends("one")
    bill = summarize_sweep(story.told()).cost.total
    hours = {name: money.seconds / HOUR_S for name, money in bill.by_cause.items()}
    assert hours == pytest.approx({"useful": 4, "startup": 2, "after training": 1, "idle": 1})
    assert bill.by_cause["useful"].cost_usd == pytest.approx(4.0)
    assert bill.same_steps.cost_usd is None


def test_a_sweeps_bill_has_what_clouds_charge_otherwise_and_disks() -> None:
    story = SweepStory()
    story.up("a", "b")
    story.starts("one", "a", "b")
    story.at(0.5).down("b")
    story.at(10).ends("one")
    disk = DiskMounted(
        at_s=0.0, name="i-a", disk="d", zone="z", size_gib=1, warm=False, usd_per_month=73.0
    )
    bill = summarize_sweep(story.told(disk)).cost.total
    assert [(one.name, one.why, one.usd) for one in bill.charges] == [("i-b", FREE, -0.5)]
    assert [one.cost_usd for one in bill.disks] == pytest.approx([1.0])
    assert bill.billed_usd == pytest.approx(11.0)
    assert any("disks were not deleted yet" in line for line in bill.left_out)


def test_what_is_missing_and_what_was_warned_of_is_told_once() -> None:
    story = SweepStory()
    for run in ("one", "two"):
        story.starts(run, "a")
        story.runs[run].append(Warned(at_s=1.0, what="prices are unknown"))
    assert summarize_sweep(story.told()).warnings == ("prices are unknown",)


def test_trials_that_the_budget_held_back_are_no_trials_and_are_named() -> None:
    story = SweepStory()
    story.starts("one", "a")
    events = story.told()
    held = TrialHeldBack(at_s=2.0, trial="two", why="all is spent")
    summary = summarize_sweep(replace(events, shared=(*events.shared, held)))
    assert [trial.trial for trial in summary.trials] == ["one"]
    assert summary.held_back == {"two": "all is spent"}
    before = summarize_sweep(replace(events, shared=(*events.shared, held)), until_s=1.0)
    assert before.held_back == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [("a", 1.0), ("b/c", 2.0), ("b/c/d", None), ("d", None), ("x", None), ("e/f", 3.0)],
)
def test_a_metric_is_found_flat_and_nested(name: str, value: float | None) -> None:
    metrics = {"a": 1, "b": {"c": 2.0}, "d": True, "e/f": 3}
    assert metric_of(metrics, name) == value


def test_no_metric_and_no_mode_name_no_best_trial() -> None:
    assert best_trial({"a": 1.0, "b": 2.0}, "max") == "b"
    assert best_trial({"a": 1.0}, None) is None
    assert best_trial({"a": None, "b": float("nan")}, "max") is None


@st.composite
def sweeps(draw: st.DrawFn) -> tuple[SweepEvents, float]:
    """Trials that meet anywhere at any time, on nodes that come and go; times collide."""
    story = SweepStory()
    half_hours = st.integers(0, 16).map(lambda n: n / 2)
    nodes = ["head", "a", "b", "c"]
    for node_id in nodes:
        story.at(draw(half_hours)).up(
            node_id,
            usd=draw(st.sampled_from([None, 0.5, 1.0])),
            on_demand=draw(st.sampled_from([None, 4.0])),
        )
        if draw(st.booleans()):
            story.at(draw(half_hours)).down(node_id)
    for run in draw(
        st.lists(st.sampled_from(["one", "one-0123abcd", "two", "three"]), unique=True)
    ):
        for _ in range(draw(st.integers(1, 2))):
            start = draw(half_hours)
            story.at(start).starts(run)
            for _ in range(draw(st.integers(0, 3))):
                members = draw(st.lists(st.sampled_from([*nodes, "unseen"]), max_size=4))
                story.at(start + draw(half_hours)).meet(run, *members)
            if draw(st.booleans()):
                story.at(start + draw(half_hours)).ends(run)
    more: list[Event] = [
        PriceChanged(
            at_s=draw(half_hours) * HOUR_S,
            market=SPOT,
            usd_per_hour=draw(st.sampled_from([0.25, 2.0])),
        )
        for _ in range(draw(st.integers(0, 3)))
    ]
    if draw(st.booleans()):
        more.append(JobStarted(at_s=draw(half_hours) * HOUR_S, job="vit", run_id="s"))
    for run in story.runs:
        story.runs[run].sort(key=lambda event: event.at_s)
    return story.told(*more), draw(st.floats(0, 20)) * HOUR_S


@given(sweep=sweeps())
def test_the_parts_of_any_sweep_add_up_to_its_cost(sweep: tuple[SweepEvents, float]) -> None:
    events, until_s = sweep
    for cut_s in (None, until_s):
        cost = watch_sweep(events, until_s=cut_s).cost
        parts = [*(bill.money for bill in cost.trials.values()), cost.idle, cost.head]
        total = cost.total.total
        for name in ("seconds", "unpriced_s", "cost_usd", "on_demand_cost_usd"):
            summed = sum(getattr(part, name) or 0.0 for part in parts)
            assert summed == pytest.approx(getattr(total, name) or 0.0, abs=1e-6), name
        assert (total.cost_usd is None) == all(part.cost_usd is None for part in parts)
        for bill in cost.trials.values():
            of_markets = sum(bill.by_market.values(), Money())
            assert of_markets.seconds == pytest.approx(bill.money.seconds)


@settings(max_examples=40)
@given(sweep=sweeps())
def test_every_cut_of_any_sweep_adds_up_to_its_cost(sweep: tuple[SweepEvents, float]) -> None:
    events, until_s = sweep
    bill = summarize_sweep(events, until_s=until_s).cost.total
    same(bill.total, watch_sweep(events, until_s=until_s).cost.total.total)
    for cut in (bill.by_kind, bill.by_market, bill.by_zone, bill.by_week, bill.by_cause):
        same(sum(cut.values(), Money()), bill.total)


@given(sweep=sweeps())
def test_any_sweep_can_be_summed_up(sweep: tuple[SweepEvents, float]) -> None:
    events, until_s = sweep
    summary = summarize_sweep(events, until_s=until_s)
    for trial in summary.trials:
        assert trial.goodput_frac is None or 0 <= trial.goodput_frac <= 1
        assert trial.presence.workers == sum(trial.presence.markets.values())
