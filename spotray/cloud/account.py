"""What an account has and may, in plain values: asked before anything is rented.

Nothing that is asked here changes the account, save a probe of a bucket, which says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class TypeOffer:
    """An instance type as a zone offers it."""

    cpus: int
    gpus: int
    architectures: tuple[str, ...] = ()  # "x86_64", "arm64"; empty: not told


@dataclass(frozen=True, kw_only=True)
class Image:
    """A machine image."""

    words: str  # name, description and owner: what tells whether it has a driver
    architecture: str = ""
    flaw: str = ""  # why nothing can be launched from it


@dataclass(frozen=True, kw_only=True)
class Limit:
    """How much of something this account may use in a region at a time."""

    name: str  # as the cloud's console has it
    limit: float
    used: float  # by others than the cluster that is asked about
    per_node: float  # what one node takes
    unit: str  # "vCPUs"

    @property
    def fits(self) -> int:
        """Nodes that it leaves room for.

        >>> Limit(name="G", limit=8, used=2, per_node=4, unit="vCPUs").fits
        1
        """
        return max(0, math.floor((self.limit - self.used) / self.per_node))


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """A bucket that is there."""

    place: str  # a region, or "us" and the like for one of several


@dataclass(frozen=True, kw_only=True)
class RunningNode:
    """A machine of a cluster of that name, as its tags tell."""

    name: str  # instance id
    node_type: str  # its entry in the YAML that it came from
    is_head: bool
    facts: Mapping[str, str] = field(default_factory=dict)  # "InstanceType" -> "g5.xlarge"


class Account(Protocol):
    """Answers questions about what a cluster needs.

    Every method but the first raises `NotAnswered` when the cloud gives no answer.
    """

    def who(self) -> str:
        """The cloud's name for whose credentials these are.

        Raises:
            ConfigError: there are none, or the cloud does not take them.
        """
        ...

    def zones(self) -> Mapping[str, bool]:
        """The region's zones, and whether each is up. Empty: no such region."""
        ...

    def offers(
        self, types: Iterable[str], zones: Sequence[str]
    ) -> Mapping[tuple[str, str], TypeOffer]:
        """Which types which zones have: what is not in it is not offered."""
        ...

    def image(self, reference: str) -> Image | None:
        """An image as a config names it; None if there is none."""
        ...

    def limits(self, instance_type: str, offer: TypeOffer, *, spot: bool) -> Sequence[Limit]:
        """The quotas that a node of that type counts against."""
        ...

    def bucket(self, name: str) -> Bucket | None:
        """A bucket; None if there is none.

        Raises:
            NotPermittedError: it is there, and these credentials may not look at it.
        """
        ...

    def probe(self, bucket: str, key: str) -> None:
        """Write a small object, and delete it again.

        Raises:
            NotPermittedError: these credentials may not.
        """
        ...

    def nodes_of(self, cluster_name: str) -> Sequence[RunningNode]:
        """The machines of a cluster that run or are about to."""
        ...
