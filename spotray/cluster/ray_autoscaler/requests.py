"""Asking Ray's autoscaler for nodes beside the applications.

Its standing request is one for the whole cluster, which each caller of Ray's own
``request_resources`` replaces. Ray Train and Ray Data, and so spotray's jobs, hand theirs
to one actor that adds them up; this file does the same. What an application asks for by
``request_resources`` itself is overwritten as soon as there is that actor, as it is by Ray
Train: so nobody here makes one for nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.data._internal.cluster_autoscaler.base_autoscaling_coordinator import (
    ResourceRequestPriority,
)
from ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator import (
    get_or_create_autoscaling_coordinator,
)
from ray.exceptions import RayError

from spotray.errors import ClusterUnreachable

log = logging.getLogger(__name__)

_CALL_S = 5.0
_COORDINATOR = "AutoscalingCoordinator"  # its name and its namespace
_EXPIRES_S = 60.0  # if this process dies, nobody asks on in its name for longer
_RENEW_S = 15.0


class NodeRequest:
    """One requester's standing request. Needs ``ray.init()``."""

    def __init__(self, requester: str) -> None:
        """Nothing is asked yet. ``requester``: no two that live at a time share it."""
        self._requester = requester
        self._bundles: list[dict[str, float]] = []
        self._renewed_at = float("-inf")
        self._known = False  # whether what Ray has of us is what we said last

    @property
    def bundles(self) -> Sequence[Mapping[str, float]]:
        """What is asked for in this name, as far as is known here."""
        return tuple(self._bundles)

    def keep(self, bundles: Sequence[Mapping[str, float]]) -> None:
        """Ask for this instead of what was asked for before; renews it when it is time.

        Raises:
            ClusterUnreachable: Ray did not take it; ask again.
        """
        wanted = [dict(bundle) for bundle in bundles]
        now = time.monotonic()
        is_fresh = not wanted or now - self._renewed_at < _RENEW_S
        if self._known and wanted == self._bundles and is_fresh:
            return
        self._known = False
        try:
            if wanted:
                actor = get_or_create_autoscaling_coordinator()
                call = actor.request_resources.remote(
                    requester_id=self._requester,
                    resources=wanted,
                    expire_after_s=_EXPIRES_S,
                    # Jobs have the first choice of the nodes that are there.
                    priority=ResourceRequestPriority.LOW,
                )
                ray.get(call, timeout=_CALL_S)
            elif (actor := _coordinator()) is not None:
                ray.get(actor.cancel_request.remote(self._requester), timeout=_CALL_S)
        except RayError as exc:
            raise ClusterUnreachable(f"Ray's autoscaling coordinator: {exc}") from exc
        self._bundles, self._renewed_at, self._known = wanted, now, True


def _coordinator() -> Any:
    """The actor that adds requests up, if there is one."""
    try:
        return ray.get_actor(_COORDINATOR, namespace=_COORDINATOR)
    except ValueError:
        return None
