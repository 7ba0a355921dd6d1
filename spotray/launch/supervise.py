"""On the head, around the user's command: a deadline, a budget, and the end of the cluster.

``python -m spotray.launch.supervise --deadline-s 1767225600 -- python train.py`` is what a
launch with such wishes submits, so that they hold while nobody's laptop is looking.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spotray.clock import Clock, SystemClock

log = logging.getLogger(__name__)

STOPPED_CODE = 75  # "try again later": what was saved is there, and the job may go on from it
CONFIG = "~/ray_bootstrap_config.yaml"  # where `ray up` leaves the cluster's YAML on the head
_LOOK_S = 5.0
_GRACE_S = 60.0  # between the request to stop and the end
_GROUP_LABEL = "ray.io/node-group"
_MARKET_LABEL = "ray.io/market-type"


@dataclass(frozen=True, kw_only=True)
class NodeTime:
    """When a node ran, Unix seconds; ``end_s`` is None while it does."""

    node_type: str
    spot: bool
    start_s: float
    end_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Rates:
    """The highest that a node of each type costs, USD per hour: on spot, and on demand."""

    spot: Mapping[str, float] = field(default_factory=dict)
    on_demand: Mapping[str, float] = field(default_factory=dict)

    def of(self, node: NodeTime) -> float:
        """Of a node; one of an unknown type costs as much as the dearest."""
        known = self.spot if node.spot and node.node_type in self.spot else self.on_demand
        dearest = max((*self.spot.values(), *self.on_demand.values()), default=0.0)
        return known.get(node.node_type, dearest)


def spent_usd(nodes: Iterable[NodeTime], rates: Rates, *, from_s: float, now_s: float) -> float:
    """What nodes cost since ``from_s``, at their highest prices."""
    total = 0.0
    for node in nodes:
        end_s = now_s if node.end_s is None else min(node.end_s, now_s)
        total += max(0.0, end_s - max(node.start_s, from_s)) / 3600 * rates.of(node)
    return total


class Bill:
    """What the cluster costs since now; a head that does not answer stops no job."""

    def __init__(
        self, rates: Rates, *, nodes: Callable[[], Sequence[NodeTime]], clock: Clock
    ) -> None:
        self._rates, self._ask, self._clock = rates, nodes, clock
        self._from_s = clock.now_s()
        self._nodes: Sequence[NodeTime] = ()

    def spent_usd(self) -> float:
        """USD up to now. Nodes of which nothing new can be heard go on costing."""
        try:
            self._nodes = self._ask()
        except Exception as exc:  # Ray's API raises many kinds, and the job must not die of one
            log.warning("what the nodes cost is not known now: %s", exc)
        return spent_usd(self._nodes, self._rates, from_s=self._from_s, now_s=self._clock.now_s())


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When a job has to stop."""

    deadline_s: float | None = None  # Unix seconds
    max_cost_usd: float | None = None

    def broken(self, *, now_s: float, spent: Callable[[], float]) -> str:
        """Why the job has to stop now; empty if it may go on."""
        if self.deadline_s is not None and now_s >= self.deadline_s:
            return "its deadline is reached"
        if self.max_cost_usd is not None and (usd := spent()) >= self.max_cost_usd:
            return f"${usd:.2f} of ${self.max_cost_usd:.2f} are spent"
        return ""


def supervise(
    command: Sequence[str],
    limits: Limits,
    *,
    spent: Callable[[], float],
    clock: Clock,
    look_s: float = _LOOK_S,
    grace_s: float = _GRACE_S,
) -> int:
    """Run a command, and stop it when a limit is reached.

    Args:
        spent: what was spent up to now, USD.

    Returns:
        The command's exit code, or `STOPPED_CODE` if it was stopped.
    """
    children: list[subprocess.Popen[bytes]] = []
    asked = False

    def stop(*_: object) -> None:  # Ray stops a job by a signal to its processes
        nonlocal asked
        asked = True
        for one in children:
            one.terminate()

    before = signal.signal(signal.SIGTERM, stop)
    child = subprocess.Popen(command)
    children.append(child)
    if asked:  # before it was in the list
        child.terminate()
    try:
        while True:
            try:
                return _code(child.wait(look_s))
            except subprocess.TimeoutExpired:
                pass
            if why := limits.broken(now_s=clock.now_s(), spent=spent):
                print(f"spotray: the job is stopped: {why}", flush=True)
                child.terminate()
                try:
                    child.wait(grace_s)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
                return STOPPED_CODE
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
        signal.signal(signal.SIGTERM, before)


def nodes_of_ray() -> list[NodeTime]:
    """The nodes that Ray's head knows, the dead ones too."""
    from ray.util.state import list_nodes

    return [
        NodeTime(
            node_type=str((node.labels or {}).get(_GROUP_LABEL, "")),
            spot=(node.labels or {}).get(_MARKET_LABEL) == "spot",
            start_s=(node.start_time_ms or 0) / 1000,
            end_s=node.end_time_ms / 1000 if node.end_time_ms else None,
        )
        for node in list_nodes(detail=True, limit=10_000, raise_on_missing_output=False)
    ]


def take_down(
    config: Path,
    *,
    after_s: float,
    jobs_running: Callable[[], bool],
    run: Callable[[Sequence[str]], int],
    clock: Clock,
) -> None:
    """Take the cluster down from its head, unless a job runs by then.

    The laptop that launched may be asleep: nobody else would end what is paid for.

    Args:
        after_s: how long whoever launched has to do so, or to launch another job.
    """
    clock.sleep(after_s)
    while jobs_running():
        clock.sleep(after_s)
    ray = (sys.executable, "-m", "ray.scripts.scripts", "down", "-y")
    run([*ray, "--workers-only", str(config)])  # first: with the head this process ends too
    run([*ray, str(config)])


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command under its limits; its exit code, or 75."""
    parser = argparse.ArgumentParser(prog="python -m spotray.launch.supervise")
    parser.add_argument("--deadline-s", type=float, help="Unix seconds")
    parser.add_argument("--max-cost-usd", type=float, help="from now on, for the whole cluster")
    parser.add_argument(
        "--rates", default="{}", help='JSON: {"spot": {TYPE: USD}, "on_demand": {}}'
    )
    parser.add_argument("--down-after-s", type=float, help="take the cluster down so long after")
    parser.add_argument("--take-down", action="store_true", help="do that now")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="spotray: %(message)s")
    clock = SystemClock()
    if args.take_down:
        take_down(
            Path(CONFIG).expanduser(),
            after_s=args.down_after_s or 0.0,
            jobs_running=_jobs_running,
            run=lambda words: subprocess.run(words, check=False).returncode,
            clock=clock,
        )
        return 0
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        parser.error("no command")
    bill = Bill(Rates(**json.loads(args.rates)), nodes=nodes_of_ray, clock=clock)
    try:
        return supervise(
            command,
            Limits(deadline_s=args.deadline_s, max_cost_usd=args.max_cost_usd),
            spent=bill.spent_usd,
            clock=clock,
        )
    finally:
        if args.down_after_s is not None:
            _leave_behind(args.down_after_s)


def _leave_behind(after_s: float) -> None:
    """A process that outlives the job."""
    with open(os.path.expanduser("~/spotray-take-down.log"), "ab") as log:
        subprocess.Popen(
            [
                *(sys.executable, "-m", "spotray.launch.supervise", "--take-down"),
                *("--down-after-s", f"{after_s:g}"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _jobs_running() -> bool:
    from ray.job_submission import JobSubmissionClient

    client: Any = JobSubmissionClient("auto")
    return any(not job.status.is_terminal() for job in client.list_jobs())


def _code(returncode: int) -> int:
    """As a shell says it: 128 and the signal's number."""
    return returncode if returncode >= 0 else 128 - returncode


if __name__ == "__main__":
    sys.exit(main())
