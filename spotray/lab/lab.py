"""The laptop lab: a real Ray cluster of several nodes on this machine, in a spot market
that can be told what to do.

Each node is a real raylet with its own agent, address, folder and part of shared
memory, below a supervisor of its own (`spotray.lab.node`). A node that is lost loses
all of that at once. What the lab does is written to the cluster's journal as it
happened. Linux only.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from spotray.errors import ConfigError, LabError
from spotray.events import (
    CapacityChanged,
    Event,
    FaultInjected,
    NodeDown,
    NodeReady,
    NodeUp,
    PriceChanged,
)
from spotray.lab import raystart
from spotray.lab.agenda import Agenda
from spotray.lab.metadata import MetadataServer, NodeMetadata
from spotray.lab.node import NodeOrder
from spotray.lab.scenario import Scenario
from spotray.lab.script import Play
from spotray.lab.supervised import Report, Supervised
from spotray.ledger.journal import JournalWriter
from spotray.market.offer import Market
from spotray.market.trace import Trace
from spotray.storage import Store

log = logging.getLogger(__name__)

_HEAD = "head"
_DEED_TIMEOUT_S = 20.0  # a supervisor does what it is told within that
_START_TIMEOUT_S = 90.0
_MOST_FAILURES = 3  # starts that fail in a row before the lab gives up
_PROGRESS = "progress-*"  # files of training workers; 8 bytes: the last step done


@dataclass(frozen=True, kw_only=True)
class LabNode:
    """A node of the lab as it is at one time."""

    name: str  # "head", "spot-1", "on-demand-1"; never used twice in a lab
    node_id: str  # Ray's, hex; another one after Ray was started anew on the same machine
    spot: bool
    state: str  # starting, ready, frozen, drained (Ray has left, the machine is there), gone
    ip: str
    started_at_s: float  # Unix seconds; the machine's billing starts here
    deadline_s: float | None  # Unix seconds; set while a notice is in force
    shm_dir: Path
    node_dir: Path


class _Node:
    """What the lab knows of one node. Only under the lab's lock."""

    def __init__(self, name: str, index: int, market: Market, root: Path, shm: Path) -> None:
        self.name, self.index, self.market = name, index, market
        self.node_dir, self.shm_dir = root / name, shm / name
        self.node_id = secrets.token_hex(28)
        self.state = "starting"
        self.started_at_s = time.time()
        self.deadline_s: float | None = None
        self.fate = ""  # why the lab takes it: preemption, failure, shutdown
        self.why_not = ""  # Ray's words where it did not start
        self.supervised: Supervised | None = None

    @property
    def is_there(self) -> bool:
        return self.state != "gone" and not self.fate

    @property
    def stays(self) -> bool:
        return self.is_there and self.deadline_s is None

    def snapshot(self) -> LabNode:
        return LabNode(
            name=self.name,
            node_id=self.node_id,
            spot=self.market.spot,
            state=self.state,
            ip=raystart.node_ip(self.index),
            started_at_s=self.started_at_s,
            deadline_s=self.deadline_s,
            shm_dir=self.shm_dir,
            node_dir=self.node_dir,
        )

    def tell(self, do: str, **more: str) -> None:
        if self.supervised is not None:
            self.supervised.tell(do, **more)


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

        Raises:
            ConfigError: a value is out of range.
            TraceError: the scenario's trace is damaged.
        """
        self._scenario = scenario or Scenario()
        self._wanted = self._scenario.workers if workers is None else workers
        self._cpus = self._scenario.cpus_per_worker if cpus_per_worker is None else cpus_per_worker
        if self._wanted < 0 or self._cpus < 1 or head_cpus < 0 or agent_poll_s <= 0:
            raise ConfigError(
                f"a lab of {self._wanted} workers with {self._cpus} CPUs, {head_cpus} CPUs on the "
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
        self._spot_price = self._price_trace.value_at(0)
        self._store = None if journal is None else Store.at(os.fspath(journal))
        self._poll_s, self._object_store_mib = agent_poll_s, object_store_mib
        self._head_cpus, self._port = head_cpus, port
        self._root = raystart.TMP / f"spotray-lab-{self.name}"
        self._shm = raystart.SHM / f"spotray-lab-{self.name}"
        self._changed = threading.Condition(threading.RLock())
        self._nodes: dict[str, _Node] = {}
        self._indices = 0  # nodes ever
        self._pending = 0  # replacements whose machine has not started yet
        self._failures = 0  # starts that failed, in a row
        self._broken = ""  # why the lab cannot go on
        self._address = ""
        self._phase = "new"  # then running, closing, closed
        self._plays: list[Play] = []
        self._saved_environment: dict[str, str | None] = {}
        self._journal: JournalWriter | None = None
        self._metadata: MetadataServer | None = None
        self._agenda: Agenda | None = None

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
        if self._phase != "new":
            raise LabError("this lab was started before: make a new one")
        raystart.check_shm(
            nodes=self._wanted + 1,
            object_store_mib=self._object_store_mib,
            free_bytes=raystart.free_shm_bytes(),
        )
        if self._port is not None:
            raystart.check_port(self._port)
        self._make_folders()
        self._phase = "running"
        try:
            self._start()
        except BaseException:  # Ctrl-C, too
            self.close()
            raise

    def _make_folders(self) -> None:
        for folder in (self._root, self._shm):
            try:
                folder.mkdir(mode=0o700)
            except FileExistsError as exc:
                if folder == self._shm:
                    self._root.rmdir()
                raise LabError(
                    f"{folder} exists: another lab is called {self.name!r}; give another name, "
                    "or remove the folder if no lab runs"
                ) from exc

    def _start(self) -> None:
        begin_s = time.monotonic()
        if self._store is not None:
            self._journal = JournalWriter(self._store, writer=f"lab-{self.name}")
        self._metadata = MetadataServer()
        self._agenda = Agenda()
        with self._changed:
            self._start_head()
        self._wait(lambda: bool(self._address), _START_TIMEOUT_S, "the head is up")
        head_s = time.monotonic() - begin_s
        with self._changed:
            self._tell_capacity()
            for _ in range(self._room(self._wanted)):
                self._start_machine(self._scenario.market.spot)
            target = len(self._nodes) - 1
        self.wait_for_workers(target, timeout_s=_START_TIMEOUT_S)
        if self._room_trace is not None:
            self._follow(self._room_trace, lambda nodes: self.set_capacity(int(nodes)))
        self._follow(self._price_trace, self.set_spot_price)
        log.info(
            "lab %s: %d workers at %s after %.1f s (head %.1f s)",
            self.name,
            target,
            self._address,
            time.monotonic() - begin_s,
            head_s,
        )

    def close(self) -> None:
        """End all nodes and remove what they left. A second call does nothing.

        Raises:
            LabError: a node did not end, or the journal did not take the last facts.
        """
        for play in self._plays:
            play.stop()
        with self._changed:
            if self._phase != "running":
                self._phase = "closed"
                return
            self._phase = "closing"
            self._changed.notify_all()
        if self._agenda is not None:
            self._agenda.close()
        self._disconnect()
        with self._changed:
            # Workers first, for a head that is gone makes their raylets talk.
            nodes = [node for node in self._nodes.values() if node.state != "gone"]
            for node in nodes:
                node.fate = node.fate or "shutdown"
                node.tell("kill")
        errors = []
        for node in nodes:
            try:
                if node.supervised is not None:
                    node.supervised.join(_DEED_TIMEOUT_S)
            except LabError as exc:
                errors.append(exc)
        if self._metadata is not None:
            self._metadata.close()
        for folder in (self._root, self._shm):
            shutil.rmtree(folder, ignore_errors=True)
        self._phase = "closed"
        if self._journal is not None:
            self._journal.close()
        if errors:
            raise errors[0]

    # -- use -------------------------------------------------------------------

    @property
    def address(self) -> str:
        """The head's HOST:PORT."""
        self._check_running()
        return self._address

    def environment(self) -> dict[str, str]:
        """What a driver in another process needs on top of its environment."""
        return raystart.driver_environment(self.address, self._journal_url)

    def connect(self, **options: Any) -> None:
        """``ray.init`` in this process; ``options`` go to it. `close` takes it back.

        Raises:
            LabError: the process is connected to Ray already.
        """
        import ray  # late: it takes a second, and a driver elsewhere does without

        environment = self.environment()
        if ray.is_initialized():
            raise LabError("this process is connected to a Ray cluster: ray.shutdown() first")
        for key, value in environment.items():
            self._saved_environment.setdefault(key, os.environ.get(key))
            os.environ[key] = value
        raystart.let_ray_reread_access()
        ray.init(address=self.address, **{"log_to_driver": False} | options)

    def _disconnect(self) -> None:
        if not self._saved_environment:
            return
        if ray := sys.modules.get("ray"):
            ray.shutdown()
        for key, value in self._saved_environment.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
        self._saved_environment.clear()
        raystart.let_ray_reread_access()

    def nodes(self) -> tuple[LabNode, ...]:
        """The nodes whose machines are there, the head first."""
        with self._changed:
            return tuple(n.snapshot() for n in self._nodes.values() if n.state != "gone")

    def wait_for_workers(self, count: int, *, timeout_s: float = 60.0) -> None:
        """Return when ``count`` workers or more are ready and not under notice.

        Raises:
            LabError: they are not after ``timeout_s`` seconds, or Ray does not start.
        """
        self._wait(
            lambda: sum(n.state == "ready" and n.stays for n in self._workers()) >= count,
            timeout_s,
            f"{count} workers are ready",
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
        with self._changed:
            self._check_running()
            if not spot:
                return self._start_machine(self._scenario.market.spot.on_demand())
            if not self._room(1):
                raise LabError(
                    f"the market holds {self._capacity} spot nodes and has no room for one more: "
                    "raise it with set_capacity"
                )
            self._wanted += 1
            return self._start_machine(self._scenario.market.spot)

    # -- faults ----------------------------------------------------------------

    def preempt(self, name: str, *, notice_s: float | None = None) -> float:
        """Announce the loss of a node, and take it ``notice_s`` seconds later.

        Returns at once; the deadline, Unix seconds. Default: the scenario's notice. A
        node that is under notice already keeps the earlier deadline.
        """
        with self._changed:
            return self._preempt(self._living(name), notice_s)

    def kill(self, name: str) -> None:
        """Take a node without a word; returns when it is gone."""
        self._take([name], fault="kill")

    def kill_all(self) -> None:
        """Take all spot nodes in one instant, without a word; returns when they are gone."""
        with self._changed:
            names = [node.name for node in self._workers() if node.market.spot and node.is_there]
        self._take(names, fault="kill")

    def freeze(self, name: str) -> None:
        """Silence a node: its processes stop, its sockets stay open. Returns when it did.

        The machine stays there and is paid until it is killed or thawed.
        """
        with self._changed:
            node = self._living(name)
            node.tell("freeze")
        self._wait(lambda: node.state in ("frozen", "gone"), _DEED_TIMEOUT_S, f"{name} is frozen")

    def thaw(self, name: str) -> None:
        """Let a frozen node go on. If Ray gave it up meanwhile, its Ray is started anew."""
        with self._changed:
            node = self._living(name)
            if node.state != "frozen":
                raise LabError(f"node {name!r} is {node.state}: only a frozen one can be thawed")
            node.tell("thaw")
        self._wait(lambda: node.state != "frozen", _DEED_TIMEOUT_S, f"{name} is thawed")

    def cancel_notice(self, name: str) -> None:
        """Take the notice back: the node stays.

        Ray cannot be told so: the node takes no new work, and its raylet leaves when
        it is idle. Then a fresh one starts on the same machine with a new node id,
        and the journal has another `NodeUp` of the same ``name``.
        """
        with self._changed:
            node = self._living(name)
            if node.deadline_s is None:
                raise LabError(f"node {name!r} has no notice that could be taken back")
            node.deadline_s = None
            self._service.cancel(name)
            self._fault("cancel", node)
            if node.state == "drained":
                self._revive(node)

    def rebalance(self, name: str) -> None:
        """Let the cloud hint that a node's risk is higher."""
        with self._changed:
            node = self._living(name)
            self._service.rebalance(name, at_s=time.time())
            self._fault("rebalance", node)

    def set_capacity(self, nodes: int, *, notice_s: float | None = None) -> None:
        """How many spot nodes the market holds from now on.

        The youngest beyond it are preempted with ``notice_s`` seconds of notice (default:
        the scenario's; 0: without a word). Where there is more room, nodes that the lab
        wants start after the provisioning delay.
        """
        if nodes < 0:
            raise ConfigError(f"capacity is {nodes}: give 0 or more")
        with self._changed:
            self._check_running()
            self._capacity = nodes
            self._tell_capacity()
            staying = [n for n in self._workers() if n.market.spot and n.stays]
            for node in staying[nodes:]:
                self._preempt(node, notice_s)
            self._fill()

    def set_spot_price(self, usd_per_hour: float) -> None:
        """The spot price from now on, for running and for new nodes."""
        if not 0 <= usd_per_hour < float("inf"):
            raise ConfigError(f"usd_per_hour is {usd_per_hour}: give a number of at least 0")
        with self._changed:
            self._check_running()
            self._spot_price = usd_per_hour
            market = str(self._scenario.market.spot)
            self._tell(PriceChanged(at_s=time.time(), market=market, usd_per_hour=usd_per_hour))

    def play(self, scenario: Scenario | None = None, step: Callable[[], int] | None = None) -> Play:
        """Do what a script says, in a thread. Default: the lab's own scenario and `step`."""
        with self._changed:
            self._check_running()
            play = Play(self, (scenario or self._scenario).events, step or self.step)
            self._plays.append(play)
        return play

    # -- the market ------------------------------------------------------------

    def _room(self, count: int) -> int:
        """How many of ``count`` more spot nodes the market holds."""
        if self._capacity is None:
            return count
        there = sum(n.market.spot and n.is_there for n in self._workers())
        return max(0, min(count, self._capacity - there - self._pending))

    def _fill(self) -> None:
        """Order what is missing of the wanted spot nodes."""
        if self._phase != "running" or self._agenda is None:
            return
        staying = sum(n.market.spot and n.stays for n in self._workers())
        for _ in range(self._room(max(0, self._wanted - staying - self._pending))):
            self._pending += 1
            self._agenda.after(self._scenario.provisioning_s, self._deliver)

    def _deliver(self) -> None:
        with self._changed:
            self._pending -= 1
            staying = sum(n.market.spot and n.stays for n in self._workers())
            if self._phase == "running" and staying < self._wanted and self._room(1):
                self._start_machine(self._scenario.market.spot)

    def _follow(self, trace: Trace, change: Callable[[float], None]) -> None:
        """Make each change of a trace at its time; its value at 0 holds already."""
        assert self._agenda is not None
        for market_s, value in trace.changes():
            if market_s > 0:
                delay_s = market_s / self._scenario.capacity.time_scale
                self._agenda.after(delay_s, functools.partial(change, value))

    # -- nodes -----------------------------------------------------------------

    def _workers(self) -> list[_Node]:
        return [node for node in self._nodes.values() if node.name != _HEAD]

    def _start_head(self) -> None:
        market = self._scenario.market.head
        node = _Node(_HEAD, 0, market, self._root, self._shm)
        command = raystart.head_command(
            cpus=self._head_cpus,
            object_store_mib=self._object_store_mib,
            port=self._port or 0,
            market=market,
        )
        self._boot(node, command, ())

    def _start_machine(self, market: Market) -> str:
        self._indices += 1
        kind = "spot" if market.spot else "on-demand"
        node = _Node(f"{kind}-{self._indices}", self._indices, market, self._root, self._shm)
        command = raystart.worker_command(
            node.index,
            head=self._address,
            cpus=self._cpus,
            object_store_mib=self._object_store_mib,
            market=market,
        )
        self._service.add(
            node.name,
            NodeMetadata(
                instance_id=f"i-{node.node_id[:17]}",
                instance_type=market.instance_type,
                zone=market.zone,
                region=market.region,
                life_cycle=kind,
            ),
        )
        agent = raystart.agent_command(
            endpoint=self._service.url_for(node.name),
            head=self._address,
            journal=self._journal_url,
            poll_s=self._poll_s,
        )
        self._boot(node, command, agent)
        return node.name

    def _boot(self, node: _Node, command: tuple[str, ...], agent: tuple[str, ...]) -> None:
        order = NodeOrder(
            name=node.name,
            node_id=node.node_id,
            ray_command=command,
            agent_command=agent,
            environment=raystart.node_environment(os.environ),
            node_dir=str(node.node_dir),
            shm_dir=str(node.shm_dir),
            lab_pid=os.getpid(),
        )
        self._nodes[node.name] = node
        node.supervised = Supervised(order, lambda report: self._hear(node, report))
        self._tell_up(node)

    def _tell_up(self, node: _Node) -> None:
        prices = self._scenario.market
        is_head = node.name == _HEAD
        on_demand = prices.head_usd_per_hour if is_head else prices.on_demand_usd_per_hour
        self._tell(
            NodeUp(
                at_s=time.time(),
                node_id=node.node_id,
                name=node.name,
                node_type=raystart.node_group(node.market, is_head=is_head),
                role="head" if is_head else "worker",
                market=str(node.market),
                spot=node.market.spot,
                usd_per_hour=self._spot_price if node.market.spot else on_demand,
                on_demand_usd_per_hour=on_demand,
            )
        )

    def _revive(self, node: _Node) -> None:
        """Start a fresh Ray on the same machine, under a new node id."""
        node.node_id, node.state = secrets.token_hex(28), "starting"
        node.tell("revive", node_id=node.node_id)
        self._tell_up(node)

    def _preempt(self, node: _Node, notice_s: float | None) -> float:
        notice_s = self._scenario.notice_s if notice_s is None else notice_s
        if notice_s < 0:
            raise ConfigError(f"notice_s is {notice_s}: give 0 or more seconds")
        if node.name == _HEAD or not node.market.spot:
            raise LabError(f"node {node.name!r} is on demand: the market takes spot nodes only")
        now_s = time.time()
        if notice_s == 0:
            node.fate = "preemption"
            node.tell("kill")
            self._fault("kill", node)
            return now_s
        deadline_s = now_s + notice_s
        if node.deadline_s is not None and node.deadline_s <= deadline_s:
            return node.deadline_s
        node.deadline_s = deadline_s
        self._service.notice(node.name, at_s=deadline_s)
        self._fault("notice", node, f"{notice_s:g} s")
        assert self._agenda is not None
        self._agenda.after(notice_s, lambda: self._meet_deadline(node, deadline_s))
        self._fill()
        self._changed.notify_all()
        return deadline_s

    def _meet_deadline(self, node: _Node, deadline_s: float) -> None:
        with self._changed:
            if node.is_there and node.deadline_s == deadline_s:  # neither cancelled nor earlier
                node.fate = "preemption"
                node.tell("kill")

    def _take(self, names: Iterable[str], *, fault: str) -> None:
        with self._changed:
            nodes = [self._living(name) for name in names]
            if any(node.name == _HEAD for node in nodes):
                raise LabError("the head cannot be taken: the lab would end with it")
            for node in nodes:
                node.fate = "preemption" if node.market.spot else "failure"
                node.tell("kill")
                self._fault(fault, node)
        self._wait(
            lambda: all(node.state == "gone" for node in nodes), _DEED_TIMEOUT_S, "nodes are gone"
        )

    def _living(self, name: str) -> _Node:
        self._check_running()
        node = self._nodes.get(name)
        if node is None or not node.is_there:
            there = ", ".join(n.name for n in self._nodes.values() if n.is_there)
            why = "no such node" if node is None else "it is gone"
            raise LabError(f"node {name!r}: {why}; there are {there}")
        return node

    # -- what the supervisors say ----------------------------------------------

    def _hear(self, node: _Node, report: Report) -> None:
        with self._changed:
            at_s = report["at_s"] or time.time()
            match report["what"]:
                case "ready" if report["node_id"] == node.node_id:
                    self._hear_ready(node, at_s, report["address"])
                case "failed":
                    self._hear_failed(node, report)
                case "ray_exited" if report["node_id"] == node.node_id:
                    self._hear_ray_exited(node)
                case "agent_exited" if node.is_there:
                    log.warning("agent of %s ended: %s", node.name, _last_line(report))
                case "frozen":
                    node.state = "frozen"
                    self._fault("freeze", node, at_s=at_s)
                case "thawed":
                    node.state = "ready"
                    self._fault("thaw", node, at_s=at_s)
                case "gone":
                    self._hear_gone(node, at_s, report)
            self._changed.notify_all()

    def _hear_ready(self, node: _Node, at_s: float, address: str) -> None:
        if node.state == "starting":
            node.state = "ready"
        self._failures = 0
        if node.name == _HEAD:
            self._address = address
        self._tell(NodeReady(at_s=at_s, node_id=node.node_id))

    def _hear_failed(self, node: _Node, report: Report) -> None:
        node.why_not = f"Ray did not start on {node.name}: {_last_line(report)}"
        if not node.is_there:
            return
        log.warning("%s", node.why_not)
        self._failures += 1
        if node.name == _HEAD or self._failures >= _MOST_FAILURES:
            self._broken = node.why_not
        node.fate = "failure"
        node.tell("kill")

    def _hear_ray_exited(self, node: _Node) -> None:
        if not node.is_there:
            return
        if node.name == _HEAD:
            self._broken = "Ray on the head has ended; see its log where the head ran out of memory"
            log.error("%s", self._broken)
        elif node.deadline_s is not None:
            node.state = "drained"
            log.info("%s is drained: its raylet left before the deadline", node.name)
        else:
            log.info("the raylet of %s ended while its machine is there: a fresh one", node.name)
            self._revive(node)

    def _hear_gone(self, node: _Node, at_s: float, report: Report) -> None:
        node.state = "gone"
        if node.name != _HEAD and self._phase == "running":
            with suppress(LabError):  # it was never added where its start was cut short
                self._service.remove(node.name)
        if report.get("code") is not None:
            log.error(
                "the supervisor of %s ended with code %s: its processes may live on",
                node.name,
                report["code"],
            )
            for folder in (node.shm_dir, node.node_dir):
                shutil.rmtree(folder, ignore_errors=True)
        self._tell(
            NodeDown(
                at_s=at_s,
                node_id=node.node_id,
                cause=node.fate or "failure",
                noticed=node.deadline_s is not None,
            )
        )
        node.fate = node.fate or "failure"
        self._fill()

    # -- small things ----------------------------------------------------------

    @property
    def _service(self) -> MetadataServer:
        assert self._metadata is not None
        return self._metadata

    @property
    def _journal_url(self) -> str | None:
        return None if self._store is None else self._store.url

    def _tell(self, event: Event) -> None:
        if self._journal is not None:
            self._journal.append(event)

    def _fault(self, fault: str, node: _Node, detail: str = "", at_s: float | None = None) -> None:
        log.info("%s %s %s", fault, node.name, detail)
        self._tell(
            FaultInjected(
                at_s=time.time() if at_s is None else at_s,
                fault=fault,
                node_id=node.node_id,
                detail=f"{node.name} {detail}".strip(),
            )
        )

    def _tell_capacity(self) -> None:
        if self._capacity is not None:
            market = str(self._scenario.market.spot)
            now_s = time.time()
            self._tell(CapacityChanged(at_s=now_s, market=market, capacity=self._capacity))

    def _check_running(self) -> None:
        if self._broken:
            raise LabError(self._broken)
        if self._phase != "running" or not self._address:
            raise LabError(f"the lab is {self._phase}: use it inside its with block")

    def _wait(self, true: Callable[[], bool], timeout_s: float, what: str) -> None:
        with self._changed:
            self._changed.wait_for(
                lambda: true() or self._broken or self._phase != "running", timeout_s
            )
            if true():
                return
            if self._broken:
                raise LabError(self._broken)
            states = ", ".join(f"{n.name} {n.state}" for n in self._nodes.values())
            raise LabError(f"not after {timeout_s:g} s: {what}; nodes: {states}")


def _read_step(file: Path) -> int:
    try:
        with open(file, "rb") as stream:
            return int.from_bytes(stream.read(8), "little", signed=True)
    except FileNotFoundError:  # the node went while we looked
        return 0


def _last_line(report: Report) -> str:
    lines = str(report.get("output", "")).strip().splitlines() or ["no output"]
    return f"{lines[-1].strip()} (exit code {report.get('code')})"
