"""Notices of Google Compute Engine, from its metadata server; standard library only."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from urllib.parse import urlencode

from spotray.clock import Clock, SystemClock
from spotray.cloud.metadata_http import MetadataHttp, shown
from spotray.cloud.provider import MAINTENANCE, NodeOutlook, Notice
from spotray.errors import ConfigError, MetadataError

ENDPOINT = "http://metadata.google.internal"
SOURCE = "gcp/preempted"
NOTICE_S = 30.0  # from the first word to the machine's end, as Google says; best effort
MAINTENANCE_SOURCE = "gcp/maintenance-event"
MAINTENANCE_S = 3600.0  # the same before the maintenance of a host with GPUs

_FLAVOR = "Metadata-Flavor"
_GRACE_S = 5.0  # beyond what the server was asked to wait for
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]*")


class _NotFound(MetadataError):
    """The server has no such path."""


@dataclass(frozen=True, kw_only=True)
class NodeIdentity:
    """What Compute Engine calls this node, in its own words."""

    instance_id: str  # a number
    name: str
    machine_type: str
    zone: str


class GcpNotices:
    """Asks Compute Engine's metadata server about the node that this process runs on.

    The server answers a question about ``preempted`` when the value changes: so a notice is
    heard at once, though there is no more than one question in ``wait_s``. It says
    no time; the 30 seconds are counted from when it was heard. A preemption is never taken
    back.

    A notice is also ``TERMINATE_ON_HOST_MAINTENANCE``: a machine with a GPU cannot move to
    another host, is stopped an hour later and started again, unless it is spot. One that
    moves while it runs (``MIGRATE_ON_HOST_MAINTENANCE``) loses nothing.

    Every way in which the server can fail is one error, `MetadataError`, which names the
    URL and what came. For one thread at a time.
    """

    def __init__(
        self,
        endpoint: str = ENDPOINT,
        *,
        timeout_s: float = 2.0,
        poll_s: float = 1.0,
        wait_s: float = 20.0,
        clock: Clock | None = None,
    ) -> None:
        """Nothing is asked yet.

        Args:
            endpoint: where the server is; may carry a path before ``computeMetadata/``.
            timeout_s: longest silence that is waited for, seconds, > 0.
            poll_s: how long to rest between two questions, seconds, > 0.
            wait_s: for how long the server may keep a question, whole seconds; 0: not at all.
            clock: dates a notice.

        Raises:
            ConfigError: the endpoint is no http URL, or a time is out of range.
        """
        if poll_s <= 0 or wait_s < 0:
            raise ConfigError(f"poll_s {poll_s} must be above 0, and wait_s {wait_s} not below")
        self.poll_s = poll_s
        self._wait_s = math.floor(wait_s)
        self._clock = clock or SystemClock()
        self._http = MetadataHttp(endpoint, "computeMetadata/v1/", timeout_s=timeout_s)
        self._etag = ""  # of the last answer about `preempted`
        self._heard_at_s: float | None = None
        self._maintenance_at_s: float | None = None  # when that was first heard of

    def outlook(self) -> NodeOutlook:
        """The notice if there is one; without, an answer may take ``wait_s`` seconds.

        Raises:
            MetadataError: no usable answer.
        """
        etag, self._etag = self._etag, ""  # after a failure the next question is a plain one
        asked, wait_s = "instance/preempted", 0
        if etag and self._wait_s and self._heard_at_s is None:
            wait_s = self._wait_s
            keys = {"wait_for_change": "true", "timeout_sec": wait_s, "last_etag": etag}
            asked += "?" + urlencode(keys)
        body, etag = self._get(asked, wait_s=wait_s)
        if not _truth(body, self._http.base + asked):
            self._etag, self._heard_at_s = etag, None
            return NodeOutlook(notice=self._maintenance())
        if self._heard_at_s is None:
            self._heard_at_s = self._clock.now_s()
        self._etag = etag
        deadline_s = self._heard_at_s + NOTICE_S
        return NodeOutlook(notice=Notice(deadline_s=deadline_s, source=SOURCE))

    def _maintenance(self) -> Notice | None:
        path = "instance/maintenance-event"
        try:
            word = self._get(path)[0].strip()
        except _NotFound:  # older servers, and those that stand in for one
            word = b"NONE"
        if word not in (b"NONE", b"MIGRATE_ON_HOST_MAINTENANCE", b"TERMINATE_ON_HOST_MAINTENANCE"):
            raise MetadataError(f"{self._http.base}{path}: {shown(word)} is no such event")
        if not word.startswith(b"TERMINATE"):
            self._maintenance_at_s = None
            return None
        if self._maintenance_at_s is None:
            self._maintenance_at_s = self._clock.now_s()
        return Notice(
            deadline_s=self._maintenance_at_s + MAINTENANCE_S,
            cause=MAINTENANCE,
            source=MAINTENANCE_SOURCE,
        )

    def is_spot(self) -> bool:
        """Whether this node is Spot, or preemptible of the older kind.

        Raises:
            MetadataError: no usable answer.
        """
        path = "instance/scheduling/preemptible"
        return _truth(self._get(path)[0], self._http.base + path)

    def identity(self) -> NodeIdentity:
        """Number, name, machine type and place of this node.

        Raises:
            MetadataError: no usable answer.
        """
        return NodeIdentity(
            instance_id=self._name("instance/id"),
            name=self._name("instance/name"),
            machine_type=self._name("instance/machine-type").rpartition("/")[2],
            zone=self._name("instance/zone").rpartition("/")[2],
        )

    def _name(self, path: str) -> str:
        body, _ = self._get(path)
        text = body.decode("ascii", "replace").strip()
        if not _NAME.fullmatch(text):
            raise MetadataError(f"{self._http.base}{path}: {shown(body)} is not a name")
        return text

    def _get(self, path: str, *, wait_s: int = 0) -> tuple[bytes, str]:
        """Body and etag."""
        timeout_s = wait_s + _GRACE_S if wait_s else None
        status, body, headers = self._http.ask(
            "GET", path, {_FLAVOR: "Google"}, timeout_s=timeout_s
        )
        if status != 200:
            error = _NotFound if status == 404 else MetadataError
            raise error(f"{self._http.base}{path}: HTTP {status}: {shown(body)}")
        if headers.get(_FLAVOR) != "Google":
            raise MetadataError(f"{self._http.base}{path}: the answer is not of Google's server")
        return body, headers.get("ETag", "")


def _truth(body: bytes, url: str) -> bool:
    word = body.strip()
    if word not in (b"TRUE", b"FALSE"):
        raise MetadataError(f"{url}: {shown(body)} is neither TRUE nor FALSE")
    return word == b"TRUE"
