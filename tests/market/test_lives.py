"""Lives of nodes from events, and the book that keeps them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotray.errors import JournalError
from spotray.events import Event, InstanceVanished, NodeDown, NodeUp
from spotray.market.lives import LivesBook, NodeLife, node_lives
from spotray.storage import Store

SPOT = "aws/us-east-1a/g5.xlarge/spot"


def up(at_s: float, node_id: str, name: str = "", market: str = SPOT) -> NodeUp:
    return NodeUp(at_s=at_s, node_id=node_id, name=name, market=market, spot=True)


def down(at_s: float, node_id: str, cause: str) -> NodeDown:
    return NodeDown(at_s=at_s, node_id=node_id, cause=cause)


def told(events: list[Event], until_s: float | None = None) -> list[tuple[str, float, float, bool]]:
    found = node_lives(events, until_s=until_s)
    return [(one.name, one.start_s, one.seconds, one.ended) for one in found]


def test_only_a_preemption_ends_a_life() -> None:
    events = [
        up(0, "a", "i-a"),
        up(10, "b", "i-b"),
        up(20, "c", "i-c"),
        up(30, "d", "i-d"),
        down(100, "a", "preemption"),
        down(110, "b", "shutdown"),
        down(120, "c", "failure"),
    ]
    assert told(events, until_s=200) == [
        ("i-a", 0, 100, True),
        ("i-b", 10, 100, False),
        ("i-c", 20, 100, False),
        ("i-d", 30, 170, False),
    ]


def test_a_machine_that_comes_back_to_ray_lived_all_the_while() -> None:
    events = [
        up(0, "a", "i-a"),
        down(50, "a", "failure"),
        up(60, "a2", "i-a"),
        down(90, "a2", "preemption"),
    ]
    assert told(events) == [("i-a", 0, 90, True)]


def test_a_machine_that_is_started_again_after_a_preemption_has_two_lives() -> None:
    events = [
        up(0, "a", "i-a"),
        down(50, "a", "preemption"),
        up(600, "a2", "i-a"),
        down(650, "a2", "shutdown"),
    ]
    assert told(events) == [("i-a", 0, 50, True), ("i-a", 600, 50, False)]


def test_the_cloud_knows_better_than_ray_why_a_machine_went() -> None:
    vanished = InstanceVanished(at_s=130, name="i-a", market=SPOT, preempted=True, lived_s=125)
    assert told([up(0, "a", "i-a"), down(100, "a", "failure"), vanished]) == [("i-a", 0, 100, True)]


def test_a_machine_that_never_came_to_ray_has_a_life_too() -> None:
    vanished = InstanceVanished(at_s=130, name="i-x", market=SPOT, preempted=True, lived_s=30)
    assert told([vanished]) == [("i-x", 100, 30, True)]


def test_on_demand_nodes_and_those_of_an_unknown_market_have_no_hazard() -> None:
    on_demand = SPOT.replace("/spot", "/on-demand")
    assert told([up(0, "a", market=on_demand), up(0, "b", market=""), up(9, "c")], 10) == [
        ("c", 9, 1, False)
    ]


def life(name: str, seconds: float, *, ended: bool = False, start_s: float = 5.0) -> NodeLife:
    return NodeLife(market=SPOT, name=name, start_s=start_s, seconds=seconds, ended=ended)


def test_the_book_keeps_clusters_apart_and_of_a_machine_the_longer_life(tmp_path: Path) -> None:
    book = LivesBook(Store.at(tmp_path))
    assert book.lives() == []
    book.put("s3://one", [life("i-a", 10), life("i-b", 20, ended=True)])
    book.put("s3://two", [life("i-c", 30)])
    book.put("s3://one", [life("i-a", 50, ended=True), life("i-b", 60)])
    # A copy of a journal, and a machine of that name much later.
    book.put("s3://copy", [life("i-c", 25), life("i-c", 7, start_s=1000.0)])
    assert [(one.name, one.seconds, one.ended) for one in book.lives()] == [
        ("i-a", 50, True),
        ("i-b", 20, True),
        ("i-c", 30, False),
        ("i-c", 7, False),
    ]
    assert len(list(tmp_path.iterdir())) == 3


@given(
    st.lists(
        st.builds(
            NodeLife,
            market=st.just(SPOT),
            name=st.sampled_from(["i-a", "i-b"]),
            start_s=st.integers(0, 50).map(float),
            seconds=st.integers(0, 50).map(float),
            ended=st.booleans(),
        ),
        max_size=8,
    )
)
def test_what_was_kept_once_may_be_kept_again(lives: list[NodeLife]) -> None:
    from spotray.market.lives import merged

    once = merged(lives)
    assert merged([*once, *once]) == once
    assert {one.name for one in once} == {one.name for one in lives}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "not JSON"),
        ("[]", "no list of lives"),
        ('{"lives": [{"market": "x"}]}', r"lives\[0\]: .*missing"),
        ('{"lives": [7]}', r"lives\[0\]"),
        (
            '{"lives": [{"market": "aws/us-east-1a/g5.xlarge/spot", "name": "i", "start_s": 1, '
            '"seconds": -4, "ended": true}]}',
            r"lives\[0\]: seconds is -4",
        ),
        (
            '{"lives": [{"market": "aws/us-east-1a/g5.xlarge/spot", "name": "i", "start_s": 1, '
            '"seconds": 4, "ended": "no"}]}',
            r"lives\[0\]: ended is 'no'",
        ),
    ],
)
def test_a_damaged_book_names_the_file_and_the_place(tmp_path: Path, text: str, named: str) -> None:
    (tmp_path / "0123.lives.json").write_text(text)
    with pytest.raises(JournalError, match=f"0123.lives.json: {named}"):
        LivesBook(Store.at(tmp_path)).lives()
