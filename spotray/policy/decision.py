"""What a launch policy answers, and the protocol that every policy fits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from spotray.market.offer import Market
from spotray.policy.view import LaunchView


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One market to ask. ``why``: one line, for the journal and the user."""

    market: Market
    why: str

    def __post_init__(self) -> None:
        _check_why(self.why)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Ask these markets in this order until all wanted nodes are there.

    The policy is asked again after each answer that gave less than was wanted, so the
    first attempt is what counts; the rest says where this is going.
    """

    attempts: tuple[Attempt, ...]

    def __post_init__(self) -> None:
        if not self.attempts:
            raise ValueError("a launch without an attempt is a wait: say until when")

    @property
    def why(self) -> str:
        return self.attempts[0].why


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Ask nobody before ``until_s`` (Unix seconds), then decide anew."""

    until_s: float
    why: str

    def __post_init__(self) -> None:
        _check_why(self.why)
        if not math.isfinite(self.until_s):
            raise ValueError(f"until_s is {self.until_s}: a wait has an end")


Decision = Launch | Wait


class LaunchPolicy(Protocol):
    """Decides where nodes come from.

    Same view, same answer: a policy has no clock and no memory of its own; what it learns
    from is in the view. What every policy must keep is tested in
    ``tests/contracts/test_launch_policy.py``: it asks only candidates that this launch has
    not asked, never puts a head on spot, keeps to ``spot_only_until_s``, ends every wait,
    and stops asking a market that keeps refusing.
    """

    def decide(self, view: LaunchView) -> Decision:
        """The markets to ask now, or until when to ask none."""
        ...


def _check_why(why: str) -> None:
    if not why.strip() or "\n" in why:
        raise ValueError(f"why is {why!r}: give the reason in one line")
