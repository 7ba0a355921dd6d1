"""A worker's command runner that gives the node its data disk before Ray sets the node up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spotray.cluster.disks.supply import DiskSupply, Given
from spotray.cluster.ray_autoscaler.seams import with_first_words


def with_data_disk(
    runner: Any, supply: DiskSupply, *, node: str, node_type: str, zone: Callable[[], str]
) -> Any:
    """Attach while the node boots, mount when it first answers: no other command waits longer.

    Each node has an updater of its own, in a thread of its own, so no other node waits either.
    """
    given: Given | None = None

    def attach() -> None:
        nonlocal given
        given = supply.give(node, node_type=node_type, zone=zone())

    def mount(run: Callable[[str], str]) -> None:
        supply.mount(node, given, run, node_type=node_type)

    return with_first_words(runner, before=attach, after=mount)
