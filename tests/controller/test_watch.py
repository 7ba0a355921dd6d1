from __future__ import annotations

from dataclasses import replace

from spotray.controller.watch import Death, NodeSeen, Seen, Watch
from spotray.events import NodeDown, NodeUp
from spotray.policy.view import Preempted
from tests.controller.small_cloud import ON_DEMAND, SPOT_A

NODE = NodeSeen(node_id="n1", name="i-1", node_type="gpu", market=SPOT_A, born_s=100.0)


def looks(*nodes: NodeSeen, ours: tuple[str, ...] = ()) -> list[Seen]:
    """Looks at one node, a minute apart."""
    watch = Watch()
    return [watch.look([node], ours=ours, now_s=200.0 + 60 * i) for i, node in enumerate(nodes)]


def down(seen: Seen) -> NodeDown:
    (event,) = (one for one in seen.events if isinstance(one, NodeDown))
    return event


def test_a_notice_is_remembered_once_when_the_node_begins_to_drain() -> None:
    leaving = replace(NODE, leaves_by_s=400.0)
    gone = replace(leaving, death=Death.DRAINED)
    first, told, again, last = looks(NODE, leaving, leaving, gone)
    assert (first.facts, first.lost) == ((), ())
    assert told.facts == (Preempted(at_s=260.0, market=SPOT_A, name="i-1", lived_s=160.0),)
    assert told.lost == ("i-1",)
    assert (again.facts, last.facts, last.lost) == ((), (), ())
    assert (down(last).cause, down(last).noticed) == ("preemption", True)


def test_a_silent_end_is_a_preemption_of_a_spot_node_and_a_failure_of_another() -> None:
    _, seen = looks(NODE, replace(NODE, death=Death.LOST))
    assert len(seen.facts) == len(seen.lost) == 1
    assert (down(seen).cause, down(seen).noticed) == ("preemption", False)
    steady = replace(NODE, market=ON_DEMAND)
    _, seen = looks(steady, replace(steady, death=Death.LOST))
    assert not seen.facts
    assert down(seen).cause == "failure"


def test_an_ordinary_end_teaches_nothing() -> None:
    idle = replace(NODE, leaves_by_s=0.0)
    for nodes in (
        (NODE, replace(NODE, death=Death.EXPECTED)),
        (NODE, idle, replace(idle, death=Death.DRAINED)),
    ):
        seen = looks(*nodes)
        assert not any(one.facts or one.lost for one in seen)
        assert down(seen[-1]).cause == "shutdown"


def test_our_own_drain_is_no_preemption() -> None:
    leaving = replace(NODE, leaves_by_s=400.0)
    seen = looks(NODE, leaving, replace(leaving, death=Death.DRAINED), ours=("n1",))
    assert not any(one.facts or one.lost for one in seen)
    assert down(seen[-1]).cause == "shutdown"


def test_a_drain_too_short_to_be_seen_is_a_preemption() -> None:
    _, seen = looks(NODE, replace(NODE, death=Death.DRAINED))
    assert len(seen.facts) == 1


def test_what_was_dead_before_the_first_look_is_no_news() -> None:
    (seen,) = looks(replace(NODE, death=Death.LOST))
    assert seen == Seen()


def test_only_a_node_with_work_is_missed() -> None:
    idle = replace(NODE, busy=False)
    # Of a node that drains Ray says nothing about its work.
    _, seen = looks(idle, replace(NODE, leaves_by_s=400.0))
    assert len(seen.facts) == 1
    assert not seen.lost


def test_a_node_is_told_as_up_once_with_its_market() -> None:
    first, second = looks(NODE, NODE)
    (up,) = (one for one in first.events if isinstance(one, NodeUp))
    assert (up.at_s, up.market, up.spot, up.name) == (100.0, str(SPOT_A), True, "i-1")
    assert not second.events
