"""A server on loopback that answers as a cloud's API is documented to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One request."""

    method: str
    path: str  # with its query
    headers: dict[str, str]
    body: str


Answer = tuple[int, str, dict[str, str]]  # status, body, headers


@dataclass
class Api:
    """Where the server is, and what it was asked."""

    url: str
    asked: list[Asked] = field(default_factory=list)


@contextmanager
def api(answer: Callable[[Asked], Answer]) -> Iterator[Api]:
    """A server that says what ``answer`` says."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            one = Asked(
                method=self.command,
                path=self.path,
                headers=dict(self.headers.items()),
                body=self.rfile.read(length).decode(),
            )
            found.asked.append(one)
            status, text, headers = answer(one)
            body = text.encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = _serve

        def log_message(self, *args: Any) -> None:
            """Tests want to read their own output."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found = Api(url=f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
