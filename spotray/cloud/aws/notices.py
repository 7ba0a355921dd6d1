"""Notices of Amazon EC2, from the instance metadata service; standard library only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from spotray.clock import Clock, SystemClock
from spotray.cloud.metadata_http import WORD, MetadataHttp, json_object, sane_s, shown
from spotray.cloud.provider import NodeOutlook, Notice
from spotray.errors import ConfigError, MetadataError

ENDPOINT = "http://169.254.169.254"
SOURCE = "aws/instance-action"

_TOKEN_TTL_S = 21600  # the longest that EC2 gives
_TOKEN_MARGIN_S = 60.0  # renewed this long before its end, or at half of a short life
_LIFE_CYCLES = frozenset(
    {"on-demand", "spot", "scheduled", "capacity-block", "interruptible-capacity-reservation"}
)


@dataclass(frozen=True, kw_only=True)
class NodeIdentity:
    """What EC2 calls this node, in its own words."""

    instance_id: str
    instance_type: str
    zone: str  # the account's name for it, "us-east-1a"
    region: str


class AwsNotices:
    """Asks EC2's metadata service (IMDSv2) about the node that this process runs on.

    Every way in which the service can fail is one error, `MetadataError`, which names
    the URL and what came. For one thread at a time.
    """

    def __init__(
        self,
        endpoint: str = ENDPOINT,
        *,
        timeout_s: float = 2.0,
        poll_s: float = 5.0,
        clock: Clock | None = None,
    ) -> None:
        """Nothing is asked yet.

        Args:
            endpoint: where the service is; may carry a path before ``latest/``.
            timeout_s: longest silence that is waited for, seconds, > 0.
            poll_s: how often to ask, seconds, > 0; EC2 advises every 5.
            clock: ages the token and tells absurd times.

        Raises:
            ConfigError: the endpoint is no http URL, or a time is not positive.
        """
        if poll_s <= 0:
            raise ConfigError(f"poll_s {poll_s} must be above 0")
        self._http = MetadataHttp(endpoint, "latest/", timeout_s=timeout_s)
        self.poll_s = poll_s
        self._base = self._http.base
        self._clock = clock or SystemClock()
        self._token: str | None = None
        self._renew_at_s = 0.0

    def outlook(self) -> NodeOutlook:
        """Notice and rebalance hint; the hint is not asked for once there is a notice.

        Raises:
            MetadataError: no usable answer.
        """
        path = "meta-data/spot/instance-action"
        if (body := self._get(path)) is not None:
            url, now_s = self._base + path, self._clock.now_s()
            return NodeOutlook(notice=parse_instance_action(body, url=url, now_s=now_s))
        path = "meta-data/events/recommendations/rebalance"
        if (body := self._get(path)) is None:
            return NodeOutlook()
        url = self._base + path
        _unix_s(json_object(body, url).get("noticeTime"), url, self._clock.now_s())
        return NodeOutlook(rebalance_hint=True)

    def is_spot(self) -> bool:
        """Whether EC2 sold this node as spot.

        Raises:
            MetadataError: no usable answer, or a word that is no purchase kind.
        """
        word = self._word("meta-data/instance-life-cycle")
        if word not in _LIFE_CYCLES:
            raise MetadataError(
                f"{self._base}meta-data/instance-life-cycle: {word!r} is no life cycle of EC2"
            )
        return word == "spot"

    def identity(self) -> NodeIdentity:
        """Instance id, type and place of this node.

        Raises:
            MetadataError: no usable answer.
        """
        return NodeIdentity(
            instance_id=self._word("meta-data/instance-id"),
            instance_type=self._word("meta-data/instance-type"),
            zone=self._word("meta-data/placement/availability-zone"),
            region=self._word("meta-data/placement/region"),
        )

    def _word(self, path: str) -> str:
        body = self._get(path)
        if body is None:
            raise MetadataError(f"{self._base}{path}: 404, but every instance of EC2 has it")
        word = body.decode("ascii", "replace").strip()
        if not WORD.fullmatch(word):
            raise MetadataError(f"{self._base}{path}: {shown(body)} is not one word")
        return word

    def _get(self, path: str) -> bytes | None:
        """The body, or None where EC2 answers 404: there is no such fact now."""
        token, is_fresh = self._current_token()
        status, body = self._get_with(path, token)
        if status == 401 and not is_fresh:  # the service forgot it: it was restarted
            self._token = None
            token, _ = self._current_token()
            status, body = self._get_with(path, token)
        if status == 401:
            self._token = None
        if status == 404:
            return None
        if status != 200:
            raise MetadataError(f"{self._base}{path}: HTTP {status}: {shown(body)}")
        return body

    def _get_with(self, path: str, token: str) -> tuple[int, bytes]:
        status, body, _ = self._http.ask("GET", path, {"X-aws-ec2-metadata-token": token})
        return status, body

    def _current_token(self) -> tuple[str, bool]:
        """A token and whether it was made just now."""
        now_s = self._clock.now_s()
        if self._token is not None and now_s < self._renew_at_s:
            return self._token, False
        header = "X-aws-ec2-metadata-token-ttl-seconds"
        status, body, headers = self._http.ask("PUT", "api/token", {header: str(_TOKEN_TTL_S)})
        url = f"{self._base}api/token"
        if status != 200:
            raise MetadataError(f"{url}: HTTP {status}: {shown(body)}")
        try:
            token = body.decode("ascii").strip()
            ttl_s = float(headers.get(header, _TOKEN_TTL_S))
        except ValueError as exc:
            raise MetadataError(f"{url}: no token in {shown(body)}") from exc
        if not re.fullmatch(r"[!-~]+", token):
            raise MetadataError(f"{url}: no token in {shown(body)}")
        self._token = token
        self._renew_at_s = now_s + max(ttl_s / 2, ttl_s - _TOKEN_MARGIN_S)
        return token, True


def parse_instance_action(body: bytes, *, url: str, now_s: float) -> Notice:
    """The notice in the body of ``spot/instance-action``.

    A hibernation starts at once: EC2 gives it no two minutes, and may give no time.

    Args:
        body: as it came.
        url: where it came from, for the message.
        now_s: Unix seconds; a time more than a day away is not believed.

    Raises:
        MetadataError: not such a body.
    """
    fields = json_object(body, url)
    action = fields.get("action")
    if not isinstance(action, str) or not WORD.fullmatch(action):
        raise MetadataError(f"{url}: no action in {shown(body)}")
    # An action that EC2 may add one day is still a notice: the node will be taken.
    if action == "hibernate" and "time" not in fields:
        return Notice(deadline_s=None, source=SOURCE)
    return Notice(deadline_s=_unix_s(fields.get("time"), url, now_s), source=SOURCE)


def _unix_s(text: object, url: str, now_s: float) -> float:
    """Unix seconds of a time such as ``2017-09-18T08:22:00Z``."""
    try:
        when = datetime.fromisoformat(text if isinstance(text, str) else "")
        if when.tzinfo is None:
            raise ValueError("no time zone")
        at_s = when.timestamp()
    except (ValueError, OverflowError) as exc:
        raise MetadataError(f"{url}: {str(text)[:80]!r} is not a time") from exc
    return sane_s(at_s, text, url=url, now_s=now_s)
