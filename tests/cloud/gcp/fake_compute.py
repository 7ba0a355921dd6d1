"""The REST calls of Compute Engine that google-cloud-compute makes for disks, on loopback."""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest

from spotray.clock import Clock

ROOT = "/compute/v1/projects/p"


class Refused(Exception):
    """An answer with a status that is none of success, as Google words it."""

    def __init__(self, status: int, reason: str, words: str) -> None:
        super().__init__(words)
        self.status, self.reason = status, reason


class FakeCompute:
    """Disks of the instances in ``machines``, which somebody else makes and ends."""

    def __init__(self, machines: dict[str, dict[str, Any]], clock: Clock) -> None:
        self.machines, self.clock = machines, clock
        self.disks: dict[tuple[str, str], dict[str, Any]] = {}  # by zone and name
        self.operations: dict[str, dict[str, Any]] = {}
        self.refuses: dict[str, tuple[int, str]] = {}  # verb -> the call's status and reason
        self.fails: dict[str, str] = {}  # verb -> the error that its operation ends in
        self.calls: list[str] = []
        self.tokens: set[str] = set()  # that calls came with
        self.slow = 0  # so often an operation is still running when somebody asks
        self.port = 0
        self._ids = itertools.count(1)
        self._lock = threading.Lock()

    def client(self, cls: Any) -> Any:
        """A client of google-cloud-compute that talks to this."""
        from google.auth.credentials import AnonymousCredentials

        transport = cls.get_transport_class("rest")
        return cls(
            transport=transport(
                host=f"127.0.0.1:{self.port}",
                url_scheme="http",
                credentials=AnonymousCredentials(),
            )
        )

    def stands_for_google(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Clients that nobody here made talk to this, too, until the end of the test."""
        from google.auth.transport.requests import AuthorizedSession

        real = AuthorizedSession.request

        def request(session: Any, method: str, url: str, *args: Any, **kwargs: Any) -> Any:
            here = url.replace("https://compute.googleapis.com", f"http://127.0.0.1:{self.port}")
            return real(session, method, here, *args, **kwargs)

        monkeypatch.setattr(AuthorizedSession, "request", request)

    def answer(self, method: str, url: str, body: dict[str, Any]) -> dict[str, Any]:
        """What Google would say to one call."""
        parsed = urlparse(url)
        query = {key: values[-1] for key, values in parse_qs(parsed.query).items()}
        with self._lock:
            self._settle()
            for (verb, pattern), call in self._routes().items():
                found = re.fullmatch(ROOT + pattern, parsed.path)
                if found and verb.partition(" ")[0] == method:
                    what = verb.partition(" ")[2]
                    self.calls.append(what)
                    if what in self.refuses:
                        raise Refused(*self.refuses[what], f"{what} is refused")
                    return call(*found.groups(), query=query, body=body)
        raise Refused(404, "notFound", f"no such call: {method} {url}")

    def _routes(self) -> dict[tuple[str, str], Callable[..., dict[str, Any]]]:
        zone, name = r"/zones/([\w-]+)", r"([\w-]+)"
        return {
            ("GET list", "/aggregated/disks"): self._list,
            ("POST make", f"{zone}/disks"): self._make,
            ("GET get", f"{zone}/disks/{name}"): self._get,
            ("DELETE delete", f"{zone}/disks/{name}"): self._delete,
            ("GET instances", "/aggregated/instances"): self._list_instances,
            ("DELETE node", f"{zone}/instances/{name}"): self._delete_instance,
            ("GET instance", f"{zone}/instances/{name}"): self._instance,
            ("POST attach", f"{zone}/instances/{name}/attachDisk"): self._attach,
            ("POST end", f"{zone}/instances/{name}/setDiskAutoDelete"): self._auto_delete,
            ("GET operation", f"{zone}/operations/{name}"): self._operation,
        }

    def _settle(self) -> None:
        """Detach, or delete, the disks of instances that are gone."""
        for key, disk in list(self.disks.items()):
            if disk["users"] and disk["users"][0].rpartition("/")[2] not in self.machines:
                if disk.pop("autoDelete", False):
                    del self.disks[key]
                else:
                    disk["users"] = []
                    disk["lastDetachTimestamp"] = self._now()

    def _list(self, *, query: dict[str, str], body: Any) -> dict[str, Any]:
        wanted = re.fullmatch(r'labels\.([\w-]+) = "([^"]*)"', query["filter"])
        assert wanted is not None, query
        items: dict[str, Any] = {}
        for (zone, _), disk in self.disks.items():
            if disk["labels"].get(wanted[1]) == wanted[2]:
                items.setdefault(f"zones/{zone}", {"disks": []})["disks"].append(disk)
        return {"items": items or {"zones/us-east1-b": {"warning": {"code": "NO_RESULTS_ON_PAGE"}}}}

    def _make(self, zone: str, *, query: Any, body: dict[str, Any]) -> dict[str, Any]:
        if (zone, body["name"]) in self.disks:
            raise Refused(409, "alreadyExists", "it is there")
        if "make" not in self.fails:
            self.disks[zone, body["name"]] = {
                "name": body["name"],
                "zone": f"https://compute{ROOT}/zones/{zone}",
                "sizeGb": body["sizeGb"],
                "type": f"https://compute{ROOT}/{body['type']}",
                "labels": body["labels"],
                "status": "READY",
                "users": [],
                "creationTimestamp": self._now(),
            }
        return self._begin("make", zone)

    def _get(self, zone: str, name: str, *, query: Any, body: Any) -> dict[str, Any]:
        if (zone, name) not in self.disks:
            raise Refused(404, "notFound", f"no {name} in {zone}")
        return self.disks[zone, name]

    def _delete(self, zone: str, name: str, *, query: Any, body: Any) -> dict[str, Any]:
        if self._get(zone, name, query=query, body=body)["users"]:
            raise Refused(400, "resourceInUseByAnotherResource", "an instance uses it")
        if "delete" not in self.fails:
            del self.disks[zone, name]
        return self._begin("delete", zone)

    def _instance(self, zone: str, name: str, *, query: Any, body: Any) -> dict[str, Any]:
        found = self.machines.get(name)
        if found is None or not found["zone"].endswith(f"/{zone}"):
            raise Refused(404, "notFound", f"no {name} in {zone}")
        return {"name": name, "status": found["status"], "labels": found.get("labels", {})}

    def _list_instances(self, *, query: dict[str, str], body: Any) -> dict[str, Any]:
        labels = dict(re.findall(r'labels\.([\w-]+) = "([^"]*)"', query["filter"]))
        (status,) = re.findall(r'status = "(\w+)"', query["filter"])
        items: dict[str, Any] = {}
        for name, one in self.machines.items():
            if one["status"] == status and labels.items() <= one["labels"].items():
                zone = one["zone"].rpartition("/")[2]
                shown = {
                    "name": name,
                    "zone": one["zone"],
                    "labels": one["labels"],
                    "creationTimestamp": one["creationTimestamp"],
                    "lastStopTimestamp": one["lastStopTimestamp"],
                    "disks": [{"autoDelete": True, "diskSizeGb": "150"}],
                }
                items.setdefault(f"zones/{zone}", {"instances": []})["instances"].append(shown)
        return {"items": items}

    def _delete_instance(self, zone: str, name: str, *, query: Any, body: Any) -> dict[str, Any]:
        self._instance(zone, name, query=query, body=body)
        del self.machines[name]
        return self._begin("node", zone)

    def _attach(self, zone: str, name: str, *, query: Any, body: Any) -> dict[str, Any]:
        self._instance(zone, name, query=query, body=body)
        assert body["mode"] == "READ_WRITE", body
        disk = self._get(zone, body["source"].rpartition("/")[2], query=query, body=body)
        if disk["users"]:  # told by the operation
            return self._begin("attach", zone, fails="RESOURCE_IN_USE_BY_ANOTHER_RESOURCE")
        if "attach" not in self.fails:
            disk["users"] = [f"https://compute{ROOT}/zones/{zone}/instances/{name}"]
            disk["lastAttachTimestamp"] = self._now()
            disk["deviceName"] = body["deviceName"]
        return self._begin("attach", zone)

    def _auto_delete(
        self, zone: str, name: str, *, query: dict[str, str], body: Any
    ) -> dict[str, Any]:
        (disk,) = [
            one for one in self.disks.values() if one.get("deviceName") == query["deviceName"]
        ]
        disk["autoDelete"] = query["autoDelete"] == "true"
        return self._begin("end", zone)

    def _begin(self, what: str, zone: str, *, fails: str = "") -> dict[str, Any]:
        name = f"operation-{next(self._ids)}"
        code = fails or self.fails.get(what, "")
        error = {"error": {"errors": [{"code": code, "message": f"{what} failed"}]}} if code else {}
        self.operations[name] = {"name": name, "status": "DONE", "left": self.slow, **error}
        return {"name": name, "status": "RUNNING"}

    def _operation(self, zone: str, name: str, *, query: Any, body: Any) -> dict[str, Any]:
        found = self.operations[name]
        if found["left"]:
            found["left"] -= 1
            return {"name": name, "status": "RUNNING"}
        return {key: value for key, value in found.items() if key != "left"}

    def _now(self) -> str:
        return datetime.fromtimestamp(self.clock.now_s(), UTC).isoformat()


@contextmanager
def serving(compute: FakeCompute) -> Iterator[FakeCompute]:
    """Answer on a port of loopback until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        def _reply(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length) or b"{}")
            compute.tokens.add(self.headers.get("Authorization", ""))
            try:
                status, answer = 200, compute.answer(self.command, self.path, body)
            except Refused as exc:
                status = exc.status
                errors = [{"reason": exc.reason, "message": str(exc)}]
                answer = {"error": {"code": status, "message": str(exc), "errors": errors}}
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = _reply

        def log_message(self, *_: Any) -> None:
            """Nothing is printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    compute.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield compute
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)
