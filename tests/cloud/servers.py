"""The metadata servers of Google and Azure on loopback, as far as notices go."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit


class Server:
    """A server of one machine; ``answers`` has what it says at each path, to be changed."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes] = {}
        self.asked: list[str] = []  # path with its query
        self.changed = threading.Condition()
        self._silent = threading.Event()
        self._released = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.asked.append(self.path)
                if outer._silent.is_set():
                    outer._released.wait()
                    self.close_connection = True
                    return
                status, body, headers = outer.answer(self.path, dict(self.headers.items()))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                """Tests want to read their own output."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._released.set()
        with self.changed:
            self.changed.notify_all()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def say(self, path: str, body: bytes) -> None:
        """Answer so from now on."""
        with self.changed:
            self.answers[path] = body
            self.changed.notify_all()

    def fall_silent(self) -> None:
        self._released.clear()
        self._silent.set()

    def heal(self) -> None:
        self._silent.clear()
        self._released.set()

    def answer(self, path: str, headers: dict[str, str]) -> tuple[int, bytes, dict[str, str]]:
        raise NotImplementedError


class GcpServer(Server):
    """Answers what changes when it changes, if asked to wait."""

    def __init__(self, *, spot: bool = True) -> None:
        super().__init__()
        self.answers = {
            "instance/preempted": b"FALSE",
            "instance/scheduling/preemptible": b"TRUE" if spot else b"FALSE",
            "instance/id": b"4520031799277581759",
            "instance/name": b"ray-worker-1",
            "instance/machine-type": b"projects/7/machineTypes/g2-standard-4",
            "instance/zone": b"projects/7/zones/us-central1-a",
        }
        self.flavor = "Google"

    def preempt(self) -> None:
        self.say("instance/preempted", b"TRUE")

    def answer(self, path: str, headers: dict[str, str]) -> tuple[int, bytes, dict[str, str]]:
        if headers.get("Metadata-Flavor") != "Google":
            return 403, b"Missing Metadata-Flavor:Google header.", {}
        parts = urlsplit(path)
        name = parts.path.removeprefix("/computeMetadata/v1/")
        keys = parse_qs(parts.query)
        with self.changed:
            if keys.get("wait_for_change") == ["true"]:
                (etag,), (wait_s,) = keys["last_etag"], keys["timeout_sec"]
                self.changed.wait_for(lambda: _etag(self.answers[name]) != etag, float(wait_s))
            body = self.answers.get(name)
        if body is None:
            return 404, b"not found", {}
        return 200, body, {"Metadata-Flavor": self.flavor, "ETag": _etag(body)}


class AzureServer(Server):
    """Tells the scheduled events of a set of machines."""

    def __init__(self, *, spot: bool = True) -> None:
        super().__init__()
        self.answers = {
            "instance/compute/name": b"worker_1",
            "instance/compute/priority": b"Spot" if spot else b"Regular",
            "instance/compute/vmId": b"13f56399-bd52-4150-9748-7190aae1ff21",
            "instance/compute/vmSize": b"Standard_NC4as_T4_v3",
            "instance/compute/location": b"eastus",
            "instance/compute/zone": b"",
        }
        self.schedule()

    def schedule(self, *events: dict[str, Any]) -> None:
        told = {"DocumentIncarnation": 1, "Events": list(events)}
        self.say("scheduledevents", json.dumps(told).encode())

    def answer(self, path: str, headers: dict[str, str]) -> tuple[int, bytes, dict[str, str]]:
        parts = urlsplit(path)
        if headers.get("Metadata") != "true" or "api-version" not in parse_qs(parts.query):
            return 400, b'{"error": "Bad request"}', {}
        body = self.answers.get(parts.path.removeprefix("/metadata/"))
        return (404, b"not found", {}) if body is None else (200, body, {})


def azure_event(at_s: float, **more: Any) -> dict[str, Any]:
    """A preemption of the server's machine at that time, Unix seconds."""
    when = datetime.fromtimestamp(at_s, UTC)
    return {
        "EventId": "602d9444-d2cd-49c7-8624-8643e7171297",
        "EventType": "Preempt",
        "ResourceType": "VirtualMachine",
        "Resources": ["worker_0", "worker_1"],
        "EventStatus": "Scheduled",
        "NotBefore": format_datetime(when, usegmt=True),
        "EventSource": "Platform",
        **more,
    }


def _etag(body: bytes) -> str:
    return body.hex()
