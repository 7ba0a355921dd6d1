"""The instances of a cluster, through the node provider that its YAML names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray.autoscaler._private.providers import _get_node_provider
from ray.autoscaler.tags import NODE_KIND_HEAD, NODE_KIND_WORKER, TAG_RAY_NODE_KIND


class Instances:
    """Ends instances as Ray's autoscaler and ``ray down`` do; made when first needed.

    Methods raise what the provider raises.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Nothing is asked yet. ``config``: the cluster's, as ``ray up`` leaves it on the head."""
        self._config = config
        self._provider: Any = None

    def end(self, name: str) -> None:
        """Have one instance ended."""
        self._made().terminate_node(name)

    def end_workers(self) -> tuple[str, ...]:
        """Have all workers ended; their names."""
        return self._end(NODE_KIND_WORKER)

    def end_head(self) -> tuple[str, ...]:
        """Have the head ended; its name."""
        return self._end(NODE_KIND_HEAD)

    def _end(self, kind: str) -> tuple[str, ...]:
        provider = self._made()
        names = tuple(provider.non_terminated_nodes({TAG_RAY_NODE_KIND: kind}))
        if names:
            provider.terminate_nodes(list(names))
        return names

    def _made(self) -> Any:
        if self._provider is None:
            # Not Ray's cached one: that is the autoscaler's, if both run in one process.
            self._provider = _get_node_provider(
                self._config["provider"], self._config["cluster_name"], use_cache=False
            )
        return self._provider
