"""A cluster that `ray up` makes in the emulated cloud, and the jobs that are submitted to it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spotray.events import Event, decode
from tests.emulated.cloud import Cloud, wait_for

STORAGE = "s3://emulated/spotray"
PRESET = "aws-g4dn-spot"
_TOO_SLOW = "current node timed out during startup"  # Ray gives a raylet 30 s, not more
MEMORY = ".spotray/launches.jsonl"
PATIENCE_S = 180.0  # a node is there in 15 to 20 s, unless this machine has much else to do
_UP_S = 240.0  # of which 15 to 30 are needed on an idle machine
_JOB = "tests/emulated/job.py"
_DEMAND = "tests/emulated/demand.py"
_READ_JOURNAL = """
import sys
from spotray.events import encode
from spotray.ledger.journal import read_journal
from spotray.storage import Store
for event in read_journal(Store.at(sys.argv[1])):
    print(encode(event))
"""


class Cluster:
    """Rendered by `spotray cluster new`, as a user would; only how long it waits is changed.

    What a node would download, its image has here (`machines.py`).
    """

    def __init__(
        self,
        cloud: Cloud,
        *,
        new: Sequence[str] = (),
        policy: str = "",
        controller: str = "",
        file: str = "",
    ) -> None:
        """Render the file; nothing is launched.

        Args:
            new: options of `spotray cluster new`, beside the usual ones.
            policy: ``provider.launch_policy`` in YAML's flow style, for cool-downs that a
                test can wait for.
            controller: ``provider.controller`` in the same way.
            file: another one, instead of a rendered one; a path on the laptop.
        """
        self.cloud, self.file = cloud, file or "/root/cluster.yaml"
        self._new, self._controller = new, controller
        # Each ends in `ray up` and `ray down`; ours prepares the account before.
        self._command = ("ray",) if file else ("spotray", "cluster")
        if not file:
            self._render(policy)

    def _render(self, policy: str) -> None:
        new = ("spotray", "cluster", "new", PRESET, "--storage", STORAGE, "--workers", "2")
        self.cloud.run(*new, *self._new, "-o", self.file)
        for key, value in {"launch_policy": policy, "controller": self._controller}.items():
            if value:
                line = f"/^  markets:/i \\  {key}: {value}"
                self.cloud.run("sed", "-i", line, self.file)

    def up(self, *, policy: str = "") -> str:
        """Bring it up; ``policy``: another one from now on."""
        if policy:
            self._render(policy)
        command = (*self._command, "up", "-y", self.file)
        try:
            return self.cloud.run(*command, timeout_s=_UP_S)
        except AssertionError as exc:
            if _TOO_SLOW not in str(exc):
                raise
            return self.cloud.run(*command, timeout_s=_UP_S)  # as its user would

    def down(self) -> str:
        return self.cloud.run(*self._command, "down", "-y", self.file)

    def exec(self, command: str) -> str:
        return self.cloud.run("ray", "exec", self.file, command)

    def journal(self) -> Sequence[Event]:
        """All that provider, controller and agents wrote, in the order of each."""
        journal = f"{STORAGE}/clusters/{PRESET}"
        printed = self.cloud.run("python", "-c", _READ_JOURNAL, journal)
        return [decode(line) for line in printed.splitlines() if line.startswith("{")]

    def facts(self) -> list[dict[str, Any]]:
        """What launches have taught, as the head remembers it."""
        (head,) = (
            one
            for one in self.cloud.instances(runs=True)
            if one["tags"].get("ray-node-type") == "head"
        )
        text = self.cloud.do("read", name=head["name"], path=f"/home/ubuntu/{MEMORY}")
        return [json.loads(line) for line in (text or "").splitlines()]

    def wait_for_progress(self, *, after_s: float) -> None:
        """Until the controller has seen a job go on with what came after a loss."""

        def went_on() -> bool:
            return any(
                one["kind"] == "Progressed" and one["at_s"] > after_s for one in self.facts()
            )

        wait_for(went_on, "progress after the loss", timeout_s=PATIENCE_S)

    def forget(self) -> None:
        """Empty the head's memory of launches."""
        self.exec(f"rm -f ~/{MEMORY}")

    def submit(self, name: str, *, steps: int, log: Path) -> Job:
        """``ray submit`` of `job.py`, which ends by itself after so many steps."""
        with log.open("w") as output:
            command = ("ray", "submit", self.file, _JOB, name, str(steps))
            started = self.cloud.start(*command, stdout=output, stderr=subprocess.STDOUT)
        return Job(self.cloud, name, started, log)

    def demand(self, workers: int, *, log: Path) -> Demand:
        """``ray submit`` of `demand.py`, which wants so many workers until it is ended."""
        with log.open("w") as output:
            command = ("ray", "submit", self.file, _DEMAND, str(workers))
            started = self.cloud.start(*command, stdout=output, stderr=subprocess.STDOUT)
        return Demand(self.cloud, started, log)


class Demand:
    """Somebody who wants workers, and tells which ones Ray has."""

    def __init__(self, cloud: Cloud, process: subprocess.Popen[str], log: Path) -> None:
        self.cloud, self.process, self._log = cloud, process, log
        self._since = len(cloud.told())

    def wait_for_workers(
        self, count: int, *, after_s: float = 0.0, without: str = "", timeout_s: float = PATIENCE_S
    ) -> float:
        """When Ray had so many, not counting that address: Unix seconds."""

        def look() -> float:
            if self.process.poll() is not None:
                raise AssertionError(f"it has ended:\n{self._log.read_text()}")
            for one in self.cloud.told()[self._since :]:
                workers = one.get("workers")
                if workers is None or one["at_s"] < after_s:
                    continue
                if len(set(workers) - {without}) >= count:
                    return float(one["at_s"])
            return 0.0

        return wait_for(look, f"{count} workers", timeout_s=timeout_s)

    def wait_for_worker(self, ip: str, *, timeout_s: float = PATIENCE_S) -> None:
        """Until Ray has the one of that address."""

        def is_there() -> bool:
            told = [one["workers"] for one in self.cloud.told()[self._since :] if "workers" in one]
            return bool(told) and ip in told[-1]

        wait_for(is_there, f"the worker {ip}", timeout_s=timeout_s)

    def end(self) -> None:
        """The workers are wanted no more."""
        self.process.kill()
        self.process.wait()


class Job:
    """A submitted job, seen by what its workers tell."""

    def __init__(self, cloud: Cloud, name: str, process: subprocess.Popen[str], log: Path) -> None:
        self.cloud, self.name, self.process, self._log = cloud, name, process, log

    def told(self, *, after_s: float = 0.0) -> list[dict[str, Any]]:
        """All that the job told after a time."""
        return [
            one
            for one in self.cloud.told()
            if one.get("job") == self.name and one["at_s"] > after_s
        ]

    def steps(self, *, after_s: float = 0.0) -> list[dict[str, Any]]:
        """The steps that the workers told of, by time."""
        return [one for one in self.told(after_s=after_s) if "step" in one]

    @property
    def step(self) -> int:
        """The furthest that a worker told of."""
        return max((one["step"] for one in self.steps()), default=0)

    @property
    def steps_back(self) -> int:
        """How far the job ever went back; 0: no step was done again.

        Two workers tell of the same step, at most one apart.
        """
        furthest = back = 0
        for one in self.steps():
            back = max(back, furthest - 1 - one["step"])
            furthest = max(furthest, one["step"])
        return back

    @property
    def hosts(self) -> set[str]:
        """Who told of the newest step that all of its workers have told of."""
        by_step: dict[int, set[str]] = {}
        newest: set[str] = set()
        for one in self.steps():
            hosts = by_step.setdefault(one["step"], set())
            hosts.add(one["host"])
            if len(hosts) == one["of"]:
                newest = hosts
        return newest

    def wait_for_hosts(
        self, count: int, *, after_s: float, without: str = "", timeout_s: float = PATIENCE_S
    ) -> float:
        """When so many workers step together, none on that host: Unix seconds."""

        def look() -> float:
            if self.process.poll() is not None:
                raise AssertionError(f"the job has ended:\n{self.log_text()}")
            by_step: dict[int, set[str]] = {}
            for one in self.steps(after_s=after_s):
                hosts = by_step.setdefault(one["step"], set())
                hosts.add(one["host"])
                if len(hosts) == one["of"] == count and without not in hosts:
                    return float(one["at_s"])
            return 0.0

        what = f"{count} workers that step together"
        return wait_for(look, what, timeout_s=timeout_s, tells=self._tells)

    def wait(self, *, timeout_s: float = 120.0) -> dict[str, Any]:
        """What it told at its end.

        Raises:
            AssertionError: it failed; with what it printed.
        """
        code = self.process.wait(timeout_s)
        assert code == 0, self.log_text()
        return next(one for one in self.told() if "done" in one)

    def log_text(self) -> str:
        return self._log.read_text()

    def _tells(self) -> str:
        """Where a job stands that did not come as far as it should."""
        instances = self.cloud.instances()
        logs = [
            f"{path}:\n{(self.cloud.do('read', name=one['name'], path=path) or '')[-3000:]}"
            for one in instances
            if one["tags"].get("ray-node-type") == "head" and one["runs"]
            for path in ("/home/ubuntu/spotray-controller.log", f"/home/ubuntu/{MEMORY}")
        ]
        steps = [str(one) for one in self.told()[-6:]]
        nodes = [str(one) for one in instances]
        return "\n".join(["told:", *steps, "instances:", *nodes, *logs, self.log_text()[-6000:]])


def host_of(instance: dict[str, Any]) -> str:
    """The name by which an instance calls itself."""
    return f"ip-{instance['ip'].replace('.', '-')}"
