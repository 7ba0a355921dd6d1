"""The metadata service of EC2, version 2 only: who asks is known by its address."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ADDRESS = ("169.254.169.254", 80)


def serve(answers_to: Callable[[str], Mapping[str, str]]) -> ThreadingHTTPServer:
    """Serve on `ADDRESS`; ``answers_to``: the texts by path that a machine's address gets."""
    tokens: set[str] = set()

    class Requests(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            """Not a line for each poll."""

        def do_PUT(self) -> None:
            if self.path != "/latest/api/token":
                return self._send(404)
            tokens.add(token := uuid.uuid4().hex)
            self._send(200, token)

        def do_GET(self) -> None:
            if self.headers.get("X-aws-ec2-metadata-token") not in tokens:
                return self._send(401)
            text = answers_to(self.client_address[0]).get(self.path.rstrip("/"))
            self._send(404) if text is None else self._send(200, text)

        def _send(self, status: int, text: str = "") -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(ADDRESS, Requests)
    threading.Thread(target=server.serve_forever, name="imds", daemon=True).start()
    return server


def answers(
    instance: Any, *, profile: str | None, deadline_s: float | None, hint_s: float | None
) -> dict[str, str]:
    """What one instance is told: of itself, its role, and what comes upon it."""
    meta = "/latest/meta-data"
    spot = instance.lifecycle == "spot"
    told = {
        f"{meta}/instance-id": instance.id,
        f"{meta}/local-ipv4": instance.private_ip,
        f"{meta}/public-ipv4": instance.public_ip or "",
        f"{meta}/instance-type": instance.instance_type,
        f"{meta}/instance-life-cycle": "spot" if spot else "on-demand",
        f"{meta}/placement/availability-zone": instance.placement.zone,
        f"{meta}/placement/region": instance.placement.zone[:-1],
    }
    if deadline_s is not None:
        action = {"action": "terminate", "time": _stamp(deadline_s)}
        told[f"{meta}/spot/instance-action"] = json.dumps(action)
        told[f"{meta}/spot/termination-time"] = _stamp(deadline_s)
    if hint_s is not None:
        hint = json.dumps({"noticeTime": _stamp(hint_s)})
        told[f"{meta}/events/recommendations/rebalance"] = hint
    if profile:
        told[f"{meta}/iam/security-credentials"] = profile
        told[f"{meta}/iam/security-credentials/{profile}"] = json.dumps(
            {
                "Code": "Success",
                "Type": "AWS-HMAC",
                "AccessKeyId": "ASIA" + "X" * 16,
                "SecretAccessKey": "s" * 40,
                "Token": "t",
                "LastUpdated": _stamp(datetime.now(UTC).timestamp()),
                "Expiration": _stamp((datetime.now(UTC) + timedelta(hours=6)).timestamp()),
            }
        )
    return told


def _stamp(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
