"""What the coordinator says of a cluster; how it decides is in `test_leaving`."""

from __future__ import annotations

import threading
from typing import Any

from ray.core.generated.common_pb2 import NodeDeathInfo  # type: ignore[attr-defined]

from spotray.events import Event, NodeDown, NodeReady, NodeUp, Warned
from spotray.train.coordinator import Coordinator, death_of

REASON = dict(NodeDeathInfo.Reason.items())  # Ray's own


class Bare(Coordinator):
    """A coordinator without an actor, a journal's thread and a look at Ray's nodes."""

    def __init__(self, *, writes_nodes: bool) -> None:
        self.events: list[Event] = []
        self._lock = threading.Lock()
        self._writes_nodes = writes_nodes
        self._alive = {}
        self._seen_at = {}
        self._group = ("b",)
        self._losses = 0
        self._node_up_s = 0.0

    def _append(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type[Event]) -> list[Any]:
        return [e for e in self.events if isinstance(e, kind)]


def node(node_id: str, *, alive: bool = True, labels: Any = None, **more: Any) -> dict[str, Any]:
    return {"NodeID": node_id, "Alive": alive, "Labels": labels, "Resources": {"CPU": 1}, **more}


def test_what_a_bare_cluster_lacks_is_said_once() -> None:
    told = Bare(writes_nodes=True)
    for _ in range(3):
        told._compare([node("a"), node("b")])
    warnings = [e.what for e in told.of(Warned)]
    assert len(warnings) == 2
    assert "ray.io/market-type" in warnings[0]
    assert "SPOTRAY_JOURNAL" in warnings[1]


def test_a_cluster_with_labels_and_a_journal_of_its_own_is_told_nothing() -> None:
    told = Bare(writes_nodes=False)
    told._compare([node("a", labels={"ray.io/market-type": "spot"})])
    assert told.events == []


def test_nodes_that_come_and_go_are_facts_with_their_cause() -> None:
    told = Bare(writes_nodes=True)
    spot = {"ray.io/market-type": "spot"}
    told._compare([node("a"), node("b", labels=spot), node("c"), node("d", labels=spot), node("e")])
    assert [(e.node_id, e.spot) for e in sorted(told.of(NodeUp), key=lambda e: e.node_id)] == [
        ("a", False),
        ("b", True),
        ("c", False),
        ("d", True),
        ("e", False),
    ]
    assert len(told.of(NodeReady)) == 5
    told._compare(
        [
            node("a", alive=False, DeathReason=REASON["UNEXPECTED_TERMINATION"]),
            node("b", alive=False, labels=spot, DeathReason=REASON["UNEXPECTED_TERMINATION"]),
            node("e", alive=False, DeathReason=REASON["EXPECTED_TERMINATION"]),
            node("c", alive=False, DeathReason=REASON["AUTOSCALER_DRAIN_IDLE"]),
            node("d", alive=False, labels=spot, DeathReason=REASON["AUTOSCALER_DRAIN_PREEMPTED"]),
        ]
    )
    down = {e.node_id: (e.cause, e.noticed) for e in told.of(NodeDown)}
    assert down == {
        "a": ("failure", False),
        "b": ("preemption", False),
        "c": ("shutdown", True),
        "d": ("preemption", True),
        "e": ("shutdown", True),
    }
    assert told._losses == 1, "only members of the worker group count"


def test_a_node_drained_for_maintenance_was_not_preempted() -> None:
    reason = REASON["AUTOSCALER_DRAIN_PREEMPTED"]
    for source, cause in (
        ("maintenance notice from azure/scheduled-events", "maintenance"),
        ("preemption notice from gcp/preempted", "preemption"),
    ):
        assert death_of({"DeathReason": reason, "DeathReasonMessage": source}) == (cause, True)
