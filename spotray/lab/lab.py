"""The laptop lab: a real Ray cluster of several nodes on this machine, in a spot market
that can be told what to do.

Each node is a real raylet with its own agent, address, folder and part of shared
memory, below a supervisor of its own (`spotray.lab.node`). A node that is lost loses
all of that at once. What the lab does is written to the cluster's journal as it
happened. Linux only.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from spotray.environment import environment
from spotray.errors import ConfigError, LabError
from spotray.events import CapacityChanged, Event, PriceChanged
from spotray.lab import raystart
from spotray.lab.agenda import Agenda
from spotray.lab.fleet import Fleet, FleetConfig, LabNode, Machine
from spotray.lab.scenario import Scenario
from spotray.lab.script import Play
from spotray.ledger.journal import JournalWriter
from spotray.market.trace import Trace
from spotray.storage import Store

log = logging.getLogger(__name__)

_START_TIMEOUT_S = 90.0
_PROGRESS = "progress-*"  # files of training workers; 8 bytes: the last step done


class Lab:
    """One on-demand head and some spot workers, from ``with`` to the block's end.

    The lab keeps as many spot workers as it was asked for: a replacement starts
    ``provisioning_s`` after a loss or a notice, while the market has room. All that
    the lab started ends with it, also if this process is killed.

    Every method that names a node raises LabError if there is none of that name, or
    if it is gone; every one may be called from any thread.
    """

    def __init__(
        self,
        workers: int | None = None,
        *,
        cpus_per_worker: int | None = None,
        scenario: Scenario | None = None,
        journal: str | os.PathLike[str] | None = None,
        name: str | None = None,
        agent_poll_s: float = 1.0,
        object_store_mib: int = 80,
        head_cpus: int = 0,
        port: int | None = None,
        quick_health_check: bool = True,
    ) -> None:
        """Nothing is started yet.

        Args:
            workers: spot workers; default: the scenario's, 4.
            cpus_per_worker: CPUs that each offers to Ray; default: the scenario's, 1.
            scenario: market, capacity and script; default: room for all, no script.
            journal: folder or URL for the facts about the nodes; None: not written.
            name: short name for folders and logs; default: random.
            agent_poll_s: how often each agent asks for notices, seconds.
            object_store_mib: of each node, MiB of shared memory.
            head_cpus: CPUs that the head offers; Ray Train's controller needs none.
            port: of the head; default: any that is free.
            quick_health_check: let Ray take a lost node for lost within two seconds;
                False: Ray's own settings, with which that takes 15.

        Raises:
            ConfigError: a value is out of range.
            TraceError: the scenario's trace is damaged.
        """
        self._scenario = scenario or Scenario()
        self._wanted = self._scenario.workers if workers is None else workers
        cpus = self._scenario.cpus_per_worker if cpus_per_worker is None else cpus_per_worker
        if self._wanted < 0 or cpus < 1 or head_cpus < 0 or agent_poll_s <= 0:
            raise ConfigError(
                f"a lab of {self._wanted} workers with {cpus} CPUs, {head_cpus} CPUs on the "
                f"head and agent_poll_s={agent_poll_s}: give at least 0, 1 and 0, and above 0"
            )
        self.name = name or secrets.token_hex(3)
        if not re.fullmatch(r"[a-z0-9-]{1,12}", self.name):
            raise ConfigError(f"lab name {self.name!r}: use up to 12 of a-z, 0-9 and '-'")
        self._room_trace = self._scenario.capacity.load(self._wanted)
        self._price_trace = self._scenario.market.load_prices()
        self._capacity: int | None = None  # room for all
        if self._room_trace is not None:
            self._capacity = self._room_trace.capacity_at(0)
        self._store = None if journal is None else Store.at(os.fspath(journal))
        self._config = FleetConfig(
            name=self.name,
            market=self._scenario.market,
            cpus_per_worker=cpus,
            head_cpus=head_cpus,
            object_store_mib=object_store_mib,
            agent_poll_s=agent_poll_s,
            journal_url=self._store.url if self._store else None,
            port=port or 0,
            quick_health_check=quick_health_check,
        )
        self._fleet = Fleet(self._config, tell=self._tell, on_loss=self._fill)
        self._pending = 0  # replacements whose machine has not started yet
        self._is_started = self._is_closed = False
        self._plays: list[Play] = []
        self._is_connected = False
        self._variables = contextlib.ExitStack()  # of this process, while it is
        self._journal: JournalWriter | None = None
        self._agenda = Agenda()

    # -- life ------------------------------------------------------------------

    def __enter__(self) -> Lab:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the head, then all workers that the market has room for, and wait for them.

        Raises:
            LabError: too little shared memory, the port or the name is in use, or Ray
                did not start; nothing is left behind then.
        """
        if self._is_started:
            raise LabError("this lab was started before: make a new one")
        raystart.check_shm(
            nodes=self._wanted + 1,
            object_store_mib=self._config.object_store_mib,
            free_bytes=raystart.free_shm_bytes(),
        )
        if self._config.port:
            raystart.check_port(self._config.port)
        self._fleet.open()
        self._is_started = True
        try:
            self._start()
        except BaseException:  # Ctrl-C, too
            self.close()
            raise

    def _start(self) -> None:
        begin_s = time.monotonic()
        if self._store is not None:
            self._journal = JournalWriter(self._store, writer=f"lab-{self.name}")
        self._agenda.start()
        fleet = self._fleet
        with fleet.changed:
            fleet.start_head()
        fleet.wait(lambda: bool(fleet.address), "the head is up", timeout_s=_START_TIMEOUT_S)
        head_s = time.monotonic() - begin_s
        with fleet.changed:
            self._tell_capacity()
            count = self._room(self._wanted)
            for _ in range(count):
                fleet.start_worker(spot=True)
        self.wait_for_workers(count, timeout_s=_START_TIMEOUT_S)
        if self._room_trace is not None:
            self._follow(self._room_trace, lambda nodes: self.set_capacity(int(nodes)))
        self._follow(self._price_trace, self.set_spot_price)
        log.info(
            "lab %s: %d workers at %s after %.1f s (head %.1f s)",
            self.name,
            count,
            fleet.address,
            time.monotonic() - begin_s,
            head_s,
        )

    def close(self) -> None:
        """End all nodes and remove what they left. A second call does nothing.

        Raises:
            LabError: a node did not end.
            JournalError: the journal did not take the last facts.
        """
        if not self._is_started or self._is_closed:
            return
        for play in self._plays:
            play.stop()
        self._fleet.stop_waiting()
        self._agenda.close()
        self._disconnect()
        try:
            self._fleet.close()
        finally:
            if self._journal is not None:
                self._journal.close()
        self._is_closed = True  # only now: a close that Ctrl-C cut short may be done again

    # -- use -------------------------------------------------------------------

    @property
    def address(self) -> str:
        """The head's HOST:PORT."""
        self._fleet.check_open()
        return self._fleet.address

    def environment(self) -> dict[str, str]:
        """What a driver in another process needs on top of its environment."""
        return raystart.driver_environment(self.address, self._config.journal_url)

    def connect(self, **options: Any) -> None:
        """``ray.init`` in this process; ``options`` go to it. `close` takes it back.

        Raises:
            LabError: the process is connected to Ray already.
        """
        import ray  # late: it takes a second, and a driver elsewhere does without

        variables = self.environment()
        if ray.is_initialized():
            raise LabError("this process is connected to a Ray cluster: ray.shutdown() first")
        self._is_connected = True
        self._variables.enter_context(environment(**variables))
        raystart.let_ray_reread_access()
        ray.init(address=self.address, **{"log_to_driver": False} | options)

    def _disconnect(self) -> None:
        if not self._is_connected:
            return
        if ray := sys.modules.get("ray"):
            ray.shutdown()
        self._variables.close()
        raystart.let_ray_reread_access()
        self._is_connected = False

    def nodes(self) -> tuple[LabNode, ...]:
        """The nodes whose machines are there, the head first."""
        return self._fleet.snapshot()

    def wait_for_workers(self, count: int, *, timeout_s: float = 60.0) -> None:
        """Return when ``count`` workers or more are ready and not under notice.

        Raises:
            LabError: they are not after ``timeout_s`` seconds, or Ray does not start.
        """
        self._fleet.wait(
            lambda: sum(m.state == "ready" and m.stays for m in self._fleet.workers()) >= count,
            f"{count} workers are ready",
            timeout_s=timeout_s,
        )

    def step(self) -> int:
        """The furthest optimizer step that training has written on a living node; 0 if none."""
        folders = [node.shm_dir for node in self.nodes()]
        return max((_read_step(file) for d in folders for file in d.glob(_PROGRESS)), default=0)

    def add_node(self, *, spot: bool = True) -> str:
        """Start one more worker and want it from now on; its name. Does not wait.

        An on-demand worker is outside the market: no capacity counts it, and no
        replacement comes for it.

        Raises:
            LabError: the market has no room.
        """
        with self._fleet.changed:
            self._fleet.check_open()
            if not spot:
                return self._fleet.start_worker(spot=False)
            if not self._room(1):
                raise LabError(
                    f"the market holds {self._capacity} spot nodes and has no room for one more: "
                    "raise it with set_capacity"
                )
            self._wanted += 1
            return self._fleet.start_worker(spot=True)

    # -- faults ----------------------------------------------------------------

    def preempt(self, name: str, *, notice_s: float | None = None) -> float:
        """Announce the loss of a node, and take it ``notice_s`` seconds later.

        Returns at once; the deadline, Unix seconds. Default: the scenario's notice. A
        node that is under notice already keeps the earlier deadline.
        """
        with self._fleet.changed:
            return self._preempt(self._fleet.living(name), notice_s)

    def kill(self, name: str) -> None:
        """Take a node without a word; returns when it is gone."""
        self._fleet.take_all([name], fault="kill")

    def kill_all(self) -> None:
        """Take all spot nodes in one instant, without a word; returns when they are gone."""
        with self._fleet.changed:
            names = [node.name for node in self._fleet.workers() if node.spot and node.is_there]
        self._fleet.take_all(names, fault="kill")

    def freeze(self, name: str) -> None:
        """Silence a node: its processes stop, its sockets stay open. Returns when it did.

        The machine stays there and is paid until it is killed or thawed.
        """
        with self._fleet.changed:
            node = self._fleet.living(name)
            node.tell("freeze")
        self._fleet.wait(lambda: node.state in ("frozen", "gone"), f"{name} is frozen")

    def thaw(self, name: str) -> None:
        """Let a frozen node go on. If Ray gave it up meanwhile, its Ray is started anew."""
        with self._fleet.changed:
            node = self._fleet.living(name)
            if node.state != "frozen":
                raise LabError(f"node {name!r} is {node.state}: only a frozen one can be thawed")
            node.tell("thaw")
        self._fleet.wait(lambda: node.state != "frozen", f"{name} is thawed")

    def cancel_notice(self, name: str) -> None:
        """Take the notice back: the node stays.

        Ray cannot be told so: the node takes no new work, and its raylet leaves when
        it is idle. Then a fresh one starts on the same machine with a new node id,
        and the journal has another `NodeUp` of the same ``name``.
        """
        with self._fleet.changed:
            node = self._fleet.living(name)
            if node.deadline_s is None:
                raise LabError(f"node {name!r} has no notice that could be taken back")
            node.deadline_s = None
            self._fleet.metadata.cancel(name)
            self._fleet.tell_fault("cancel", node)
            if node.state == "drained":
                self._fleet.revive(node)

    def rebalance(self, name: str) -> None:
        """Let the cloud hint that a node's risk is higher."""
        with self._fleet.changed:
            node = self._fleet.living(name)
            self._fleet.metadata.rebalance(name, at_s=time.time())
            self._fleet.tell_fault("rebalance", node)

    def set_capacity(self, nodes: int, *, notice_s: float | None = None) -> None:
        """How many spot nodes the market holds from now on.

        The youngest beyond it are preempted with ``notice_s`` seconds of notice (default:
        the scenario's; 0: without a word). Where there is more room, nodes that the lab
        wants start after the provisioning delay.
        """
        if nodes < 0:
            raise ConfigError(f"capacity is {nodes}: give 0 or more")
        with self._fleet.changed:
            self._fleet.check_open()
            self._capacity = nodes
            self._tell_capacity()
            staying = [n for n in self._fleet.workers() if n.spot and n.stays]
            for node in staying[nodes:]:
                self._preempt(node, notice_s)
            self._fill()

    def set_spot_price(self, usd_per_hour: float) -> None:
        """The spot price from now on, for running and for new nodes."""
        if not 0 <= usd_per_hour < float("inf"):
            raise ConfigError(f"usd_per_hour is {usd_per_hour}: give a number of at least 0")
        with self._fleet.changed:
            self._fleet.check_open()
            self._fleet.spot_usd_per_hour = usd_per_hour
            market = str(self._scenario.market.spot)
            self._tell(PriceChanged(at_s=time.time(), market=market, usd_per_hour=usd_per_hour))

    def play(self, scenario: Scenario | None = None, step: Callable[[], int] | None = None) -> Play:
        """Do what a script says, in a thread. Default: the lab's own scenario and `step`."""
        with self._fleet.changed:
            self._fleet.check_open()
            play = Play(self, (scenario or self._scenario).events, step or self.step)
            self._plays.append(play)
        return play

    # -- the market ------------------------------------------------------------

    def _room(self, count: int) -> int:
        """How many of ``count`` more spot nodes the market holds."""
        if self._capacity is None:
            return count
        there = sum(n.spot and n.is_there for n in self._fleet.workers())
        return max(0, min(count, self._capacity - there - self._pending))

    def _fill(self) -> None:
        """Order what is missing of the wanted spot nodes."""
        if not self._fleet.is_open:
            return
        staying = sum(n.spot and n.stays for n in self._fleet.workers())
        for _ in range(self._room(max(0, self._wanted - staying - self._pending))):
            self._pending += 1
            self._agenda.after(self._scenario.provisioning_s, self._deliver)

    def _deliver(self) -> None:
        with self._fleet.changed:
            self._pending -= 1
            staying = sum(n.spot and n.stays for n in self._fleet.workers())
            if self._fleet.is_open and staying < self._wanted and self._room(1):
                self._fleet.start_worker(spot=True)

    def _follow(self, trace: Trace, change: Callable[[float], None]) -> None:
        """Make each change of a trace at its time; its value at 0 holds already."""
        for market_s, value in trace.changes():
            if market_s > 0:
                delay_s = market_s / self._scenario.capacity.time_scale
                self._agenda.after(delay_s, functools.partial(change, value))

    def _preempt(self, node: Machine, notice_s: float | None) -> float:
        notice_s = self._scenario.notice_s if notice_s is None else notice_s
        if notice_s < 0:
            raise ConfigError(f"notice_s is {notice_s}: give 0 or more seconds")
        if not node.spot:
            raise LabError(f"node {node.name!r} is on demand: the market takes spot nodes only")
        now_s = time.time()
        if notice_s == 0:
            self._fleet.take(node, cause="preemption", fault="kill")
            return now_s
        deadline_s = now_s + notice_s
        if node.deadline_s is not None and node.deadline_s <= deadline_s:
            return node.deadline_s
        node.deadline_s = deadline_s
        self._fleet.metadata.notice(node.name, at_s=deadline_s)
        self._fleet.tell_fault("notice", node, f"{notice_s:g} s")
        self._agenda.after(notice_s, lambda: self._meet_deadline(node, deadline_s))
        self._fill()
        self._fleet.changed.notify_all()
        return deadline_s

    def _meet_deadline(self, node: Machine, deadline_s: float) -> None:
        with self._fleet.changed:
            if node.is_there and node.deadline_s == deadline_s:  # neither cancelled nor earlier
                self._fleet.take(node, cause="preemption")

    def _tell_capacity(self) -> None:
        if self._capacity is not None:
            market = str(self._scenario.market.spot)
            now_s = time.time()
            self._tell(CapacityChanged(at_s=now_s, market=market, capacity=self._capacity))

    def _tell(self, event: Event) -> None:
        if self._journal is not None:
            self._journal.append(event)


def _read_step(file: Path) -> int:
    try:
        with open(file, "rb") as stream:
            return int.from_bytes(stream.read(8), "little", signed=True)
    except FileNotFoundError:  # the node went while we looked
        return 0
