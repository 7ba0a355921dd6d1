"""Process 1 of an emulated cloud: ``python -m tests.emulated.rig CHECKOUT``.

It takes commands on its input, one JSON object a line, and answers each with one. When its
input ends it ends, and with it all that is in its namespaces.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

# moto reads these when it is imported.
os.environ["MOTO_IAM_LOAD_MANAGED_POLICIES"] = "true"
os.environ |= {"AWS_ACCESS_KEY_ID": "rig", "AWS_SECRET_ACCESS_KEY": "rig"}

from tests.emulated import imds
from tests.emulated.ec2 import EC2, PORT, Refusal
from tests.emulated.machines import GATEWAY, Machine, make_network
from tests.emulated.needs import program
from tests.emulated.volumes import Volumes

ENDPOINT = f"http://{GATEWAY}:{PORT}"
LAPTOP_IP = "172.31.255.10"
# Each cloud mounts its own over this machine's: in its namespace, so nobody else sees it.
_FOLDER = Path("/run")
_NODE_ENVIRONMENT = {
    "AWS_ENDPOINT_URL": ENDPOINT,
    # The image's environment has spotray's dependencies; itself comes with the YAML's files.
    "PYTHONPATH": "/home/ubuntu/spotray",
    "RAY_USAGE_STATS_ENABLED": "0",
    # All machines share few cores here: workers that are nice would not get through imports.
    "RAY_worker_niceness": "0",
    # Nor does a machine start a process for each of the CPUs that it only claims to have.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
}


class Rig:
    """The cloud: its API, its metadata service, its machines and what befalls them."""

    def __init__(self, checkout: Path) -> None:
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", _FOLDER], check=True)
        make_network()
        self._host_key = _FOLDER / "host_key"
        keygen = [program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", self._host_key]
        subprocess.run(keygen, check=True)
        self._pythons = [Path(sys.prefix), Path(sys.base_prefix)]
        self._wake = threading.Event()
        self._ec2 = EC2(self._wake.set, self._attaching)
        self._volumes = Volumes(_FOLDER / "volumes")
        self._has: dict[str, str] = {}  # volume id -> the instance whose machine sees it
        self._machines: dict[str, Machine] = {}  # instance id -> while it is there
        self._ended_s: dict[str, float] = {}
        self._deadlines: dict[str, float] = {}
        self._hints: dict[str, float] = {}
        self._take_after_s: float | None = None
        self._lock = threading.RLock()  # machines and the API's view of them change together
        self._ec2.start()
        imds.serve(self._answers_to)
        self.laptop = Machine(
            _FOLDER / "laptop", ip=LAPTOP_IP, visible=(checkout, *self._pythons), ssh=None
        )
        threading.Thread(target=self._follow, name="machines", daemon=True).start()

    # -- commands --------------------------------------------------------------

    def calls(self, since: int) -> list[dict[str, Any]]:
        """The API's log from there on."""
        return [asdict(one) for one in self._ec2.calls[since:]]

    def told(self, since: int) -> list[dict[str, Any]]:
        """What machines told from there on."""
        return self._ec2.told[since:]

    def instances(self) -> list[dict[str, Any]]:
        """All, also those that ended."""
        return [
            {
                "name": one.id,
                "ip": one.private_ip,
                "zone": one.placement.zone,
                "instance_type": one.instance_type,
                "spot": one.lifecycle == "spot",
                "state": one._state.name,
                "why": one.state_reason.code if one.state_reason else "",
                "runs": one.id in self._machines,
                "ended_s": self._ended_s.get(one.id, 0.0),
                "tags": {tag["key"]: tag["value"] for tag in one.get_tags()},
            }
            for one in self._ec2.instances()
        ]

    def volumes(self) -> list[dict[str, Any]]:
        """Those that have tags, which boot disks have not."""
        return [
            {
                "name": one.id,
                "zone": one.zone.name,
                "state": one.status,
                "on": one.attachment.instance.id if one.attachment else "",
                "tags": {tag["key"]: tag["value"] for tag in one.get_tags()},
            }
            for one in self._ec2.volumes()
        ]

    def refuse(self, **rule: Any) -> None:
        """RunInstances fails from now on where the rule fits."""
        self._ec2.refusals.append(Refusal(**rule))

    def allow(self) -> None:
        """Nothing is refused any more."""
        self._ec2.refusals.clear()

    def notice(self, name: str, seconds: float) -> float:
        """Announce the end of a spot instance, and end it then: Unix seconds."""
        deadline_s = self._deadlines[name] = time.time() + seconds
        threading.Timer(seconds, self._reclaim, [name]).start()
        return deadline_s

    def take(self, after_s: float) -> None:
        """Each spot instance that is launched from now on is taken so soon, without a notice."""
        self._take_after_s = after_s

    def spare(self) -> None:
        """None is taken any more."""
        self._take_after_s = None

    def hint(self, name: str) -> None:
        """Recommend to rebalance."""
        self._hints[name] = time.time()

    def kill(self, name: str) -> None:
        """A machine is lost without a word."""
        with self._lock:
            self._end(name, silent=True)
            self._ec2.ended(name, by="loss")

    def pace(self, step_s: float) -> None:
        """How long a step of the job takes from now on."""
        self._ec2.step_s = step_s

    def make_bucket(self, name: str) -> None:
        import boto3

        where = {"LocationConstraint": "us-west-2"}
        client = boto3.client("s3", "us-west-2", endpoint_url=ENDPOINT)
        client.create_bucket(Bucket=name, CreateBucketConfiguration=where)

    def read(self, name: str, path: str) -> str | None:
        """A text file of a machine, also of one that ended; None if there is none."""
        file = self._inside(name) / path.lstrip("/")
        return file.read_text(errors="replace") if file.is_file() else None

    def write(self, name: str, path: str, text: str) -> None:
        """A text file on a machine that runs."""
        (self._inside(name) / path.lstrip("/")).write_text(text)

    def _inside(self, name: str) -> Path:
        if name in self._machines:  # with the disks that it has mounted
            return Path(f"/proc/{self._machines[name].pid}/root")
        return _FOLDER / ("laptop" if name == "laptop" else f"nodes/{name}") / "root"

    def save(self, to: str) -> None:
        """Copy what the machines wrote into a folder outside."""
        for machine in (_FOLDER / "laptop", *_FOLDER.glob("nodes/*")):
            for part in ("root", "home", "tmp", "run"):
                target = Path(to, machine.name, part)
                shutil.copytree(
                    machine / "root" / part,
                    target,
                    symlinks=True,
                    ignore=_sockets,
                    ignore_dangling_symlinks=True,
                    dirs_exist_ok=True,
                )

    # -- machines --------------------------------------------------------------

    def _follow(self) -> None:
        """Let machines come and go as the API has it."""
        while True:
            self._wake.wait()
            self._wake.clear()
            for instance in self._ec2.instances():
                try:
                    with self._lock:
                        self._follow_one(instance)
                except Exception:  # the others are not to be kept waiting
                    traceback.print_exc()
            for volume in self._ec2.volumes():
                with self._lock:
                    self._follow_volume(volume)

    def _follow_volume(self, volume: Any) -> None:
        name = volume.attachment.instance.id if volume.attachment else ""
        if name in self._machines and self._has.get(volume.id) != name:
            self._has[volume.id] = name
            self._machines[name].plug_in_disk(volume.id, self._volumes.device(volume.id))

    def _attaching(self, volume_id: str, name: str) -> str:
        """Why EC2 would not attach a volume; empty if it would."""
        with self._lock:
            volume, instance = self._ec2.backend.get_volume(volume_id), self._instance(name)
            if volume.attachment:
                return "VolumeInUse"
            if volume.zone.name != instance.placement.zone:
                return "InvalidVolume.ZoneMismatch"
            if name not in self._machines:
                return "IncorrectState"
            if before := self._has.pop(volume_id, ""):
                self._follow_one(self._instance(before))  # not before that one is gone for good
            return ""

    def _instance(self, name: str) -> Any:
        return self._ec2.backend.get_instance(name)

    def _follow_one(self, instance: Any) -> None:
        runs = instance._state.name in ("pending", "running")
        if runs and instance.id not in self._machines:
            self._begin(instance)
        elif not runs:
            self._end(instance.id)

    def _begin(self, instance: Any) -> None:
        folder = _FOLDER / "nodes" / instance.id
        pair = self._ec2.backend.key_pairs.get(instance.key_name)
        self._machines[instance.id] = Machine(
            folder,
            ip=instance.private_ip,
            public_ip=instance.public_ip,
            visible=self._pythons,
            ssh=(self._host_key, pair.public_key if pair else ""),
            environment=_NODE_ENVIRONMENT,
        )
        if self._take_after_s is not None and instance.lifecycle == "spot":
            threading.Timer(self._take_after_s, self._reclaim, [instance.id]).start()

    def _end(self, name: str, *, silent: bool = False) -> None:
        machine = self._machines.pop(name, None)
        if machine is not None:
            machine.destroy() if silent else machine.halt()
            self._ended_s[name] = time.time()

    def _reclaim(self, name: str) -> None:
        with self._lock:
            self._ec2.ended(name, by="spot")
            self._end(name)

    def _answers_to(self, ip: str) -> dict[str, str]:
        for one in self._ec2.instances():
            if one.private_ip == ip and one.id in self._machines:
                profile = self._ec2.backend.iam_instance_profile_associations.get(one.id)
                return imds.answers(
                    one,
                    profile=profile.iam_instance_profile.name if profile else None,
                    deadline_s=self._deadlines.get(one.id),
                    hint_s=self._hints.get(one.id),
                )
        return {}


def _sockets(folder: str, names: list[str]) -> list[str]:
    """What cannot be copied."""
    paths = {name: Path(folder, name) for name in names}
    return [name for name, path in paths.items() if not (path.is_file() or path.is_dir())]


def main(checkout: str) -> int:
    """Serve until the input ends."""
    # Answers have a channel of their own: whatever else is printed goes to the log.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # not a line for each request
    rig = Rig(Path(checkout))
    print(json.dumps({"result": {"laptop": rig.laptop.pid}}), file=answers, flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = {"result": getattr(rig, command.pop("do"))(**command)}
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
