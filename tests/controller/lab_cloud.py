"""The lab with an autoscaler: real Ray nodes, launched by our own launcher as Ray is asked.

It does what Ray's autoscaler and the cloud do together, in a thread: launches what is asked
for and missing, and ends the machines of nodes that were drained and left.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F

from spotray.cluster.drain import gcs_client
from spotray.cluster.launcher import Launcher, NothingLaunched
from spotray.cluster.memory import LaunchMemory
from spotray.cluster.ray_autoscaler.head import Asked, RayHead, RayNode
from spotray.errors import ClusterUnreachable, LabError, NoCapacityError
from spotray.events import Event
from spotray.lab.lab import Lab
from spotray.market.offer import Market
from spotray.policy.decision import LaunchPolicy
from tests.train.jobs import MODELS, Images

log = logging.getLogger(__name__)

POOL = "worker"
_LOOK_S = 0.3


def patient_loop(config: dict[str, Any], runs: list[Any] | None = None) -> None:
    """Trains for ``epochs`` of 5 steps, slowly as long as the file ``until`` is not there."""
    import time
    from pathlib import Path

    import spotray

    run = spotray.Run(global_batch_size=16, micro_batch_size=2, seed=3)
    if runs is not None:
        runs.append(run)
    until = Path(config["until"])
    model = MODELS["vit"]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, loader = run.prepare(model, optimizer, Images(70))
    for epoch in run.epochs(config["epochs"]):
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            run.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if not until.exists():
                time.sleep(1.5)
        run.report({"seen": epoch})


def use_autoscaler_v2(lab: Lab) -> None:
    """Have requests for nodes go where the autoscaler of a cluster of ``ray up`` finds them."""
    from ray._raylet import (  # type: ignore[attr-defined]
        GCS_AUTOSCALER_STATE_NAMESPACE,
        GCS_AUTOSCALER_V2_ENABLED_KEY,
    )

    with gcs_client(lab.address) as gcs:
        gcs.internal_kv_put(
            GCS_AUTOSCALER_V2_ENABLED_KEY.encode(),
            b"1",
            True,
            GCS_AUTOSCALER_STATE_NAMESPACE.encode(),
        )


class LabHead:
    """`RayHead` whose nodes have the names that the lab gave their machines."""

    def __init__(self, lab: Lab) -> None:
        self._lab, self._ray = lab, RayHead(lab.address)
        self._names: dict[str, str] = {}

    def nodes(self) -> list[RayNode]:
        self._names.update((node.node_id, node.name) for node in self._lab.nodes())
        return [
            replace(node, node_type=POOL, instance_id=self._names.get(node.node_id, ""))
            for node in self._ray.nodes()
        ]

    def asked(self) -> Asked:
        return self._ray.asked()

    def drivers(self) -> int:
        return self._ray.drivers()


class LabCloud:
    """Launches and ends machines of the lab; ``has_spot``: whether the market gives any."""

    def __init__(
        self,
        lab: Lab,
        memory: LaunchMemory,
        policy: LaunchPolicy,
        candidates: tuple[Market, ...],
        *,
        tell: Callable[[Event], None],
        most: int,
    ) -> None:
        self.has_spot = False
        self.ended: list[str] = []  # by the controller
        self._lab, self._candidates, self._most = lab, candidates, most
        self._launcher = Launcher(policy, memory, tell=tell)
        self._head = LabHead(lab)
        self._booting: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="lab-cloud", daemon=True)

    def __enter__(self) -> LabCloud:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def end(self, name: str) -> None:
        self.ended.append(name)
        self._lab.kill(name)

    def end_workers(self) -> tuple[str, ...]:
        names = tuple(node.name for node in self._lab.nodes() if node.name != "head")
        for name in names:
            self.end(name)
        return names

    def end_head(self) -> None:
        raise AssertionError("the lab's head stays")

    def _work(self) -> None:
        while not self._stop.wait(_LOOK_S):
            try:
                self._look()
            except (ClusterUnreachable, LabError) as exc:
                log.info("looking again: %s", exc)

    def _look(self) -> None:
        nodes = [node for node in self._head.nodes() if not node.is_head]
        for node in nodes:
            # As the autoscaler does with the instance of a node that left. The lab gives such
            # a machine a fresh Ray at once, under another node id: it ends all the same.
            if node.death is not None and self._is_there(node):
                self._lab.kill(node.instance_id)
        alive = [node for node in nodes if node.death is None]
        self._booting -= {node.instance_id for node in alive}
        staying = sum(node.leaves_by_s is None for node in alive) + len(self._booting)
        missing = min(
            len(self._head.asked().standing) - staying,
            self._most - len(alive) - len(self._booting),
        )
        for _ in range(missing):
            try:
                made = self._launcher.launch(
                    self._ask, node_type=POOL, candidates=self._candidates, wanted=1
                )
            except NothingLaunched:
                return
            self._booting.update(made)

    def _ask(self, market: Market, count: int) -> Mapping[str, Any]:
        if market.spot and not self.has_spot:
            raise NoCapacityError("none here now", market=str(market), code="NoSpot")
        return {self._lab.add_node(spot=market.spot): market for _ in range(count)}

    def _is_there(self, node: RayNode) -> bool:
        return any(one.name == node.instance_id for one in self._lab.nodes())
