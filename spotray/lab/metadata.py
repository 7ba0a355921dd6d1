"""A metadata server on loopback that answers each node of the lab as EC2 would."""

from __future__ import annotations

import json
import logging
import secrets
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal, get_args
from urllib.parse import quote, unquote

from spotray.clock import Clock, SystemClock
from spotray.errors import LabError

log = logging.getLogger(__name__)

Misbehaviour = Literal["timeout", "garbage", "half-json", "500", "expired-token"]

_MAX_TTL_S = 21600
_TTL_HEADER = "X-aws-ec2-metadata-token-ttl-seconds"
_ACTION = "spot/instance-action"
_REBALANCE = "events/recommendations/rebalance"
_GARBAGE = b"\x00\xff<html>\xfe gateway \x80</html>"


@dataclass(frozen=True, kw_only=True)
class NodeMetadata:
    """What EC2 would say of a node that does not change."""

    instance_id: str
    instance_type: str
    zone: str  # "us-east-1a"
    region: str  # "us-east-1"
    life_cycle: str  # "spot" or "on-demand"


@dataclass
class _Node:
    metadata: NodeMetadata
    facts: dict[str, str] = field(default_factory=dict)  # path -> body, the changing ones
    tokens: dict[str, float] = field(default_factory=dict)  # token -> its end, Unix seconds
    misbehaviour: Misbehaviour | None = None
    released: threading.Event = field(default_factory=threading.Event)  # ends a "timeout"

    def bodies(self) -> dict[str, str]:
        fixed = self.metadata
        return self.facts | {
            "instance-id": fixed.instance_id,
            "instance-type": fixed.instance_type,
            "instance-life-cycle": fixed.life_cycle,
            "placement/availability-zone": fixed.zone,
            "placement/region": fixed.region,
        }


class MetadataServer:
    """EC2's metadata service for many nodes, each below its own path; threads are its own.

    A node that was not added, or was removed, gets 404 for everything.
    """

    def __init__(self, *, port: int = 0, clock: Clock | None = None) -> None:
        """Serve at once, on 127.0.0.1.

        Args:
            port: 0 takes a free one.
            clock: ages the tokens.

        Raises:
            LabError: the port is in use.
        """
        self._clock = clock or SystemClock()
        self._nodes: dict[str, _Node] = {}
        self._lock = threading.Lock()
        try:
            self._http = _Server(("127.0.0.1", port), _Handler)
        except OSError as exc:
            raise LabError(
                f"metadata server: port {port} cannot be had ({exc.strerror}): "
                "end what listens there, or give port 0"
            ) from exc
        self._http.metadata = self
        self.port = int(self._http.server_address[1])
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(0.05,), name="lab-metadata", daemon=True
        )
        self._thread.start()

    def __enter__(self) -> MetadataServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free the port and end the threads, also those of calls in progress; twice is fine."""
        with self._lock:
            for node in self._nodes.values():
                node.released.set()
            self._nodes.clear()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def url_for(self, node: str) -> str:
        """The endpoint that this node's agent is given."""
        return f"http://127.0.0.1:{self.port}/{quote(node, safe='')}"

    def add(self, node: str, metadata: NodeMetadata) -> None:
        """Begin to answer a node; one of that name starts afresh."""
        with self._lock:
            if old := self._nodes.get(node):
                old.released.set()
            self._nodes[node] = _Node(metadata)

    def remove(self, node: str) -> None:
        """Stop answering a node.

        Raises:
            LabError: no such node; so for all methods that name one.
        """
        with self._lock:
            self._find(node).released.set()
            del self._nodes[node]

    def notice(self, node: str, *, action: str = "terminate", at_s: float) -> None:
        """Announce a preemption at ``at_s``, Unix seconds; EC2 tells whole seconds."""
        body = json.dumps({"action": action, "time": _ec2_time(at_s)})
        self._set_fact(node, _ACTION, body)

    def cancel(self, node: str) -> None:
        """Take the notice back; without one, nothing changes."""
        self._set_fact(node, _ACTION, None)

    def rebalance(self, node: str, *, at_s: float) -> None:
        """Hint that the risk is higher since ``at_s``, Unix seconds."""
        body = json.dumps({"noticeTime": _ec2_time(at_s)})
        self._set_fact(node, _REBALANCE, body)

    def misbehave(self, node: str, how: Misbehaviour | None) -> None:
        """Answer a node badly from now on; None heals.

        ``timeout``: no answer until healed. ``garbage``: 200 with bytes that mean
        nothing. ``half-json``: the first half of notice or hint. ``500``: that, always.
        ``expired-token``: 401 to every token, however new.
        """
        if how is not None and how not in get_args(Misbehaviour):
            raise LabError(f"misbehaviour {how!r}: choose of {', '.join(get_args(Misbehaviour))}")
        with self._lock:
            found = self._find(node)
            found.released.set()
            found.misbehaviour, found.released = how, threading.Event()

    def _set_fact(self, node: str, path: str, body: str | None) -> None:
        with self._lock:
            facts = self._find(node).facts
            facts.pop(path, None)
            if body is not None:
                facts[path] = body

    def _find(self, node: str) -> _Node:
        if node not in self._nodes:
            known = ", ".join(sorted(self._nodes)) or "none"
            raise LabError(f"metadata server: no node {node!r}; there are: {known}")
        return self._nodes[node]

    # -- answers; each is (status, body, headers), None for a call left hanging ---

    def _answer(self, method: str, target: str, headers: Any) -> _Answer | None:
        name, _, path = target.lstrip("/").partition("/")
        with self._lock:
            node = self._nodes.get(unquote(name))
            if node is None:
                return 404, b"", {}
            how, released = node.misbehaviour, node.released
        if how == "timeout":
            released.wait()
            return None
        if how == "500":
            return 500, b"Internal Server Error", {}
        if how == "garbage":
            return 200, _GARBAGE, {}
        with self._lock:
            if method == "PUT":
                return self._new_token(node, path, headers)
            return self._fact(node, path, headers)

    def _new_token(self, node: _Node, path: str, headers: Any) -> _Answer:
        if path != "latest/api/token":
            return 405, b"", {}
        if headers.get("X-Forwarded-For") is not None:  # EC2 trusts no proxy
            return 403, b"", {}
        ttl = headers.get(_TTL_HEADER, "")
        if not ttl.isdecimal() or not 1 <= int(ttl) <= _MAX_TTL_S:
            return 400, b"", {}
        now_s = self._clock.now_s()
        token = secrets.token_urlsafe(42)
        node.tokens = {t: end_s for t, end_s in node.tokens.items() if end_s > now_s}
        node.tokens[token] = now_s + int(ttl)
        return 200, token.encode(), {_TTL_HEADER: ttl}

    def _fact(self, node: _Node, path: str, headers: Any) -> _Answer:
        end_s = node.tokens.get(headers.get("X-aws-ec2-metadata-token", ""))
        is_refused = node.misbehaviour == "expired-token"
        if end_s is None or end_s <= self._clock.now_s() or is_refused:
            return 401, b"Unauthorized", {}
        path = path.removeprefix("latest/meta-data/")
        body = node.bodies().get(path)
        if node.misbehaviour == "half-json" and path in (_ACTION, _REBALANCE):
            body = body or '{"action": "terminate"}'
            return 200, body.encode()[: len(body) // 2], {}
        return (404, b"", {}) if body is None else (200, body.encode(), {})


_Answer = tuple[int, bytes, dict[str, str]]


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # so that server_close waits for the calls in progress
    request_queue_size = 64
    metadata: MetadataServer


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "EC2ws"
    sys_version = ""
    timeout = 2.0  # a client that says nothing does not hold up close()

    def do_GET(self) -> None:
        self._reply("GET")

    def do_PUT(self) -> None:
        self._reply("PUT")

    def _reply(self, method: str) -> None:
        answer = self.server.metadata._answer(method, self.path, self.headers)
        if answer is None:
            return
        status, body, headers = answer
        try:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError as exc:
            log.debug("%s went away: %s", self.path, exc)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)


def _ec2_time(at_s: float) -> str:
    return datetime.fromtimestamp(int(at_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
