"""Asking Ray's autoscaler for nodes beside the applications.

Its standing request is one for the whole cluster, which each caller of Ray's own
``request_resources`` replaces. So there are two ways, one at a time:

- Ray Train and Ray Data, and so spotray's jobs, hand theirs to one actor that adds them up
  and sends the sum every 20 s. Where there is that actor, this file hands ours to it. What
  an application asks for by ``request_resources`` is overwritten then, as it is without
  spotray: nobody can hand it on, for what the actor sends next cannot be told from it.
- Where there is none, nobody here makes one. Ours is written beside what stands there, and
  taken out again, so the application's request outlives ours. Each of ours carries a
  selector that every node satisfies, by which it is known, also by a process started anew.
  A request of an application between our look and our word, milliseconds, is lost. Nothing
  expires there: ours stands until it is taken out, by this process or the next one of its name.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.data._internal.cluster_autoscaler.base_autoscaling_coordinator import (
    ResourceRequestPriority,
)
from ray.exceptions import RayError

from spotray.cluster.drain import gcs_client
from spotray.errors import ClusterUnreachable

log = logging.getLogger(__name__)

_CALL_S = 5.0
_COORDINATOR = "AutoscalingCoordinator"  # its name and its namespace
_EXPIRES_S = 60.0  # if this process dies, that actor asks on in its name for no longer
_RENEW_S = 15.0
_MARK = "spotray-requester"  # a label that no node has
_FORMS = {1: ("", "in"), 2: ("!", "!in")}  # Ray's LabelSelectorOperator, as one writes it


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One bundle that the autoscaler is asked for, so many times."""

    bundle: Mapping[str, float]
    selector: Mapping[str, str] = field(default_factory=dict)
    count: int = 1


class NodeRequest:
    """One requester's standing request. Needs ``ray.init()``."""

    def __init__(self, requester: str) -> None:
        """Nothing is asked yet. ``requester``: no two that live at a time share it."""
        self._requester = requester
        self._bundles: list[dict[str, float]] = []
        self._actor: Any = None  # looked up anew when it does not answer
        self._renewed_at = float("-inf")
        self._known = False  # whether what Ray has of us is what we said last

    @property
    def bundles(self) -> Sequence[Mapping[str, float]]:
        """What is asked for in this name, as far as is known here."""
        return tuple(self._bundles)

    def keep(self, bundles: Sequence[Mapping[str, float]]) -> None:
        """Ask for this instead of what was asked for before; to be said every second or so.

        Raises:
            ClusterUnreachable: Ray did not take it; ask again.
        """
        wanted = [dict(bundle) for bundle in bundles]
        stands = self._known and wanted == self._bundles
        if stands and not wanted:
            return
        self._known = False  # until Ray has answered
        try:
            if self._actor is None and (found := _coordinator()) is not None:
                self._actor, stands = found, False
            if self._actor is None:
                self._keep_beside(wanted)
            elif not stands or time.monotonic() - self._renewed_at >= _RENEW_S:
                self._hand_over(wanted)
        except RayError as exc:
            # Whoever asked first made that actor, on its own node, and it ends with that node.
            self._actor = None
            raise ClusterUnreachable(f"Ray's autoscaling coordinator: {exc}") from exc
        self._bundles, self._known = wanted, True

    def _keep_beside(self, wanted: list[dict[str, float]]) -> None:
        """Write it beside what applications have there, unless it stands there."""
        mark = {_MARK: f"!{self._requester}"}
        address = ray.get_runtime_context().gcs_address
        there = standing(address)
        mine = [one.bundle for one in there for _ in range(one.count) if one.selector == mark]
        if _sorted(mine) == _sorted(wanted):
            return
        asked = [one for one in there if one.selector != mark]
        asked += [Standing(bundle=bundle, selector=mark) for bundle in wanted]
        with gcs_client(address) as gcs:
            gcs.request_cluster_resource_constraint(
                [dict(one.bundle) for one in asked],
                [dict(one.selector) for one in asked],
                [one.count for one in asked],
                timeout_s=_CALL_S,
            )

    def _hand_over(self, wanted: list[dict[str, float]]) -> None:
        """Have the actor ask for it."""
        if wanted:
            call = self._actor.request_resources.remote(
                requester_id=self._requester,
                resources=wanted,
                expire_after_s=_EXPIRES_S,
                # Jobs have the first choice of the nodes that are there.
                priority=ResourceRequestPriority.LOW,
            )
        else:
            call = self._actor.cancel_request.remote(self._requester)
        ray.get(call, timeout=_CALL_S)
        self._renewed_at = time.monotonic()


def standing(ray_address: str) -> list[Standing]:
    """What the autoscaler of the cluster at HOST:PORT is asked for, whoever asked.

    Raises:
        ClusterUnreachable: the head does not answer.
    """
    from ray.autoscaler.v2.sdk import get_cluster_resource_state

    with gcs_client(ray_address) as gcs:
        state = get_cluster_resource_state(gcs)
    return [
        Standing(
            bundle=dict(one.request.resources_bundle),
            selector=_selector(one.request.label_selectors),
            count=one.count,
        )
        for constraint in state.cluster_resource_constraints
        for one in constraint.resource_requests
    ]


def _selector(selectors: Iterable[Any]) -> dict[str, str]:
    """Ray's own form of a label selector as one writes it; all constraints of a request."""
    written = {}
    for constraint in (one for selector in selectors for one in selector.label_constraints):
        single, several = _FORMS[constraint.operator]
        values = sorted(constraint.label_values)
        written[constraint.label_key] = (
            f"{single}{values[0]}" if len(values) == 1 else f"{several}({','.join(values)})"
        )
    return written


def _sorted(bundles: Iterable[Mapping[str, float]]) -> list[list[tuple[str, float]]]:
    return sorted(sorted(bundle.items()) for bundle in bundles)


def _coordinator() -> Any:
    """The actor that adds requests up, if there is one."""
    try:
        return ray.get_actor(_COORDINATOR, namespace=_COORDINATOR)
    except ValueError:
        return None
