"""How the metadata services of all clouds are asked; standard library only."""

from __future__ import annotations

import http.client
import json
import re
import urllib.request
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

from spotray.errors import ConfigError, MetadataError

_MAX_BYTES = 64 * 1024
_SANE_S = 24 * 3600.0
WORD = re.compile(r"[a-z0-9][a-z0-9.-]*")


class MetadataHttp:
    """One service on plain HTTP. For one thread at a time.

    Proxies of the environment are not used and redirects not followed: the answer is this
    machine's or nobody's.
    """

    def __init__(self, endpoint: str, path: str, *, timeout_s: float) -> None:
        """Nothing is asked yet.

        Args:
            endpoint: where the service is; may carry a path of its own.
            path: what comes before all paths that are asked, "latest/".
            timeout_s: longest silence that is waited for, seconds, > 0.

        Raises:
            ConfigError: the endpoint is no http URL, or the time is not positive.
        """
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigError(f"metadata endpoint {endpoint!r}: write http://HOST[:PORT][/PATH]")
        if timeout_s <= 0:
            raise ConfigError(f"timeout_s {timeout_s} must be above 0")
        self.base = endpoint.rstrip("/") + "/" + path
        self.timeout_s = timeout_s
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects())

    def ask(
        self, method: str, path: str, headers: dict[str, str], *, timeout_s: float | None = None
    ) -> tuple[int, bytes, http.client.HTTPMessage]:
        """Status, body and headers of the answer, whatever its status.

        Raises:
            MetadataError: no whole answer; names the URL and what came.
        """
        url = self.base + path
        request = urllib.request.Request(url, method=method, headers=headers)
        try:
            try:
                response = self._opener.open(request, timeout=timeout_s or self.timeout_s)
            except HTTPError as exc:  # an answer too, with its body
                response = exc
            with response:
                body = response.read(_MAX_BYTES)
                if getattr(response, "length", None) or response.read(1):
                    raise MetadataError(f"{url}: cut off or too long: {shown(body)}")
                return int(response.status), body, response.headers
        except (OSError, http.client.HTTPException, ValueError) as exc:
            raise MetadataError(f"{url}: {type(exc).__name__}: {exc}") from exc


def json_object(body: bytes, url: str) -> dict[str, Any]:
    """A body that is a JSON object.

    Raises:
        MetadataError: it is none.
    """
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise MetadataError(f"{url}: not JSON: {shown(body)}") from exc
    if not isinstance(value, dict):
        raise MetadataError(f"{url}: not a JSON object: {shown(body)}")
    return value


def sane_s(at_s: float, text: object, *, url: str, now_s: float) -> float:
    """The time of a notice, Unix seconds, as it was given.

    Args:
        at_s: the time.
        text: how it was written, for the message.
        url: where it came from, for the message.
        now_s: Unix seconds.

    Raises:
        MetadataError: it is more than a day from now.
    """
    if abs(at_s - now_s) > _SANE_S:
        raise MetadataError(
            f"{url}: {text!r} is {(at_s - now_s) / 3600:.0f} h from now: not a time of a notice; "
            "if it is right, correct this machine's clock"
        )
    return at_s


def shown(body: bytes) -> str:
    """The beginning of a body, for a message."""
    return repr(body[:80])


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None
