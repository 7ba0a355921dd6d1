"""What a launch policy may see, and nothing else: values, with the time among them."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from spotray.market.offer import Market


class Refusal(enum.StrEnum):
    """Why a market gave nothing; each is answered differently."""

    CAPACITY = "capacity"  # none here now
    QUOTA = "quota"  # the account's limit: the region's other zones say the same
    NOT_OFFERED = "not-offered"  # the zone does not sell this type
    NOT_PERMITTED = "not-permitted"  # these credentials may not
    THROTTLED = "throttled"  # too many calls, or the cloud has a bad minute
    CONFIG = "config"  # the node's own description is wrong
    UNKNOWN = "unknown"  # a word of the cloud that nobody here knows


@dataclass(frozen=True, kw_only=True)
class Fact:
    """Base of what is remembered. ``at_s``: when it happened, Unix seconds."""

    at_s: float


@dataclass(frozen=True, kw_only=True)
class Launched(Fact):
    """A market gave nodes. ``names``: the cloud's ids of them."""

    market: Market
    names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Refused(Fact):
    """A market gave none, or fewer than it was asked for."""

    market: Market
    kind: Refusal
    code: str = ""  # the cloud's own word
    node_type: str = ""  # whose node was asked for
    retry_after_s: float | None = None  # of a throttled call, if the cloud said


@dataclass(frozen=True, kw_only=True)
class Preempted(Fact):
    """The cloud took a node. Two observers may both tell of one ``name``."""

    market: Market
    name: str
    lived_s: float | None = None  # None: as long as the facts say


@dataclass(frozen=True, kw_only=True)
class Progressed(Fact):
    """The job on these nodes went on: preemptions before that are no loop."""


@dataclass(frozen=True, kw_only=True)
class SpotOnly(Fact):
    """Somebody probes for spot: no on-demand launch until ``until_s``."""

    until_s: float


@dataclass(frozen=True, kw_only=True)
class OnDemandFirst(Fact):
    """A job's deadline is near: the launcher asks on-demand before spot until ``until_s``."""

    until_s: float
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class LaunchView:
    """One question: where should these nodes come from, now?

    Args:
        now_s: the time, Unix seconds.
        wanted: nodes still missing, >= 1.
        candidates: the markets that the user allows, in the order of the config.
        node_type: their entry in the cluster's YAML.
        facts: what is remembered, by time.
        tried: markets that this very launch has asked already, in order; they are not
            asked again before the next one.
        head: whether the node is the cluster's head, whose loss is the cluster's end.
        asked_since_s: when the user last asked for this cluster. What the credentials or
            the YAML forbade before that may be cured.
    """

    now_s: float
    wanted: int
    candidates: tuple[Market, ...]
    node_type: str = ""
    facts: tuple[Fact, ...] = ()
    tried: tuple[Market, ...] = ()
    head: bool = False
    asked_since_s: float = -math.inf

    def __post_init__(self) -> None:
        if self.wanted < 1:
            raise ValueError(f"wanted is {self.wanted}: a launch is of at least one node")
        if not self.candidates:
            raise ValueError(f"no candidate market for {self.node_type or 'the node'}")
        if self.head and any(market.spot for market in self.candidates):
            raise ValueError("a head is never on spot: leave spot out of its candidates")

    @property
    def spot_only_until_s(self) -> float:
        """Until when no on-demand node may be launched; -inf if it may."""
        told = [fact for fact in self.facts if isinstance(fact, SpotOnly)]
        return told[-1].until_s if told else -math.inf  # the last word counts: it may be "over"

    @property
    def left(self) -> tuple[Market, ...]:
        """Candidates that this launch has not asked yet and may ask."""
        probing = self.spot_only_until_s > self.now_s and not self.head
        return tuple(
            market
            for market in self.candidates
            if market not in self.tried and (market.spot or not probing)
        )
