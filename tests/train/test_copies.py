"""Whose copies go where."""

from __future__ import annotations

from spotray.train.copies import ZONE_LABEL, Copies, CopiesOf
from spotray.train.shelf import Address


def shelf(node: str, port: int = 1) -> Address:
    return Address(node, "127.0.0.1", port, "token")


class Clock:
    """Seconds that a test lets pass."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def copies(*nodes: str, own: str | None = "head", clock: Clock | None = None) -> Copies:
    made = Copies(shelf(own) if own else None, monotonic_s=clock or Clock())
    for node in nodes:
        made.heard(shelf(node))
    return made


def test_copies_go_to_another_node_and_to_the_own_one_only_if_there_is_no_other() -> None:
    assert copies("a", "b").go_to("r", "a") == shelf("b")
    assert copies("a").go_to("r", "a") == shelf("head")
    assert copies("a", own=None).go_to("r", "a") is None
    assert copies(own="a").go_to("r", "a") is None, "all runs on one node"


def test_they_stay_where_they_are_as_long_as_that_will_do() -> None:
    clock = Clock()
    made = copies("a", "b", clock=clock)
    assert made.go_to("r", "a") == shelf("b")
    made.heard(shelf("c"))
    assert made.go_to("r", "a") == shelf("b")
    clock.now_s = 5.0
    made.heard(shelf("a"))
    made.heard(shelf("c"))
    assert made.go_to("r", "a") == shelf("c"), "b was silent for too long"


def test_each_node_gets_as_many_as_the_others() -> None:
    made = copies("a", "b", "c")
    chosen = [made.go_to(f"r{number}", "a") for number in range(4)]
    assert sorted(one.node_id for one in chosen if one) == ["b", "b", "c", "c"]
    made.forget("r0")
    assert made.go_to("r5", "a") == chosen[0]


def test_a_node_that_will_be_taken_gets_none() -> None:
    made = copies("a", "b", "c")
    assert made.go_to("r", "a") == shelf("b")
    made.set_nodes([], leaving=["b"])
    assert made.go_to("r", "a") == shelf("c")


def test_none_goes_to_another_zone() -> None:
    made = copies("a", "b", "c")
    zones = {"a": "x", "b": "y", "head": "y"}
    nodes = [{"NodeID": node, "Labels": {ZONE_LABEL: zone}} for node, zone in zones.items()]
    made.set_nodes([*nodes, {"NodeID": "c", "Labels": None}], leaving=[])
    assert made.go_to("r", "a") == shelf("c"), "whose zone nobody knows"
    made.set_nodes([*nodes, {"NodeID": "c", "Labels": {ZONE_LABEL: "y"}}], leaving=[])
    assert made.go_to("r", "a") is None


def test_only_what_arrived_is_held_also_after_the_process_that_took_it() -> None:
    clock = Clock()
    made = copies("a", "b", clock=clock)
    assert made.go_to("r", "a") == shelf("b")
    assert made.held_for("r") is None
    made.held("r", "b")
    assert made.held_for("r") == shelf("b")
    clock.now_s = 5.0
    assert made.held_for("r") is None
    made.heard(shelf("b", port=2))
    assert made.held_for("r") == shelf("b", port=2), "the memory is the node's"
    made.forget("r")
    assert made.held_for("r") is None


def test_workers_on_several_nodes_need_no_copies() -> None:
    of = CopiesOf(copies("a", "b", "c"), "r")
    assert of.go_to(["a", "b"]) is None
    assert of.go_to(["a", "a"]) == shelf("b")
    assert of.go_to([]) is None
