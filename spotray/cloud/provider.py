"""What the cloud adapters have in common: values and protocols, no SDK."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

PREEMPTION, MAINTENANCE = "preemption", "maintenance"  # the causes of notices


@dataclass(frozen=True, kw_only=True)
class Notice:
    """Advance warning that the node that asked will be lost.

    ``cause``: a preemption, or maintenance, after which the cloud starts the same machine
    again, whatever its market: that says nothing about how often the market takes nodes.
    """

    deadline_s: float | None  # Unix seconds; None if the cloud named none
    cause: str = PREEMPTION
    source: str = ""  # "aws/instance-action"


@dataclass(frozen=True, kw_only=True)
class NodeOutlook:
    """What the cloud says about this node's future, at one time."""

    notice: Notice | None = None  # set: the node will be taken
    rebalance_hint: bool = False  # the risk is higher; never a notice


class NoticeSource(Protocol):
    """Asks the cloud about the node that this process runs on."""

    poll_s: float  # how long to wait between two questions, seconds

    def outlook(self) -> NodeOutlook:
        """What the cloud says now.

        Raises:
            MetadataError: no usable answer; the caller asks again later.
        """
        ...

    def is_spot(self) -> bool:
        """Whether this node is a spot node.

        Raises:
            MetadataError: no usable answer; the caller asks again later.
        """
        ...
