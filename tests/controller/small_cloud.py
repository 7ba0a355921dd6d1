"""A cluster in plain values, which does what it is asked, or does not, as a script says."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from spotray.cluster.control import ControlConfig
from spotray.controller.actions import Action, Ask, End, Leave, Plan, Withdraw
from spotray.controller.decide import decide
from spotray.controller.view import Pool, State, View, Worker
from spotray.market.offer import Market
from spotray.policy.decision import Launch
from spotray.policy.spot_first import SpotFirst
from spotray.policy.view import Fact, Launched, LaunchView, Preempted, Refusal, Refused, SpotOnly

SPOT_A = Market.parse("aws/us-west-2a/g5.xlarge/spot")
SPOT_B = Market.parse("aws/us-west-2b/g5.xlarge/spot")
ON_DEMAND = SPOT_A.on_demand()
GPU = Pool(name="gpu", candidates=(SPOT_A, SPOT_B, ON_DEMAND), max_workers=5)
CONFIG = ControlConfig()
START_S = 1_700_000_000.0


@dataclass
class SmallCloud:
    """Workers, a market and an autoscaler that launches what is asked for, tick by tick.

    Args:
        pool: of all its workers.
        applications: workers that the applications ask for.
        has_spot: whether spot can be had now.
        boots_s: until a launched node joins.
        leaves_after_s: a drained node's, until it is gone; None: it does not leave.
        drains: whether Ray agrees to drain.
    """

    pool: Pool = GPU
    config: ControlConfig = CONFIG
    applications: int = 2
    has_spot: bool = False
    boots_s: float = 30.0
    leaves_after_s: float | None = 3.0
    drains: bool = True
    obeys_end: bool = True
    now_s: float = START_S
    state: State = field(default_factory=State)
    workers: dict[str, Worker] = field(default_factory=dict)
    facts: list[Fact] = field(default_factory=list)
    done: list[tuple[float, Action]] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    lost: tuple[float, ...] = ()
    deadline_s: float = float("inf")
    is_spent: bool = False
    _booting: list[Worker] = field(default_factory=list)
    _going_s: dict[str, float] = field(default_factory=dict)
    _born: int = 0

    def add(self, market: Market, *, age_s: float = 1000.0) -> Worker:
        self._born += 1
        name = f"i-{self._born}"
        worker = Worker(
            node_id=f"n{self._born}",
            name=name,
            node_type=self.pool.name,
            market=market,
            born_s=self.now_s - age_s,
        )
        self.workers[worker.node_id] = worker
        return worker

    def take(self, node_id: str) -> None:
        """The cloud takes a node without a word."""
        worker = self.workers.pop(node_id)
        self.lost += (self.now_s,)
        self.facts.append(Preempted(at_s=self.now_s, market=worker.market, name=worker.name))

    def on(self, market_spot: bool) -> list[Worker]:
        return [w for w in self.workers.values() if w.stays and w.market.spot is market_spot]

    def actions(self, kind: type) -> list[Action]:
        return [action for _, action in self.done if isinstance(action, kind)]

    def tick(self, seconds: float = 1.0) -> Plan:
        """Time goes by; then the controller decides, and the autoscaler looks."""
        self.now_s += seconds
        for worker in [one for one in self._booting if one.born_s <= self.now_s]:
            self._booting.remove(worker)
            self.workers[worker.node_id] = worker
        for node_id in [one for one, at_s in self._going_s.items() if at_s <= self.now_s]:
            del self._going_s[node_id]
            self.workers.pop(node_id, None)
        plan = decide(self.view(), self.state, config=self.config, policy=SpotFirst())
        self.lost = ()
        self.state = plan.state
        self.plans.append(plan)
        for action in plan.actions:
            self.done.append((self.now_s, action))
            self._act(action)
        self._autoscale()
        return plan

    def run(self, seconds: float, *, step_s: float = 1.0) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.tick(step_s)

    def view(self) -> View:
        return View(
            now_s=self.now_s,
            workers=tuple(self.workers.values()),
            pools={self.pool.name: self.pool},
            facts=tuple(self.facts),
            lost=self.lost,
            deadline_s=self.deadline_s,
            is_spent=self.is_spent,
        )

    def _act(self, action: Action) -> None:
        if isinstance(action, Ask) and action.spot_only:
            self.facts.append(SpotOnly(at_s=self.now_s, until_s=action.until_s))
        elif isinstance(action, Withdraw):
            self.facts.append(SpotOnly(at_s=self.now_s, until_s=self.now_s))
        elif isinstance(action, Leave) and self.drains:
            worker = self.workers.get(action.node_id)
            if worker is not None:
                leaving = replace(worker, leaves_by_s=action.deadline_s)
                self.workers[worker.node_id] = leaving
                if self.leaves_after_s is not None:
                    self._going_s[worker.node_id] = self.now_s + self.leaves_after_s
        elif isinstance(action, End) and self.obeys_end:
            self._going_s[action.node_id] = self.now_s + 2.0

    def _autoscale(self) -> None:
        """As many nodes as are asked for, where the policy of launches says."""
        wanted = max(self.applications, self.state.wanted)
        staying = len(self.view().staying()) + len(self._booting)
        room = self.pool.max_workers - len(self.workers) - len(self._booting)
        tried: list[Market] = []
        for _ in range(min(wanted - staying, room)):
            while True:
                view = LaunchView(
                    now_s=self.now_s,
                    wanted=1,
                    candidates=self.pool.candidates,
                    node_type=self.pool.name,
                    facts=tuple(self.facts),
                    tried=tuple(tried),
                )
                decision = SpotFirst().decide(view)
                if not isinstance(decision, Launch):
                    return
                market = decision.attempts[0].market
                tried.append(market)
                if market.spot and not self.has_spot:
                    self.facts.append(
                        Refused(at_s=self.now_s, market=market, kind=Refusal.CAPACITY)
                    )
                    continue
                self._born += 1
                worker = Worker(
                    node_id=f"n{self._born}",
                    name=f"i-{self._born}",
                    node_type=self.pool.name,
                    market=market,
                    born_s=self.now_s + self.boots_s,
                )
                self._booting.append(worker)
                self.facts.append(Launched(at_s=self.now_s, market=market, names=(worker.name,)))
                break
