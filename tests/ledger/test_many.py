"""Many runs add up: a node that several of them used is paid once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotray.events import Event, JobStarted
from spotray.ledger.account import account
from spotray.ledger.charges import FREE
from spotray.ledger.many import NO_LABEL, merged, sum_runs
from spotray.ledger.pricing import Money

from .test_account import same
from .test_cost import HOUR_S, down, job, markets, up

NODES: list[Event] = [up(0, "n"), replace(down(10), cause="shutdown")]


def labelled(events: list[Event], **labels: str) -> list[Event]:
    return [replace(e, labels=labels) if isinstance(e, JobStarted) else e for e in events]


def test_a_node_that_two_runs_shared_is_paid_once_in_equal_parts() -> None:
    bill = sum_runs({"one": [*job(0, 4), *NODES], "two": [*job(2, 6), *NODES]})
    assert bill.total.seconds == pytest.approx(6 * HOUR_S)
    assert bill.by_run["one"].seconds == pytest.approx(3 * HOUR_S)
    assert bill.by_run["two"].cost_usd == pytest.approx(3 * 0.4)
    assert bill.billed_usd == pytest.approx(6 * 0.4)


def test_runs_on_other_nodes_are_just_added() -> None:
    other: list[Event] = [up(0, "x"), down(10, "x")]
    bill = sum_runs({"one": [*job(0, 4), *NODES], "two": [*job(2, 6), *other]})
    assert bill.total.seconds == pytest.approx(8 * HOUR_S)


def test_a_free_hour_that_two_runs_shared_is_free_once() -> None:
    nodes: list[Event] = [up(0, "n"), down(0.5)]
    runs = {name: [*job(0, 1), *nodes] for name in ("one", "two")}
    assert account(runs["one"]).charges[0].why == FREE
    assert sum_runs(runs).billed_usd == pytest.approx(0.0)


def test_labels_and_weeks_split_the_same_sum() -> None:
    bill = sum_runs(
        {
            "one": labelled([*job(95, 97), up(0)], team="vision"),
            "two": labelled([*job(0, 3), up(0, "x")], team="speech", who="me"),
        }
    )
    assert {n: m.seconds for n, m in bill.by_week.items()} == {
        "1970-W01": pytest.approx(4 * HOUR_S),
        "1970-W02": pytest.approx(HOUR_S),
    }
    assert bill.by_label["team"]["vision"].cost_usd == pytest.approx(0.8)
    assert bill.by_label["who"][NO_LABEL] == bill.by_label["team"]["vision"]


def test_what_each_run_leaves_out_is_told() -> None:
    bill = sum_runs({"one": [*job(0, 4), *NODES]}, damaged={"one": 2})
    assert bill.left_out == {"one": ("2 damaged journal lines were left out",)}
    assert sum_runs({}).billed_usd is None


@given(runs=st.lists(markets(), min_size=1, max_size=4))
def test_every_cut_of_many_runs_adds_up(runs: list[list[Event]]) -> None:
    told = {f"run-{i}": labelled(events, odd=str(i % 2)) for i, events in enumerate(runs)}
    bill = sum_runs(told)
    for cut in (bill.by_run, bill.by_week, bill.by_label["odd"]):
        same(sum(cut.values(), Money()), bill.total)


@given(events=markets())
def test_one_run_alone_costs_what_its_own_account_says(events: list[Event]) -> None:
    alone, bill = account(events), sum_runs({"run": events})
    same(alone.total, bill.total)
    assert bill.billed_usd == pytest.approx(alone.billed_usd)


def test_spans_that_touch_become_one() -> None:
    assert merged([(4.0, 5.0), (0.0, 2.0), (2.0, 3.0)]) == [(0.0, 3.0), (4.0, 5.0)]
