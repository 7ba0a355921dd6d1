"""From Ray's list of nodes to what the controller decides from: where each is, and its price."""

from __future__ import annotations

from collections.abc import Sequence

from spotray.cluster.node_prices import priced
from spotray.cluster.ray_autoscaler.head import DRAINED, EXPECTED, RayNode
from spotray.cluster.ray_autoscaler.seams import (
    INSTANCE_TYPE_LABEL,
    MARKET_TYPE_LABEL,
    ZONE_LABEL,
)
from spotray.controller.limits import NodeSpan
from spotray.controller.pools import ClusterPools
from spotray.controller.watch import Death, NodeSeen
from spotray.events import NodeUp
from spotray.market.offer import Market
from spotray.market.prices import PriceTable
from spotray.policy.view import Fact, Launched


class Eyes:
    """Reads the nodes of one cluster as Ray lists them. Pure but for what it was made with."""

    def __init__(self, cluster: ClusterPools, prices: PriceTable) -> None:
        self._cluster, self._prices = cluster, prices

    def seen(self, listed: Sequence[RayNode], facts: Sequence[Fact]) -> list[NodeSeen]:
        """Nodes as the watch takes them; where a node is, its launch knows best."""
        born = _births(facts)
        seen = []
        for node in listed:
            death = None
            if node.death is not None:
                expected = Death.EXPECTED if node.death in EXPECTED else Death.LOST
                death = Death.DRAINED if node.death == DRAINED else expected
            seen.append(
                NodeSeen(
                    node_id=node.node_id,
                    name=_name(node),
                    node_type=_pool(node),
                    market=self._market(node, born),
                    born_s=node.started_s,
                    busy=node.busy,
                    leaves_by_s=node.leaves_by_s,
                    death=death,
                )
            )
        return seen

    def head_up(self, nodes: Sequence[RayNode]) -> NodeUp | None:
        """The fact that the head runs; it is paid for as well."""
        head = next((one for one in nodes if one.is_head and one.death is None), None)
        return None if head is None else self._up(head, {}, role="head")

    def priced(self, up: NodeUp) -> NodeUp:
        """The fact with its price by the table: nobody tells the real one."""
        added = self._cluster.added.get(up.node_type, "")
        return priced(up, self._prices, region=self._cluster.region, added=added)

    def spans(self, nodes: Sequence[RayNode], facts: Sequence[Fact]) -> list[NodeSpan]:
        """The time of all nodes, the head and the dead ones too, with its price."""
        born = _births(facts)
        return [
            NodeSpan(
                name=_name(node),
                usd_per_hour=self._up(node, born).usd_per_hour,
                start_s=node.started_s,
                end_s=node.ended_s,
            )
            for node in nodes
        ]

    def _up(self, node: RayNode, born: dict[str, Launched], *, role: str = "worker") -> NodeUp:
        market = self._market(node, born)
        up = NodeUp(
            at_s=node.started_s,
            node_id=node.node_id,
            name=_name(node),
            node_type=_pool(node),
            role=role,
            market=str(market),
            spot=market.spot,
        )
        return self.priced(up)

    def _market(self, node: RayNode, born: dict[str, Launched]) -> Market:
        """Where a node is: as it was launched, or as its labels tell."""
        if (launched := born.get(node.instance_id)) is not None:
            return launched.market
        known = self._cluster.instance_types.get(_pool(node), "unknown")
        return Market(
            cloud=self._cluster.cloud,
            zone=node.labels.get(ZONE_LABEL) or self._cluster.zone or "unknown",
            instance_type=node.labels.get(INSTANCE_TYPE_LABEL) or known,
            spot=node.labels.get(MARKET_TYPE_LABEL) == "spot",
        )


def _births(facts: Sequence[Fact]) -> dict[str, Launched]:
    """The launch of each instance, by its name."""
    return {name: fact for fact in facts if isinstance(fact, Launched) for name in fact.names}


def _name(node: RayNode) -> str:
    return node.instance_id or node.node_id


def _pool(node: RayNode) -> str:
    return node.node_type or node.labels.get("ray.io/node-group", "")
