"""The calls of Compute Engine's API that Ray and we make, answered inside this process."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from ray.autoscaler.tags import (
    TAG_RAY_LAUNCH_CONFIG,
    TAG_RAY_NODE_KIND,
    TAG_RAY_NODE_NAME,
    TAG_RAY_USER_NODE_TYPE,
)

from spotray.clock import FakeClock
from spotray.market.offer import Market

REGION = "us-central1"
ZONES = ("us-central1-a", "us-central1-b", "us-central1-c")
STOCK_OUT = "ZONE_RESOURCE_POOL_EXHAUSTED"


def worker_labels(node_type: str = "gpu") -> dict[str, str]:
    return {
        TAG_RAY_NODE_KIND: "worker",
        TAG_RAY_USER_NODE_TYPE: node_type,
        TAG_RAY_NODE_NAME: "ray-test-worker",
        TAG_RAY_LAUNCH_CONFIG: "hash",
    }


def head_labels() -> dict[str, str]:
    return {**worker_labels("head"), TAG_RAY_NODE_KIND: "head", TAG_RAY_NODE_NAME: "ray-test-head"}


def market(zone: str, *, spot: bool = True, kind: str = "g2-standard-4") -> Market:
    return Market(cloud="gcp", zone=f"{REGION}-{zone}", instance_type=kind, spot=spot)


def http_error(status: int, reason: str, words: str = "Google's own words") -> Exception:
    import httplib2
    from googleapiclient.errors import HttpError

    body = {"error": {"code": status, "message": words, "errors": [{"reason": reason}]}}
    error: Exception = HttpError(
        httplib2.Response({"status": status}), json.dumps(body).encode(), uri="https://compute"
    )
    return error


class _Call:
    def __init__(self, answer: Callable[[], Any]) -> None:
        self._answer = answer

    def execute(self, http: Any = None) -> Any:
        return self._answer()


class EmulatedGCE:
    """Stands where ``discovery.build("compute", "v1")`` stands."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.calls: list[Market] = []  # of instances.insert
        self.bodies: list[dict[str, Any]] = []
        self.refuses: dict[Market, str] = {}  # the operation ends in this error
        self.denies: dict[Market, Exception] = {}  # the call itself is refused
        self.holds: dict[Market, int] = {}  # so many instances, then it is sold out
        self.takes_s = 3.0  # an insert's operation runs that long
        self.machines: dict[str, dict[str, Any]] = {}  # by name, also stopped ones
        self.started: list[str] = []  # stopped instances that were started again
        self.operations: list[dict[str, Any]] = []
        self._ids = itertools.count(1000)
        self._http = SimpleNamespace(credentials=None)

    def asked(self) -> list[Market]:
        """The markets asked since the last look."""
        calls, self.calls = self.calls, []
        return calls

    def take(self, name: str, *, action: str = "DELETE", by: str = "") -> None:
        """The cloud takes an instance; or ``by`` an operation of somebody else."""
        machine = self.machines[name]
        self._operation(machine, by or "compute.instances.preempted")
        if action == "DELETE":
            del self.machines[name]
        else:
            self._stop(machine)

    def _stop(self, machine: dict[str, Any]) -> None:
        stopped = datetime.fromtimestamp(self.clock.now_s(), UTC).isoformat()
        machine |= {"status": "TERMINATED", "lastStopTimestamp": stopped}

    # -- the API, as its client names it -------------------------------------

    def instances(self) -> EmulatedGCE:
        return self

    def zoneOperations(self) -> SimpleNamespace:
        return SimpleNamespace(get=self._get_operation, list=self._list_operations)

    def insert(
        self, *, project: str, zone: str, body: dict[str, Any], sourceInstanceTemplate: str | None
    ) -> _Call:
        return _Call(lambda: self._insert(zone, body))

    def list(self, *, project: str, zone: str, filter: str) -> _Call:
        labels = dict(re.findall(r"\(labels\.([\w-]+) = ([^)]+)\)", filter))
        statuses = set(re.findall(r"status = (\w+)", filter))

        def answer() -> dict[str, Any]:
            items = [
                machine
                for machine in self.machines.values()
                if machine["zone"].endswith(f"/{zone}")
                and machine["status"] in statuses
                and labels.items() <= machine["labels"].items()
            ]
            return {"items": items} if items else {}

        return _Call(answer)

    def get(self, *, project: str, zone: str, instance: str) -> _Call:
        return _Call(lambda: self._machine(zone, instance))

    def delete(self, *, project: str, zone: str, instance: str) -> _Call:
        def answer() -> dict[str, Any]:
            operation = self._operation(self._machine(zone, instance), "delete")
            del self.machines[instance]
            return operation

        return _Call(answer)

    def stop(self, *, project: str, zone: str, instance: str) -> _Call:
        def answer() -> dict[str, Any]:
            machine = self._machine(zone, instance)
            self._stop(machine)
            return self._operation(machine, "stop")

        return _Call(answer)

    def start(self, *, project: str, zone: str, instance: str) -> _Call:
        def answer() -> dict[str, Any]:
            machine = self._machine(zone, instance)
            operation = self._operation(machine, "start")
            if error := self.refuses.get(self.market_of(machine)):
                operation["fails"] = {"errors": [{"code": error, "message": "Google's own words"}]}
            else:
                machine["status"] = "RUNNING"
                self.started.append(instance)
            return operation

        return _Call(answer)

    def setLabels(self, *, project: str, zone: str, instance: str, body: dict[str, Any]) -> _Call:
        def answer() -> dict[str, Any]:
            machine = self._machine(zone, instance)
            if body["labelFingerprint"] != machine["labelFingerprint"]:
                raise http_error(412, "conditionNotMet", "Labels fingerprint is outdated")
            machine["labels"] = dict(body["labels"])
            return self._operation(machine, "setLabels")

        return _Call(answer)

    def market_of(self, machine: dict[str, Any]) -> Market:
        return Market(
            cloud="gcp",
            zone=machine["zone"].rpartition("/")[2],
            instance_type=machine["machineType"].rpartition("/")[2],
            spot=machine["scheduling"].get("provisioningModel") == "SPOT",
        )

    def _insert(self, zone: str, body: dict[str, Any]) -> dict[str, Any]:
        kind = body["machineType"].rpartition("/")[2]
        spot = body["scheduling"].get("provisioningModel") == "SPOT"
        where = Market(cloud="gcp", zone=zone, instance_type=kind, spot=spot)
        self.calls.append(where)
        self.bodies.append(body)
        if where in self.denies:
            raise self.denies[where]
        machine = {
            **body,
            "id": str(next(self._ids)),
            "zone": f"https://compute/projects/p/zones/{zone}",
            "status": "RUNNING",
            "creationTimestamp": datetime.fromtimestamp(self.clock.now_s(), UTC).isoformat(),
            "labelFingerprint": "f",
            "networkInterfaces": self._addresses(body),
        }
        operation = self._operation(machine, "insert")
        error = self.refuses.get(where)
        if where in self.holds:
            self.holds[where] -= 1
            error = STOCK_OUT if self.holds[where] < 0 else None
        if error:
            operation["fails"] = {"errors": [{"code": error, "message": "Google's own words"}]}
        else:
            self.machines[body["name"]] = machine
        return operation

    def _addresses(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The interfaces that were asked for, with an address inside and one outside."""
        number = len(self.bodies) + 1
        interfaces = body.get("networkInterfaces") or [{"accessConfigs": [{}]}]
        for one in interfaces:
            one["networkIP"] = f"10.0.0.{number}"
            for access in one.get("accessConfigs", []):
                access["natIP"] = f"203.0.113.{number}"
        return interfaces

    def _operation(self, machine: dict[str, Any], what: str) -> dict[str, Any]:
        operation = {
            "name": f"operation-{next(self._ids)}",
            "operationType": what,
            "targetId": machine["id"],
            "zone": machine["zone"],
            "insertTime": datetime.fromtimestamp(self.clock.now_s(), UTC).isoformat(),
            "until_s": self.clock.now_s() + self.takes_s,
        }
        self.operations.append(operation)
        return operation

    def _get_operation(self, *, project: str, zone: str, operation: str) -> _Call:
        def answer() -> dict[str, Any]:
            (found,) = (one for one in self.operations if one["name"] == operation)
            assert found["zone"].endswith(f"/{zone}")
            if self.clock.now_s() < found["until_s"]:
                return {"name": operation, "status": "RUNNING"}
            failed = {"error": found["fails"]} if "fails" in found else {}
            return {"name": operation, "status": "DONE", **failed}

        return _Call(answer)

    def _list_operations(self, *, project: str, zone: str, filter: str) -> _Call:
        (target,) = re.findall(r"targetId = (\d+)", filter)
        found = [one for one in self.operations if one["targetId"] == target]
        return _Call(lambda: {"items": found})

    def _machine(self, zone: str, name: str) -> dict[str, Any]:
        machine = self.machines.get(name)
        if machine is None or not machine["zone"].endswith(f"/{zone}"):
            raise http_error(404, "notFound", f"no {name} in {zone}")
        return machine
