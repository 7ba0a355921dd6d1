"""What became of the workers, from one look at Ray's nodes to the next. Pure.

A spot worker that drains by a deadline which nobody here set is taken by the cloud: its
agent heard the notice. That is known before the provider sees an instance go, and where
Ray leaves early and the autoscaler ends the instance itself, the provider never sees it.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from spotray.events import Event, NodeDown, NodeReady, NodeUp
from spotray.market.offer import Market
from spotray.policy.view import Fact, Preempted


class Death(enum.Enum):
    """How Ray says that a node ended."""

    EXPECTED = enum.auto()  # Ray was stopped there, or the autoscaler had no use for it
    DRAINED = enum.auto()  # it was told to leave
    LOST = enum.auto()  # without a word


@dataclass(frozen=True, kw_only=True)
class NodeSeen:
    """A worker as Ray lists it, also a dead one.

    ``leaves_by_s``: it drains; 0 without a deadline, as where the autoscaler ends idle
    nodes. ``death``: None while it is alive.
    """

    node_id: str
    name: str
    node_type: str
    market: Market
    born_s: float
    busy: bool = True
    leaves_by_s: float | None = None
    death: Death | None = None


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What one look brought."""

    facts: tuple[Fact, ...] = ()
    events: tuple[Event, ...] = ()
    lost: tuple[str, ...] = ()  # busy spot workers that are taken, by name


class Watch:
    """Compares each look with the one before. For one thread."""

    def __init__(self) -> None:
        """Nobody was seen yet; what is dead at the first look is no news."""
        self._alive: dict[str, NodeSeen] = {}
        self._taken: set[str] = set()  # told as preempted

    def look(self, nodes: Sequence[NodeSeen], *, ours: Collection[str], now_s: float) -> Seen:
        """Take a list of the workers.

        Args:
            nodes: all that Ray lists.
            ours: ids of nodes that were told to leave by this program.
            now_s: Unix seconds.
        """
        facts: list[Fact] = []
        events: list[Event] = []
        lost: list[str] = []
        for node in nodes:
            before = self._alive.get(node.node_id)
            if node.death is None:
                if before is None:
                    events += _up(node, now_s)
                elif node.leaves_by_s is not None:
                    # Of a node that drains Ray does not tell whether it has work.
                    node = replace(node, busy=before.busy)
                self._alive[node.node_id] = node
            elif before is None:
                continue
            else:
                del self._alive[node.node_id]
                events.append(_down(node, before, ours=ours, now_s=now_s))
            last = before or node
            if node.node_id not in self._taken and _is_taken(node, last, ours):
                self._taken.add(node.node_id)
                lived_s = max(0.0, now_s - node.born_s)
                facts.append(
                    Preempted(at_s=now_s, market=node.market, name=node.name, lived_s=lived_s)
                )
                lost += [node.name] if last.busy else []
            if node.death is not None:
                self._taken.discard(node.node_id)
        return Seen(facts=tuple(facts), events=tuple(events), lost=tuple(lost))


def _is_taken(node: NodeSeen, last: NodeSeen, ours: Collection[str]) -> bool:
    if not node.market.spot or node.node_id in ours:
        return False
    if node.death is None:
        return bool(node.leaves_by_s)
    if node.death is Death.DRAINED:
        return last.leaves_by_s != 0
    return node.death is Death.LOST


def _up(node: NodeSeen, now_s: float) -> list[Event]:
    up = NodeUp(
        at_s=min(node.born_s, now_s),
        node_id=node.node_id,
        name=node.name,
        node_type=node.node_type,
        market=str(node.market),
        spot=node.market.spot,
    )
    return [up, NodeReady(at_s=now_s, node_id=node.node_id)]


def _down(node: NodeSeen, last: NodeSeen, *, ours: Collection[str], now_s: float) -> NodeDown:
    drained = bool(last.leaves_by_s) or node.death is Death.DRAINED
    if node.node_id in ours or node.death is Death.EXPECTED or last.leaves_by_s == 0:
        cause, noticed = "shutdown", False
    elif node.market.spot or drained:
        cause, noticed = "preemption", drained
    else:
        cause, noticed = "failure", False
    return NodeDown(at_s=now_s, node_id=node.node_id, cause=cause, noticed=noticed)
