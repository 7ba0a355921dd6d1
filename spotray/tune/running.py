"""A sweep's coordinator, as its driver sees it."""

from __future__ import annotations

import logging
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from spotray.clock import SystemClock
from spotray.cluster.job_actors import NAMESPACE
from spotray.errors import ConfigError
from spotray.tune.actor import SweepActor
from spotray.tune.sweep import SweepPlan

log = logging.getLogger(__name__)

_CALL_S = 10.0
_CLOSE_S = 120.0
_LEFTOVER_S = 20.0


class RunningSweep:
    """The coordinator's actor, from its start to its end."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    @classmethod
    def start(cls, plan: SweepPlan, *, actor_name: str, threads: int) -> RunningSweep:
        """Start it on the driver's node. The sweep's lease must be held.

        Raises:
            ConfigError: a sweep of this name is running on this cluster.
        """
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        actor = ray.remote(SweepActor).options(
            name=actor_name,
            namespace=NAMESPACE,
            num_cpus=0,
            max_concurrency=threads,
            max_restarts=0,
            scheduling_strategy=here,
        )
        # The lease says that no other driver has this sweep. The actor of one that was killed
        # just now lives until Ray has noticed.
        clock = SystemClock()
        until_s = clock.now_s() + _LEFTOVER_S
        while True:
            try:
                return cls(actor.remote(plan))
            except ValueError as exc:
                if clock.now_s() > until_s:
                    raise ConfigError(
                        f"a sweep named {plan.name!r} is running on this cluster: wait for its "
                        "end, or give this one another name"
                    ) from exc
                clock.sleep(0.5)

    def fatal(self) -> str:
        """Why no trial could go on; empty if that is not why the sweep ended."""
        try:
            return str(ray.get(self._actor.fatal.remote(), timeout=_CALL_S))
        except RayError as exc:
            log.warning("the sweep's coordinator did not answer: %s", exc)
            return ""

    def end(self, status: str, why: str) -> None:
        """Write down how the sweep ended, and end the actor."""
        try:
            ray.get(self._actor.close.remote(status, why), timeout=_CLOSE_S)
        except RayError as exc:
            log.warning("the sweep's coordinator did not end well: %s", exc)
        ray.kill(self._actor)
