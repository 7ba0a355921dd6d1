"""The machines of a lab: start, take, freeze and revive them, and write down what happened.

It keeps no policy: how many there should be, and which goes when, is the lab's matter.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from spotray.errors import LabError
from spotray.events import Event, FaultInjected, NodeDown, NodeReady, NodeUp
from spotray.lab import raystart
from spotray.lab.metadata import MetadataServer, NodeMetadata
from spotray.lab.node import NodeOrder
from spotray.lab.scenario import LabMarket
from spotray.lab.supervised import Report, Supervised
from spotray.market.offer import Market

log = logging.getLogger(__name__)

HEAD = "head"
_DEED_TIMEOUT_S = 20.0  # a supervisor does what it is told within that
_MOST_FAILURES = 3  # starts that fail in a row before the lab gives up


@dataclass(frozen=True, kw_only=True)
class FleetConfig:
    """What all machines of a lab have in common."""

    name: str  # of the lab: part of its folders' names
    market: LabMarket
    cpus_per_worker: int
    head_cpus: int
    object_store_mib: int
    agent_poll_s: float
    journal_url: str | None  # for the agents
    port: int  # of the head; 0: any that is free
    quick_health_check: bool  # False: Ray's own, which takes 15 s for a lost node

    @property
    def root(self) -> Path:
        return raystart.TMP / f"spotray-lab-{self.name}"

    @property
    def shm(self) -> Path:
        return raystart.SHM / f"spotray-lab-{self.name}"


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


class Machine:
    """What the lab knows of one node. Only under the fleet's lock."""

    def __init__(self, name: str, index: int, market: Market, config: FleetConfig) -> None:
        self.name, self.index, self.market = name, index, market
        self.node_dir, self.shm_dir = config.root / name, config.shm / name
        self.node_id = secrets.token_hex(28)
        self.state = "starting"
        self.started_at_s = time.time()
        self.deadline_s: float | None = None
        self.fate = ""  # why the lab takes it: preemption, failure, shutdown
        self.fault = ""  # what the lab does to take it, if on purpose
        self.supervised: Supervised | None = None

    @property
    def spot(self) -> bool:
        return self.market.spot

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
            spot=self.spot,
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


class Fleet:
    """All machines of one lab. ``changed`` guards it, and is notified of every change."""

    def __init__(
        self, config: FleetConfig, *, tell: Callable[[Event], None], on_loss: Callable[[], None]
    ) -> None:
        """Nothing is started yet.

        Args:
            config: what the machines have in common.
            tell: takes each fact.
            on_loss: called when a machine is gone, with the lock held.
        """
        self.changed = threading.Condition(threading.RLock())
        self.address = ""  # the head's HOST:PORT, once it is up
        self.is_open = False
        self.spot_usd_per_hour = config.market.load_prices().value_at(0)
        self._config, self._tell, self._on_loss = config, tell, on_loss
        self._machines: dict[str, Machine] = {}
        self._indices = 0  # workers ever
        self._failures = 0  # starts that failed, in a row
        self._broken = ""  # why the lab cannot go on
        self._metadata: MetadataServer | None = None

    # -- life ------------------------------------------------------------------

    def open(self) -> None:
        """Make the lab's folders and start the metadata server.

        Raises:
            LabError: a lab of this name has folders already.
        """
        for folder in (self._config.root, self._config.shm):
            try:
                folder.mkdir(mode=0o700)
            except FileExistsError as exc:
                if folder == self._config.shm:
                    self._config.root.rmdir()
                raise LabError(
                    f"{folder} exists: another lab is called {self._config.name!r}; give "
                    "another name, or remove the folder if no lab runs"
                ) from exc
        self.is_open = True
        self._metadata = MetadataServer()

    def stop_waiting(self) -> None:
        """End every wait with a LabError: the fleet is about to close."""
        with self.changed:
            self.is_open = False
            self.changed.notify_all()

    def close(self) -> None:
        """End all machines and remove the folders; a second call does nothing more.

        Raises:
            LabError: a supervisor did not end.
        """
        self.stop_waiting()
        with self.changed:
            machines = [m for m in self._machines.values() if m.state != "gone"]
            for machine in reversed(machines):  # the head last: its end makes the others talk
                machine.fate = machine.fate or "shutdown"
                machine.tell("kill")
        errors = []
        for machine in machines:
            try:
                if machine.supervised is not None:
                    machine.supervised.join(_DEED_TIMEOUT_S)
            except LabError as exc:
                errors.append(exc)
        if self._metadata is not None:
            self._metadata.close()
        for folder in (self._config.root, self._config.shm):
            shutil.rmtree(folder, ignore_errors=True)
        if errors:
            raise errors[0]

    # -- machines --------------------------------------------------------------

    def workers(self) -> list[Machine]:
        """All that ever were, the oldest first."""
        return [machine for machine in self._machines.values() if machine.name != HEAD]

    def snapshot(self) -> tuple[LabNode, ...]:
        """The machines that are there, the head first."""
        with self.changed:
            return tuple(m.snapshot() for m in self._machines.values() if m.state != "gone")

    def living(self, name: str) -> Machine:
        """The machine of that name.

        Raises:
            LabError: there is none, it is gone, or the lab does not run.
        """
        self.check_open()
        machine = self._machines.get(name)
        if machine is None or not machine.is_there:
            there = ", ".join(m.name for m in self._machines.values() if m.is_there)
            why = "no such node" if machine is None else "it is gone"
            raise LabError(f"node {name!r}: {why}; there are {there}")
        return machine

    def start_head(self) -> None:
        config = self._config
        market = config.market.head
        command = raystart.head_command(
            cpus=config.head_cpus,
            object_store_mib=config.object_store_mib,
            port=config.port,
            market=market,
        )
        self._boot(Machine(HEAD, 0, market, config), command, ())

    def start_worker(self, *, spot: bool) -> str:
        """Start a machine, and return its name at once."""
        config = self._config
        market = config.market.spot if spot else config.market.spot.on_demand()
        kind = "spot" if spot else "on-demand"
        self._indices += 1
        machine = Machine(f"{kind}-{self._indices}", self._indices, market, config)
        command = raystart.worker_command(
            machine.index,
            head=self.address,
            cpus=config.cpus_per_worker,
            object_store_mib=config.object_store_mib,
            market=market,
        )
        metadata = NodeMetadata(
            instance_id=f"i-{machine.node_id[:17]}",
            instance_type=market.instance_type,
            zone=market.zone,
            region=market.region,
            life_cycle=kind,
        )
        self.metadata.add(machine.name, metadata)
        agent = raystart.agent_command(
            endpoint=self.metadata.url_for(machine.name),
            head=self.address,
            journal=config.journal_url,
            poll_s=config.agent_poll_s,
        )
        self._boot(machine, command, agent)
        return machine.name

    def take(self, machine: Machine, *, cause: str, fault: str = "") -> None:
        """Have a machine killed now; it is gone a moment later. ``fault``: told if set."""
        machine.fate, machine.fault = cause, fault
        machine.tell("kill")

    def take_all(self, names: Iterable[str], *, fault: str) -> None:
        """Take machines in one instant; returns when they are gone."""
        with self.changed:
            machines = [self.living(name) for name in names]
            if any(machine.name == HEAD for machine in machines):
                raise LabError("the head cannot be taken: the lab would end with it")
            for machine in machines:
                self.take(machine, cause="preemption" if machine.spot else "failure", fault=fault)
        self.wait(
            lambda: all(machine.state == "gone" for machine in machines), "the nodes are gone"
        )

    def revive(self, machine: Machine) -> None:
        """Start a fresh Ray on the same machine, under a new node id."""
        machine.node_id, machine.state = secrets.token_hex(28), "starting"
        machine.tell("revive", node_id=machine.node_id)
        self._tell_up(machine)

    def wait(
        self, true: Callable[[], bool], what: str, *, timeout_s: float = _DEED_TIMEOUT_S
    ) -> None:
        """Return when ``true()`` is.

        Raises:
            LabError: it is not after ``timeout_s`` seconds, or cannot become so.
        """
        with self.changed:
            self.changed.wait_for(lambda: true() or self._broken or not self.is_open, timeout_s)
            if self._broken:
                raise LabError(self._broken)
            if true():
                return
            states = ", ".join(f"{m.name} {m.state}" for m in self._machines.values())
            raise LabError(f"not after {timeout_s:g} s: {what}; nodes: {states}")

    def check_open(self) -> None:
        """Refuse to go on with a lab that does not run.

        Raises:
            LabError: it is not started, closed, or its head is gone.
        """
        if self._broken:
            raise LabError(self._broken)
        if not self.is_open or not self.address:
            raise LabError("the lab does not run: use it inside its with block")

    @property
    def metadata(self) -> MetadataServer:
        assert self._metadata is not None
        return self._metadata

    def tell_fault(
        self, fault: str, machine: Machine, detail: str = "", *, at_s: float | None = None
    ) -> None:
        """Write down what was done to a machine on purpose; default: now."""
        log.info("%s %s %s", fault, machine.name, detail)
        self._tell(
            FaultInjected(
                at_s=time.time() if at_s is None else at_s,
                fault=fault,
                node_id=machine.node_id,
                detail=f"{machine.name} {detail}".strip(),
            )
        )

    def _boot(self, machine: Machine, command: tuple[str, ...], agent: tuple[str, ...]) -> None:
        order = NodeOrder(
            name=machine.name,
            node_id=machine.node_id,
            ray_command=command,
            agent_command=agent,
            environment=raystart.node_environment(
                os.environ,
                quick_health_check=self._config.quick_health_check,
                is_head=machine.index == 0,
            ),
            node_dir=str(machine.node_dir),
            shm_dir=str(machine.shm_dir),
            lab_pid=os.getpid(),
        )
        self._machines[machine.name] = machine
        machine.supervised = Supervised(order, lambda report: self._hear(machine, report))
        self._tell_up(machine)

    def _tell_up(self, machine: Machine) -> None:
        prices, is_head = self._config.market, machine.name == HEAD
        on_demand = prices.head_usd_per_hour if is_head else prices.on_demand_usd_per_hour
        self._tell(
            NodeUp(
                at_s=time.time(),
                node_id=machine.node_id,
                name=machine.name,
                node_type=raystart.node_group(machine.market, is_head=is_head),
                role="head" if is_head else "worker",
                market=str(machine.market),
                spot=machine.spot,
                usd_per_hour=self.spot_usd_per_hour if machine.spot else on_demand,
                on_demand_usd_per_hour=on_demand,
            )
        )

    # -- what the supervisors say ----------------------------------------------

    def _hear(self, machine: Machine, report: Report) -> None:
        with self.changed:
            at_s = report["at_s"] or time.time()
            match report["what"]:
                case "ready" if report["node_id"] == machine.node_id:
                    self._hear_ready(machine, at_s, report["address"])
                case "failed" if machine.is_there:
                    self._hear_failed(machine, report)
                case "ray_exited" if machine.is_there and report["node_id"] == machine.node_id:
                    self._hear_ray_exited(machine)
                case "agent_exited" if machine.is_there:
                    log.warning("agent of %s ended: %s", machine.name, _last_line(report))
                case "frozen":
                    machine.state = "frozen"
                    self.tell_fault("freeze", machine, at_s=at_s)
                case "thawed":
                    machine.state = "ready"
                    self.tell_fault("thaw", machine, at_s=at_s)
                case "gone":
                    self._hear_gone(machine, at_s, report)
            self.changed.notify_all()

    def _hear_ready(self, machine: Machine, at_s: float, address: str) -> None:
        if machine.state == "starting":
            machine.state = "ready"
        self._failures = 0
        if machine.name == HEAD:
            self.address = address
        self._tell(NodeReady(at_s=at_s, node_id=machine.node_id))

    def _hear_failed(self, machine: Machine, report: Report) -> None:
        why = f"Ray did not start on {machine.name}: {_last_line(report)}"
        log.warning("%s", why)
        self._failures += 1
        if machine.name == HEAD or self._failures >= _MOST_FAILURES:
            self._broken = why
        self.take(machine, cause="failure")

    def _hear_ray_exited(self, machine: Machine) -> None:
        if machine.name == HEAD:
            self._broken = "Ray on the head has ended: the lab cannot go on, start another one"
            log.error("%s", self._broken)
        elif machine.deadline_s is not None:
            machine.state = "drained"
            log.info("%s is drained: its raylet left before the deadline", machine.name)
        else:
            log.info("the raylet of %s ended, its machine did not: a fresh one", machine.name)
            self.revive(machine)

    def _hear_gone(self, machine: Machine, at_s: float, report: Report) -> None:
        machine.state = "gone"
        machine.fate = machine.fate or "failure"
        if machine.name != HEAD and self.is_open:
            with suppress(LabError):  # it was never added where its start was cut short
                self.metadata.remove(machine.name)
        if "code" in report:  # the supervisor's own last word is missing
            log.error("the supervisor of %s ended with code %s", machine.name, report["code"])
            for folder in (machine.shm_dir, machine.node_dir):
                shutil.rmtree(folder, ignore_errors=True)
        if machine.fault:
            detail = f"{report.get('processes', 0)} processes"
            self.tell_fault(machine.fault, machine, detail, at_s=at_s)
        self._tell(
            NodeDown(
                at_s=at_s,
                node_id=machine.node_id,
                cause=machine.fate,
                noticed=machine.deadline_s is not None,
            )
        )
        self._on_loss()


def _last_line(report: Report) -> str:
    lines = str(report.get("output", "")).strip().splitlines() or ["no output"]
    return f"{lines[-1].strip()} (exit code {report.get('code')})"
