"""A bill's parts add up to the whole, to the cent and to the second, whatever the journal says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotray.events import (
    DiskDeleted,
    DiskMounted,
    Event,
    JobEnded,
    JobStarted,
    NodeDown,
    NodeUp,
    PriceChanged,
    StepsDone,
    encode,
)
from spotray.ledger.account import Account, account, weeks
from spotray.ledger.charges import FREE, LEAST
from spotray.ledger.goodput import goodput
from spotray.ledger.pricing import Money
from spotray.ledger.rundir import load_run
from spotray.storage import Store

from .story import ON_DEMAND_USD, SPOT, SPOT_USD, STEP_S, four_losses
from .test_cost import HOUR_S, down, job, markets, up
from .test_goodput import random_story


def adds_up(bill: Account) -> None:
    for cut in (bill.by_kind, bill.by_market, bill.by_zone, bill.by_cause, bill.by_week):
        same(sum(cut.values(), Money()), bill.total)
    same(sum((node.money for node in bill.nodes), Money()), bill.total)
    parts = [bill.total.cost_usd, *(one.usd for one in bill.charges)]
    parts += [disk.cost_usd for disk in bill.disks]
    known = [one for one in parts if one is not None]
    assert (bill.billed_usd is None) == (not known)
    assert sum(known) == pytest.approx(bill.billed_usd or 0.0, abs=1e-6)


def same(one: Money, other: Money) -> None:
    assert one.seconds == pytest.approx(other.seconds, abs=1e-3)
    assert one.unpriced_s == pytest.approx(other.unpriced_s, abs=1e-3)
    assert (one.cost_usd is None) == (other.cost_usd is None)
    assert (one.cost_usd or 0) == pytest.approx(other.cost_usd or 0, abs=1e-6)
    assert (one.on_demand_cost_usd or 0) == pytest.approx(other.on_demand_cost_usd or 0, abs=1e-6)


@given(
    events=markets(), seed=st.integers(0, 10_000), shift_h=st.floats(0, 400), twice=st.booleans()
)
def test_the_parts_of_a_bill_add_up(
    events: list[Event], seed: int, shift_h: float, twice: bool
) -> None:
    told = [*events, *random_story(seed).events]
    told = [replace(event, at_s=event.at_s + shift_h * HOUR_S) for event in told]
    adds_up(account(told * 2 if twice else told))


@given(seed=st.integers(0, 10_000))
def test_each_cause_has_the_node_time_of_its_seconds(seed: int) -> None:
    """One node that is always up pays for exactly the seconds that goodput splits."""
    story = random_story(seed)
    events = [e for e in story.events if not isinstance(e, NodeUp | NodeDown)]
    bill = account([*events, up(0, "z", market="")])
    spent = goodput(events)
    told = {"useful": spent.useful_s, **spent.lost_s}
    causes = {name: money.seconds for name, money in bill.by_cause.items()}
    causes.pop("after training", None)
    assert causes == pytest.approx({name: s for name, s in told.items() if name in causes})
    assert sum(causes.values()) == pytest.approx(spent.wall_s, abs=1e-3)


@given(events=markets(), seed=st.integers(0, 10_000), at_random=st.randoms())
def test_facts_that_are_told_twice_or_out_of_order_change_nothing(
    events: list[Event], seed: int, at_random: object
) -> None:
    told = [*events, *random_story(seed).events]
    mixed = told * 2
    at_random.shuffle(mixed)  # type: ignore[attr-defined]
    one, other = account(told), account(mixed)
    same(one.total, other.total)
    assert one.billed_usd == pytest.approx(other.billed_usd)
    assert one.charges == other.charges


def test_a_spot_node_that_ec2_takes_in_its_first_hour_is_free() -> None:
    bill = account([*job(0, 5), up(0, "a"), down(0.9, "a"), up(1, "b"), down(3, "b")])
    (free,) = bill.charges
    assert (free.name, free.why) == ("a", FREE)
    assert free.usd == pytest.approx(-0.9 * 0.4)
    assert bill.total.cost_usd == pytest.approx(2.9 * 0.4)  # the price of the time
    assert bill.billed_usd == pytest.approx(2 * 0.4)


@pytest.mark.parametrize(
    ("market", "spot", "cause"),
    [
        ("gcp/us-central1-a/g2-standard-8/spot", True, "preemption"),  # free for a minute only
        (SPOT, True, "shutdown"),  # who ends a node himself pays
        (SPOT.replace("spot", "on-demand"), False, "preemption"),
        ("", True, "preemption"),  # nobody knows whose terms hold
    ],
)
def test_nothing_else_is_free(market: str, spot: bool, cause: str) -> None:
    end = replace(down(0.9), cause=cause)
    assert account([*job(0, 5), up(0, market=market, spot=spot), end]).charges == ()


def test_a_machine_that_rejoined_is_as_old_as_its_first_start() -> None:
    first, second = up(0, "id1", name="i-1"), up(0.8, "id2", name="i-1")
    assert account([*job(0, 3), first, second, down(1.2, "id2")]).charges == ()


def test_nobody_bills_less_than_a_minute() -> None:
    short = [up(0), replace(down(20 / HOUR_S), cause="shutdown")]
    bill = account([*job(0, 1), *short])
    (least,) = bill.charges
    assert least.why == LEAST
    assert least.usd == pytest.approx(40 / HOUR_S * 0.4)
    assert bill.billed_usd == pytest.approx(60 / HOUR_S * 0.4)
    assert account([*job(0.5, 1), *short]).charges == ()  # another job's


def test_a_disk_costs_from_its_first_mount_to_its_end_also_alone() -> None:
    mounts = [
        DiskMounted(
            at_s=at_h * HOUR_S,
            name="i-1",
            disk="vol-1",
            zone="us-east-1a",
            size_gib=200,
            warm=at_h > 1,
            usd_per_month=16.0,
        )
        for at_h in (1, 5)
    ]
    gone = DiskDeleted(at_s=8 * HOUR_S, disk="vol-1", zone="us-east-1a")
    bill = account([*job(0, 10), *mounts, gone])
    assert bill.disks[0].cost_usd == pytest.approx(7 / 730 * 16)
    assert bill.billed_usd == pytest.approx(7 / 730 * 16)
    assert bill.total.cost_usd is None
    bill = account([*job(0, 10), replace(mounts[0], usd_per_month=None)])
    assert bill.disks[0].cost_usd is None
    assert "no price is known of the disks vol-1" in bill.left_out


def test_the_same_steps_on_demand_pay_each_step_and_one_start() -> None:
    bill = account(four_losses().events)
    spent = goodput(four_losses().events)
    assert bill.same_steps.seconds == pytest.approx(spent.startup_s + 80 * STEP_S)
    node_s = 8 * 4 + STEP_S * (30 * 4 + 6 * 3 + 14 * 2 + 10 * 3 + 20 * 2)
    head_s = bill.same_steps.seconds
    assert bill.same_steps.node_s == pytest.approx(node_s + head_s)
    wanted = (node_s * ON_DEMAND_USD + head_s * 0.1) / 3600
    assert bill.same_steps.cost_usd == pytest.approx(wanted)
    assert bill.by_kind["spot"].cost_usd == pytest.approx(
        bill.by_kind["spot"].seconds / 3600 * SPOT_USD
    )


def test_a_week_begins_on_monday_at_midnight_utc() -> None:
    monday_s = 4 * 86400.0  # 1970-01-05
    assert list(weeks((monday_s - 10, monday_s + 20))) == [
        ("1970-W01", (monday_s - 10, monday_s)),
        ("1970-W02", (monday_s, monday_s + 20)),
    ]
    bill = account([*job(0, 200), up(95), down(97)])
    assert {name: money.seconds for name, money in bill.by_week.items()} == {
        "1970-W01": HOUR_S,
        "1970-W02": HOUR_S,
    }


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([*job(0, 2), up(0, usd_per_hour=None)], "no price for 7200 s"),
        ([*job(0, 2), up(0), JobStarted(at_s=9000, job="j", run_id="r")], "runs again, or a clock"),
        ([JobStarted(at_s=50, job="j", run_id="r"), *job(0)], ""),
        ([*job(0, 2), up(1), down(0.5)], "ended 1800 s before it began"),
        (
            [*job(0, 2), up(1), PriceChanged(at_s=9000, market="m", usd_per_hour=1)],
            "nobody told of the end of node n",
        ),
        ([*job(0, 2), PriceChanged(at_s=0, market="m", usd_per_hour=-1)], "below zero"),
    ],
)
def test_what_the_sums_leave_out_is_told(events: list[Event], words: str) -> None:
    bill = account(events)
    adds_up(bill)
    assert any(words in line for line in bill.left_out) if words else bill.left_out == ()


def test_damaged_lines_are_told() -> None:
    told = account([], damaged_lines=3, unfinished_lines=1).left_out
    assert told[0] == "3 damaged journal lines were left out"
    assert told[1].startswith("1 journal lines without an end were left out")


def test_a_journal_that_was_cut_in_a_line_counts_the_rest_and_says_so(tmp_path: Path) -> None:
    store = Store.at(tmp_path)
    whole = [*job(0), up(0), up(1, "late")]
    text = "".join(encode(event) + "\n" for event in whole)
    store.write("w.jsonl", text[:-20].encode())
    run = load_run(tmp_path)
    bill = account(run.events, unfinished_lines=run.unfinished_lines)
    assert [node.node_id for node in bill.nodes] == []  # up at the last moment that is known
    assert run.unfinished_lines == 1
    assert any("without an end" in line for line in bill.left_out)
    store.write("w.jsonl", text.encode())
    assert load_run(tmp_path).unfinished_lines == 0


@pytest.mark.parametrize("jump_s", [-500.0, 4000.0])
def test_a_clock_that_jumped_is_told_and_the_sums_still_add_up(jump_s: float) -> None:
    events = []
    for event in four_losses().events:
        if isinstance(event, StepsDone) and event.first_step == 5:
            *ends, last = event.ended_at_s
            event = replace(event, ended_at_s=(*ends, last + jump_s), at_s=last + jump_s)
        events.append(event)
    bill = account(events)
    adds_up(bill)
    assert sum(line.startswith("step 8 took ") for line in bill.left_out) == 1
    assert not any("clock" in line for line in account(four_losses().events).left_out)


def test_labels_are_those_of_the_job() -> None:
    start = JobStarted(at_s=0, job="j", run_id="r", labels={"team": "vision"})
    end = JobEnded(at_s=1, job="j", status="finished")
    assert account([start, end]).labels == {"team": "vision"}
