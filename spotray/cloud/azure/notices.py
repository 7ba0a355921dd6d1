"""Notices of Azure, from its instance metadata service; standard library only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlencode

from spotray.clock import Clock, SystemClock
from spotray.cloud.metadata_http import MetadataHttp, json_object, sane_s, shown
from spotray.cloud.provider import MAINTENANCE, PREEMPTION, NodeOutlook, Notice
from spotray.errors import ConfigError, MetadataError

ENDPOINT = "http://169.254.169.254"
SOURCE = "azure/scheduled-events"

_EVENTS_VERSION, _INSTANCE_VERSION = "2020-07-01", "2021-02-01"
_CAUSES = {"Preempt": PREEMPTION, "Reboot": MAINTENANCE, "Redeploy": MAINTENANCE}
_FIRST_S = 130.0  # the first question about events switches them on, in up to two minutes
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.()-]*")


@dataclass(frozen=True, kw_only=True)
class NodeIdentity:
    """What Azure calls this node, in its own words."""

    vm_id: str
    name: str
    vm_size: str
    location: str
    zone: str  # "1"; empty where the location has none


class AzureNotices:
    """Asks Azure's metadata service about the node that this process runs on.

    A notice is a scheduled event that names this machine and ends what runs on it:
    ``Preempt``, or maintenance (``Reboot``, ``Redeploy``), after which the machine comes back.
    Azure may take it back. All other events are none: a ``Freeze`` lasts seconds, and a
    ``Terminate`` is somebody's own call.

    Every way in which the service can fail is one error, `MetadataError`, which names
    the URL and what came. For one thread at a time.
    """

    def __init__(
        self,
        endpoint: str = ENDPOINT,
        *,
        timeout_s: float = 5.0,
        first_timeout_s: float = _FIRST_S,
        poll_s: float = 1.0,
        clock: Clock | None = None,
    ) -> None:
        """Nothing is asked yet.

        Args:
            endpoint: where the service is; may carry a path before ``metadata/``.
            timeout_s: longest silence that is waited for, seconds, > 0.
            first_timeout_s: the same for the first question about events.
            poll_s: how often to ask, seconds, > 0; Azure advises every second.
            clock: tells absurd times.

        Raises:
            ConfigError: the endpoint is no http URL, or a time is not positive.
        """
        if poll_s <= 0 or first_timeout_s <= 0:
            raise ConfigError(
                f"poll_s {poll_s} and first_timeout_s {first_timeout_s} must be above 0"
            )
        self.poll_s = poll_s
        self._first_timeout_s: float | None = first_timeout_s
        self._clock = clock or SystemClock()
        self._http = MetadataHttp(endpoint, "metadata/", timeout_s=timeout_s)
        self._machine = ""

    def outlook(self) -> NodeOutlook:
        """The earliest loss of this machine that is scheduled.

        Raises:
            MetadataError: no usable answer.
        """
        name = self._machine = self._machine or self._name("name")
        path = "scheduledevents?" + urlencode({"api-version": _EVENTS_VERSION})
        body = self._get(path, timeout_s=self._first_timeout_s)
        self._first_timeout_s = None
        notices = parse_events(
            body, machine=name, url=self._http.base + path, now_s=self._clock.now_s()
        )
        # One that has started has no time any more: nothing is earlier. Of two at a time the
        # preemption counts: after it nothing comes back.
        first = min(
            notices,
            key=lambda notice: (notice.deadline_s or 0.0, notice.cause != PREEMPTION),
            default=None,
        )
        return NodeOutlook(notice=first)

    def is_spot(self) -> bool:
        """Whether this node has spot priority.

        Raises:
            MetadataError: no usable answer, or a word that is no priority.
        """
        word = self._text("priority")
        if word not in ("Spot", "Low", "Regular", ""):
            raise MetadataError(f"{self._http.base}instance/compute: {word!r} is no priority")
        return word in ("Spot", "Low")  # Low: the older name, of scale sets

    def identity(self) -> NodeIdentity:
        """Id, name, size and place of this node.

        Raises:
            MetadataError: no usable answer.
        """
        return NodeIdentity(
            vm_id=self._name("vmId"),
            name=self._name("name"),
            vm_size=self._name("vmSize"),
            location=self._name("location"),
            zone=self._text("zone"),
        )

    def _name(self, what: str) -> str:
        text = self._text(what)
        if not _NAME.fullmatch(text):
            raise MetadataError(f"{self._http.base}instance/compute/{what}: {text!r} is no name")
        return text

    def _text(self, what: str) -> str:
        keys = {"api-version": _INSTANCE_VERSION, "format": "text"}
        return self._get(f"instance/compute/{what}?{urlencode(keys)}").decode("ascii", "replace")

    def _get(self, path: str, *, timeout_s: float | None = None) -> bytes:
        status, body, _ = self._http.ask("GET", path, {"Metadata": "true"}, timeout_s=timeout_s)
        if status != 200:
            raise MetadataError(f"{self._http.base}{path}: HTTP {status}: {shown(body)}")
        return body


def parse_events(body: bytes, *, machine: str, url: str, now_s: float) -> list[Notice]:
    """The announced losses of a machine in the body of ``scheduledevents``.

    Args:
        body: as it came.
        machine: its name; the events of a whole set of machines are told to each.
        url: where it came from, for the message.
        now_s: Unix seconds; a time more than a day away is not believed.

    Raises:
        MetadataError: not such a body.
    """
    events = json_object(body, url).get("Events")
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise MetadataError(f"{url}: no list of events in {shown(body)}")
    return [
        Notice(
            deadline_s=_deadline_s(event, url, now_s),
            cause=_CAUSES[event["EventType"]],
            source=SOURCE,
        )
        for event in events
        if str(event.get("EventType")) in _CAUSES and _names(event, machine, url)
    ]


def _names(event: Mapping[str, Any], machine: str, url: str) -> bool:
    resources = event.get("Resources")
    if not isinstance(resources, list):
        raise MetadataError(f"{url}: an event without resources: {str(event)[:80]}")
    # In a scale set a machine is "set_3" here and in its own name.
    return machine.lower() in (str(one).lower() for one in resources)


def _deadline_s(event: Mapping[str, Any], url: str, now_s: float) -> float | None:
    """Unix seconds of a time such as ``Mon, 19 Sep 2016 18:29:47 GMT``; None once it began."""
    text = event.get("NotBefore")
    if text in (None, "") and event.get("EventStatus") == "Started":
        return None
    try:
        at_s = parsedate_to_datetime(text if isinstance(text, str) else "").timestamp()
    except (ValueError, OverflowError, IndexError, TypeError) as exc:
        raise MetadataError(f"{url}: {str(text)[:80]!r} is not a time") from exc
    return sane_s(at_s, text, url=url, now_s=now_s)
