"""The controller: looks at the cluster, decides, and acts, once a second.

What it decides is in `decide`, `watch`, `progress` and `idle`, from plain values; what it
touches is given to it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from spotray.clock import Clock, SystemClock
from spotray.cluster.memory import LaunchMemory
from spotray.cluster.ray_autoscaler.head import Asked, RayNode
from spotray.controller.actions import (
    Action,
    AllowOnDemand,
    Ask,
    End,
    HoldWorkers,
    Hurry,
    Leave,
    Replaced,
    Withdraw,
)
from spotray.controller.applications import jobs_seen
from spotray.controller.asking import missing_nodes, whole_node, without
from spotray.controller.budgets import BudgetWatch
from spotray.controller.decide import decide
from spotray.controller.idle import IdleWatch, Use
from spotray.controller.limits import JobLimits, limits_of, next_deadline
from spotray.controller.looking import Eyes
from spotray.controller.pools import ClusterPools
from spotray.controller.progress import ProgressWatch
from spotray.controller.remember import StateFile
from spotray.controller.view import View, Worker
from spotray.controller.watch import NodeSeen, Watch
from spotray.errors import SpotrayError
from spotray.events import (
    ClusterWentDown,
    DeadlineNear,
    Drained,
    DrainRefused,
    Event,
    InstanceEnded,
    NodeReplaced,
    NodeUp,
    ReplacementAsked,
    ReplacementGivenUp,
    Warned,
    WorkersHeld,
)
from spotray.market.prices import PriceTable
from spotray.policy.evidence import losses
from spotray.policy.view import OnDemandFirst

log = logging.getLogger(__name__)

POLL_S = 1.0
_JOBS_EVERY_S = 2.0
_MAX_BACKOFF_S = 15.0
_FORGET_S = 30.0  # a job that does not answer is taken to run for so long


class Head(Protocol):
    """What Ray's head knows: `spotray.cluster.ray_autoscaler.head.RayHead`."""

    def nodes(self) -> list[RayNode]: ...
    def asked(self) -> Asked: ...
    def drivers(self) -> int: ...


class Request(Protocol):
    """A standing request: `spotray.cluster.ray_autoscaler.requests.NodeRequest`."""

    @property
    def bundles(self) -> Sequence[Mapping[str, float]]: ...
    def keep(self, bundles: Sequence[Mapping[str, float]]) -> None: ...


class Cloud(Protocol):
    """Who ends instances. Each method raises what the cloud's SDK raises."""

    def end(self, name: str) -> None:
        """Have one instance ended."""
        ...

    def end_workers(self) -> tuple[str, ...]:
        """Have all workers ended; their names."""
        ...

    def end_head(self) -> None:
        """Have the head ended, on which this runs, after all that is told is written."""
        ...


@dataclass(frozen=True, kw_only=True)
class Edges:
    """What the controller touches.

    Args:
        head: tells of the nodes.
        request: asks the autoscaler.
        cloud: ends instances.
        drain: tells a node to leave: node id, deadline (Unix seconds), why. A SpotrayError
            means that it was not told.
        jobs: what the coordinators of the running jobs say.
        stop: has Ray stop the job of a driver, by its id: why it cannot, empty if it does.
        tell: takes events; returns at once.
    """

    head: Head
    request: Request
    cloud: Cloud
    drain: Callable[[str, float, str], None]
    jobs: Callable[[], list[Mapping[str, Any]]]
    stop: Callable[[str], str]
    tell: Callable[[Event], None]


class Controller:
    """One cluster's controller. For one thread, but for ``stop``."""

    def __init__(
        self,
        cluster: ClusterPools,
        edges: Edges,
        memory: LaunchMemory,
        *,
        state_file: StateFile,
        idle: IdleWatch | None = None,
        down_with_head: bool = False,
        writes_nodes: bool = True,
        poll_s: float = POLL_S,
        prices: PriceTable | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Nothing is looked at yet.

        Args:
            cluster: its pools and the controller's numbers.
            edges: what it touches.
            memory: of the cluster's launches.
            state_file: where it keeps what it began.
            idle: when an idle cluster goes down; None: never.
            down_with_head: the head, too.
            writes_nodes: whether it tells which nodes come and go.
            poll_s: between two looks; longer after failures.
            prices: of its nodes; None: those that come with this package.
            clock: tells the time.
        """
        self._cluster, self._edges, self._memory = cluster, edges, memory
        self._state_file, self._idle, self._down_with_head = state_file, idle, down_with_head
        self._writes_nodes, self._poll_s = writes_nodes, poll_s
        self._clock = clock or SystemClock()
        self._eyes = Eyes(cluster, prices or PriceTable.bundled())
        self._state = state_file.load()
        self._watch, self._progress = Watch(), ProgressWatch()
        self._told_to_leave: set[str] = set()
        self._told_of_head = False
        self._limits: dict[str, tuple[float, JobLimits]] = {}  # by job; when it told them last
        self._is_spent = False  # the budget of a job that still runs
        self._budgets = BudgetWatch(stop=edges.stop, tell=edges.tell)
        if self._state.swap is not None and self._state.swap.leaves_by_s is not None:
            self._told_to_leave.add(self._state.swap.node_id)
        self._since_s = self._clock.now_s()
        self._jobs: list[Mapping[str, Any]] = []
        self._jobs_at_s = float("-inf")
        self._lost: tuple[float, ...] = ()  # not decided about yet
        self._said: dict[str, str] = {}  # the last words on a matter, told once
        self._failures = 0

    def run(self, stop: threading.Event) -> None:
        """Act until ``stop`` is set, then ask for nothing more."""
        while not stop.is_set():
            try:
                self.step()
                self._failures = 0
            except SpotrayError as exc:
                self._failures += 1
                level = logging.WARNING if self._failures == 1 else logging.DEBUG
                log.log(level, "looking again: %s", exc)
            except Exception:  # nobody else brings the cluster back
                self._failures += 1
                log.exception("step failed, %d in a row", self._failures)
            stop.wait(min(self._poll_s * 2.0 ** min(self._failures, 10), _MAX_BACKOFF_S))
        if self._edges.request.bundles:  # Ray would launch for them as long as the head lives
            try:
                self._edges.request.keep([])
            except Exception:  # whatever Ray raises when it ends, too
                log.exception("what was asked for stands on")

    def step(self) -> None:
        """Look once, and do what follows.

        Raises:
            ClusterUnreachable: Ray does not answer.
        """
        now_s = self._clock.now_s()
        facts = self._memory.facts()
        nodes = self._edges.head.nodes()
        listed = [node for node in nodes if not node.is_head]
        seen = self._eyes.seen(listed, facts)
        self._follow(seen, now_s)
        self._tell_of_head(nodes)
        self._look_at_jobs(nodes, seen, now_s)
        asked = self._edges.head.asked()
        if self._idle is not None and self._idle.is_due(self._use(seen, asked, now_s)):
            self._go_down(now_s)
            return
        self._decide(listed, seen, asked, now_s)

    # -- to look -------------------------------------------------------------

    def _follow(self, seen: Sequence[NodeSeen], now_s: float) -> None:
        """Remember what was taken."""
        found = self._watch.look(seen, ours=self._told_to_leave, now_s=now_s)
        for fact in found.facts:
            log.info("%s", fact)
            self._memory.add(fact)
        if self._writes_nodes:
            for event in found.events:
                self._edges.tell(self._eyes.priced(event) if isinstance(event, NodeUp) else event)
        if found.lost:
            # The node provider, or its agent, may have known long before Ray.
            since_s = {loss.name: loss.at_s for loss in losses(self._memory.facts())}
            self._lost += tuple(since_s.get(name, now_s) for name in found.lost)

    def _tell_of_head(self, nodes: Sequence[RayNode]) -> None:
        """Once: it lives as long as this program does."""
        if not self._writes_nodes or self._told_of_head:
            return
        if (up := self._eyes.head_up(nodes)) is not None:
            self._told_of_head = True
            self._edges.tell(up)

    def _look_at_jobs(
        self, nodes: Sequence[RayNode], seen: Sequence[NodeSeen], now_s: float
    ) -> None:
        if now_s - self._jobs_at_s < _JOBS_EVERY_S:
            return
        self._jobs, self._jobs_at_s = self._edges.jobs(), now_s
        progressed = self._progress.look(
            jobs_seen(self._jobs),
            facts=self._memory.facts(),
            born_s={node.node_id: node.born_s for node in seen},
            now_s=now_s,
        )
        if progressed is not None:
            log.info("a job went on with what replaced the last preempted node")
            self._memory.add(progressed)
        self._limits |= {one.name: (now_s, one) for one in limits_of(self._jobs)}
        self._limits = {n: one for n, one in self._limits.items() if now_s - one[0] < _FORGET_S}
        self._is_spent = self._budgets.look(
            self._running(), lambda: self._eyes.spans(nodes, self._memory.facts()), now_s=now_s
        )

    def _running(self) -> list[JobLimits]:
        return [one for _, one in self._limits.values()]

    def _use(self, seen: Sequence[NodeSeen], asked: Asked, now_s: float) -> Use:
        return Use(
            now_s=now_s,
            drivers=self._edges.head.drivers(),
            busy_workers=sum(node.death is None and node.busy for node in seen),
            waiting=asked.waiting,
        )

    # -- to decide and act ---------------------------------------------------

    def _decide(
        self, listed: Sequence[RayNode], seen: Sequence[NodeSeen], asked: Asked, now_s: float
    ) -> None:
        workers = tuple(
            Worker(
                node_id=node.node_id,
                name=node.name,
                node_type=node.node_type,
                market=node.market,
                born_s=node.born_s,
                busy=node.busy,
                leaves_by_s=node.leaves_by_s,
            )
            for node in seen
            if node.death is None
        )
        deadline_s, deadline_of = next_deadline(self._running(), now_s=now_s)
        view = View(
            now_s=now_s,
            workers=workers,
            pools=self._cluster.pools,
            facts=self._memory.facts(),
            room=self._cluster.max_workers - len(workers),
            deadline_s=deadline_s,
            deadline_of=deadline_of,
            is_spent=self._is_spent,
            lost=self._lost,
            asked_since_s=self._since_s,
        )
        plan = decide(view, self._state, config=self._cluster.control, policy=self._cluster.policy)
        swap = plan.state.swap or self._state.swap
        old = (swap.node_id, swap.name) if swap is not None else ("", "")
        # What is asked for on-demand is held back before more is asked for, and let go only
        # when less is.
        for action in plan.actions:
            if isinstance(action, Ask) and action.spot_only:
                self._memory.spot_only(action.until_s)
        self._request(plan.state.wanted, listed, asked)
        self._state, self._lost = plan.state, ()
        self._state_file.save(plan.state)
        if plan.waits_for:
            self._say_once("waits", plan.waits_for, Warned(at_s=now_s, what=plan.waits_for))
        for action in plan.actions:
            self._act(action, old, now_s)

    def _request(self, wanted: int, listed: Sequence[RayNode], asked: Asked) -> None:
        """Have as many workers asked for, with what the applications ask for."""
        bundles: list[Mapping[str, float]] = []
        staying = [n.resources for n in listed if n.death is None and n.leaves_by_s is None]
        if wanted:
            # A pool that lost all of its workers has nobody to tell what one of them is.
            whole = whole_node(staying) or whole_node([n.resources for n in listed])
            others = without(asked.standing, self._edges.request.bundles)
            if whole:
                missing = missing_nodes(wanted, nodes=staying, others=others, whole=whole)
                bundles = [whole] * missing
        self._edges.request.keep(bundles)

    def _act(self, action: Action, old: tuple[str, str], now_s: float) -> None:
        node_id, name = old
        tell = self._edges.tell
        match action:
            case Ask():
                log.info("one more %s is asked for: %s", action.pool, action.why)
                tell(
                    ReplacementAsked(
                        at_s=now_s,
                        node_id=node_id,
                        name=name,
                        node_type=action.pool,
                        until_s=action.until_s,
                        spot_only=action.spot_only,
                        why=action.why,
                    )
                )
            case AllowOnDemand():
                self._memory.spot_only(now_s)
                log.info("%s: %s", action.pool, action.why)
            case Hurry():
                until_s = action.until_s
                self._memory.add(OnDemandFirst(at_s=now_s, until_s=until_s, why=action.why))
                log.info("%s", action.why)
                tell(DeadlineNear(at_s=now_s, until_s=until_s, why=action.why))
            case Withdraw():
                self._memory.spot_only(now_s)
                log.info("%s: no more is asked for: %s", action.pool, action.why)
                if action.in_vain:
                    tell(
                        ReplacementGivenUp(
                            at_s=now_s,
                            node_id=node_id,
                            name=name,
                            node_type=action.pool,
                            why=action.why,
                        )
                    )
            case Leave():
                self._leave(action, now_s)
            case End():
                self._end(action, now_s)
            case Replaced():
                log.info("%s was replaced in %.0f s", action.name, action.seconds)
                tell(
                    NodeReplaced(
                        at_s=now_s,
                        node_id=action.node_id,
                        name=action.name,
                        node_type=action.pool,
                        seconds=action.seconds,
                    )
                )
            case HoldWorkers():
                log.info("%d workers are asked for: %s", action.workers, action.why)
                tell(
                    WorkersHeld(
                        at_s=now_s,
                        workers=action.workers,
                        until_s=action.until_s,
                        why=action.why,
                    )
                )

    def _leave(self, action: Leave, now_s: float) -> None:
        self._told_to_leave.add(action.node_id)
        try:
            self._edges.drain(action.node_id, action.deadline_s, action.why)
        except SpotrayError as exc:
            refused = DrainRefused(at_s=now_s, node_id=action.node_id, why=str(exc))
            self._say_once(action.node_id, f"{action.name} not drained: {exc}", refused)
            return
        log.info("%s is told to leave: %s", action.name, action.why)
        self._edges.tell(
            Drained(
                at_s=now_s,
                node_id=action.node_id,
                deadline_s=action.deadline_s,
                why=action.why,
            )
        )

    def _end(self, action: End, now_s: float) -> None:
        failed = ""
        try:
            self._edges.cloud.end(action.name)
        except Exception as exc:  # whatever the cloud's SDK raises: it is told, and time goes on
            failed = f"{type(exc).__name__}: {exc}"
            log.warning("%s was not ended: %s", action.name, failed)
        else:
            log.info("%s is ended: %s", action.name, action.why)
        ended = InstanceEnded(at_s=now_s, name=action.name, why=action.why, failed=failed)
        self._edges.tell(ended)

    def _go_down(self, now_s: float) -> None:
        """End all workers, and the head if asked."""
        assert self._idle is not None
        self._edges.request.keep([])
        why, head = "nobody uses the cluster", self._down_with_head
        names = self._edges.cloud.end_workers()
        log.info("%d workers are ended%s: %s", len(names), ", and the head" if head else "", why)
        if names or head:
            self._edges.tell(ClusterWentDown(at_s=now_s, names=names, head=head, why=why))
        if head:
            self._edges.cloud.end_head()
        self._idle.is_done()

    def _say_once(self, matter: str, words: str, event: Event) -> None:
        if self._said.get(matter) != words:
            self._said[matter] = words
            log.warning("%s", words)
            self._edges.tell(event)
