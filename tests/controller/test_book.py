"""The cluster's journal goes to the book while the cluster lives."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from spotray.controller.book import BookKeeper
from spotray.events import NodeDown, NodeUp, encode
from spotray.market.lives import LivesBook
from spotray.storage import Store

SPOT = "aws/us-east-1a/g5.xlarge/spot"


def tell(journal: Path, name: str, at_s: float) -> None:
    journal.mkdir(parents=True, exist_ok=True)
    facts = (
        NodeUp(at_s=at_s, node_id=name, name=name, market=SPOT, spot=True),
        NodeDown(at_s=at_s + 60.0, node_id=name, cause="preemption"),
    )
    with (journal / "agent.jsonl").open("a") as out:
        out.write("".join(encode(one) + "\n" for one in facts))


def names(book: Path) -> list[str]:
    return [one.name for one in LivesBook(Store.at(book)).lives()]


def test_what_came_since_the_last_time_is_kept_beside_other_clusters(tmp_path: Path) -> None:
    book = tmp_path / "book"
    mine, other = (BookKeeper(str(tmp_path / one), str(book)) for one in ("mine", "other"))
    tell(tmp_path / "mine", "i-1", 10.0)
    assert mine.keep()
    tell(tmp_path / "other", "i-2", 20.0)
    assert other.keep()
    tell(tmp_path / "mine", "i-3", 30.0)
    assert mine.keep()
    assert names(book) == ["i-1", "i-2", "i-3"]


@pytest.mark.parametrize("book", ["/proc/spotray-book", "nowhere://x/y"])
def test_a_book_that_cannot_be_written_is_logged_and_tried_again(
    book: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tell(tmp_path / "journal", "i-1", 10.0)
    with caplog.at_level(logging.WARNING, logger="spotray.controller.book"):
        assert not BookKeeper(str(tmp_path / "journal"), book).keep()
    assert "the book waits" in caplog.text


def test_before_there_is_a_journal_the_book_waits(tmp_path: Path) -> None:
    assert not BookKeeper(str(tmp_path / "journal"), str(tmp_path / "book")).keep()
    assert not (tmp_path / "book").exists()


def test_it_keeps_until_it_is_stopped(tmp_path: Path) -> None:
    tell(tmp_path / "journal", "i-1", 10.0)
    keeper = BookKeeper(str(tmp_path / "journal"), str(tmp_path / "book"))
    kept, stop = threading.Event(), threading.Event()
    once = keeper.keep

    def keep() -> bool:
        done = once()
        kept.set()
        return done

    keeper.keep = keep  # type: ignore[method-assign]
    thread = threading.Thread(target=keeper.run, args=(stop,), kwargs={"every_s": 0.01})
    thread.start()
    try:
        assert kept.wait(60)
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()
    assert names(tmp_path / "book") == ["i-1"]


def test_a_failure_that_nobody_thought_of_does_not_end_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stop = threading.Event()

    class Broken(BookKeeper):
        tries = 0

        def keep(self) -> bool:
            self.tries += 1
            if self.tries == 2:
                stop.set()
            raise KeyError("a bug")

    keeper = Broken("journal", "book")
    keeper.run(stop, every_s=0.01)
    assert keeper.tries == 2
    assert "the book waits" in caplog.text
