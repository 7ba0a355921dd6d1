"""How many whole nodes to ask for beside what the applications ask for. Pure.

Ray's autoscaler packs all requests together onto the nodes that are there, and launches
what does not fit. So asking for a number of workers means: pack what others ask for in the
same way, and ask for as many whole nodes more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

Bundle = Mapping[str, float]


def whole_node(totals: Iterable[Bundle]) -> dict[str, float]:
    """What only one of can be on each of these nodes, and nothing beside it: all GPUs and CPUs.

    Both, for a job may leave one of them alone, and the autoscaler would pack this there.
    """
    nodes = list(totals)
    whole = {}
    for resource in ("GPU", "CPU"):
        amounts = [node[resource] for node in nodes if node.get(resource)]
        if amounts and len(amounts) == len(nodes):
            whole[resource] = min(amounts)
    return whole


def missing_nodes(
    wanted: int, *, nodes: Sequence[Bundle], others: Iterable[Bundle], whole: Bundle
) -> int:
    """Whole nodes to ask for, so that there are ``wanted``.

    Args:
        wanted: workers that shall be there.
        nodes: what each worker has that stays.
        others: what is asked for by others.
        whole: one node that is launched anew.
    """
    left = [dict(node) for node in nodes]
    used = [False] * len(left)
    for bundle in sorted(others, key=lambda one: -sum(one.values())):
        # A node in use before one that is not, as the autoscaler does.
        fits = [i for i, node in enumerate(left) if _fits(bundle, node)]
        place = min(fits, key=lambda i: (not used[i], i), default=None)
        if place is None:
            if not _fits(bundle, whole):
                continue  # for another kind of node
            left.append(dict(whole))
            used.append(False)
            place = len(left) - 1
        used[place] = True
        for resource, amount in bundle.items():
            left[place][resource] = left[place].get(resource, 0.0) - amount
    return max(0, wanted - sum(used))


def without(merged: Sequence[Bundle], mine: Sequence[Bundle]) -> list[Bundle]:
    """What is left of all requests when one's own are taken out."""
    rest = list(merged)
    for bundle in mine:
        if bundle in rest:
            rest.remove(bundle)
    return rest


def _fits(bundle: Bundle, node: Bundle) -> bool:
    return all(node.get(resource, 0.0) >= amount for resource, amount in bundle.items())
