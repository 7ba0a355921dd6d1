"""The launch policy that reads a book first: what it learns there, and a book that is not there."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from spotray.cluster.launch_book import LearnedCost
from spotray.market.hazards import Hazards
from spotray.market.lives import LivesBook, NodeLife
from spotray.market.offer import Market
from spotray.policy.decision import Launch
from spotray.policy.expected_cost import ExpectedCostConfig
from spotray.policy.view import LaunchView
from spotray.storage import Store

A, B = (
    Market(cloud="aws", zone=f"us-west-2{zone}", instance_type="g5.xlarge", spot=True)
    for zone in "ab"
)
NOW_S = 1_700_000_000.0
HOUR_S = 3600.0


def keep(book: Path, market: Market, hours: float, source: str = "a cluster") -> None:
    lives = [
        NodeLife(market=str(market), name=f"i-{n}", start_s=0.0, seconds=hours * HOUR_S, ended=True)
        for n in range(20)
    ]
    LivesBook(Store.at(book)).put(source, lives)


def learned(book: str | Path) -> LearnedCost:
    """Which waits for storage, as long as a busy machine may take."""
    return LearnedCost(ExpectedCostConfig(), str(book), patience_s=60.0)


def first(policy: LearnedCost, now_s: float = NOW_S) -> Market:
    view = LaunchView(now_s=now_s, wanted=1, candidates=(A, B, A.on_demand()), facts=(), tried=())
    decision = policy.decide(view)
    assert isinstance(decision, Launch)
    return decision.attempts[0].market


def test_a_zone_that_took_nodes_soon_in_earlier_clusters_comes_last(tmp_path: Path) -> None:
    keep(tmp_path, A, 0.5)
    keep(tmp_path, B, 50.0, "another cluster")
    policy = learned(tmp_path)
    assert first(policy) == B


@pytest.mark.parametrize("book", ["nowhere://x/y", "EMPTY", "DAMAGED"])
def test_a_book_that_cannot_be_read_costs_no_launch(
    book: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if book == "DAMAGED":
        (tmp_path / "x.lives.json").write_text("{")
    url = book if "://" in book else str(tmp_path)
    with caplog.at_level(logging.INFO, logger="spotray.cluster.launch_book"):
        assert first(learned(url)) == A  # as configured
    assert ("0 lives" in caplog.text) is (book == "EMPTY")
    assert ("going on without the book" in caplog.text) is (book != "EMPTY")


def test_the_book_is_read_again_later_and_not_at_every_launch(tmp_path: Path) -> None:
    keep(tmp_path, B, 0.5)
    policy = learned(tmp_path)
    assert first(policy) == A
    keep(tmp_path, A, 0.1, "another cluster")
    keep(tmp_path, B, 50.0, "a third one")
    assert first(policy, NOW_S + HOUR_S) == A
    assert first(policy, NOW_S + 7 * HOUR_S) == B


class Slow(LearnedCost):
    """Whose storage answers when a test says so."""

    answers: threading.Event

    def _read(self) -> Hazards | None:
        self.answers.wait(60.0)
        return super()._read()


def test_storage_that_does_not_answer_holds_no_launch_up_and_counts_when_it_does(
    tmp_path: Path,
) -> None:
    keep(tmp_path, A, 0.5)
    keep(tmp_path, B, 50.0, "another cluster")
    policy = Slow(ExpectedCostConfig(), str(tmp_path), patience_s=0.01)
    policy.answers = threading.Event()
    assert first(policy) == A  # as configured
    (reader,) = [one for one in threading.enumerate() if one.name == "launch-book"]
    policy.answers.set()
    reader.join(60.0)
    assert first(policy) == B
