"""What becomes of a job's members, as facts for the journal."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence

from spotray.events import (
    Event,
    FellBack,
    MemberFencedOut,
    MemberReady,
    WorkerGroupLost,
    WorkerGroupStarted,
)
from spotray.train.membership import Loss, Membership, Roster

log = logging.getLogger(__name__)

_HOLD_S = 1.0  # members that wait for longer are told to lack others


class Chronicle:
    """Tells each thing that happens to a membership once. Its owner has the lock.

    Args:
        membership: Whose story it is.
        append: Takes the facts to the journal.
    """

    def __init__(self, membership: Membership, append: Callable[[Event], None]) -> None:
        self._membership, self._append = membership, append
        # When the generation broke, Unix seconds; None: its members met as agreed.
        self.broke_at_s: float | None = None
        self._ready_at: dict[str, float] = {}  # newcomer -> since when it waits, monotonic
        self._holds_since: float | None = None  # all members wait, monotonic

    def ready(self, member: str, now: float) -> None:
        """A newcomer waits to be let in."""
        self._ready_at.setdefault(member, now)

    def longest_wait_s(self, newcomers: Iterable[str], now: float) -> float:
        """Since when the first of them waits."""
        return max((now - self._ready_at.get(one, now) for one in newcomers), default=0.0)

    def take_losses(self) -> list[Loss]:
        """The membership's losses, once; those that may live on are told to be fenced out."""
        losses, self._membership.losses = self._membership.losses, []
        for loss in losses:
            self._ready_at.pop(loss.member, None)
            if self._membership.done:
                continue
            log.warning("worker %s on node %s is out: %s", loss.member, loss.node_id[:8], loss.why)
            if loss.maybe_alive:
                self._append(
                    MemberFencedOut(
                        at_s=time.time(),
                        generation=loss.generation,
                        node_id=loss.node_id,
                        why=loss.why,
                    )
                )
        return losses

    def broken(self, losses: Sequence[Loss] = ()) -> None:
        """The generation cannot go on."""
        membership = self._membership
        if membership.done:
            return
        self.broke_at_s = time.time()
        self._append(
            WorkerGroupLost(
                at_s=self.broke_at_s,
                generation=membership.roster.generation,
                cause="loss",
                why=membership.broken or "; ".join(loss.why for loss in losses),
                lost_node_ids=membership.broken_nodes
                or tuple(loss.node_id for loss in losses if loss.was_member),
            )
        )

    def formed(self, roster: Roster, now: float) -> None:
        """A new generation steps."""
        for member in roster.members:
            if (since := self._ready_at.pop(member, None)) is not None and roster.heirs:
                node_id = roster.node_ids[roster.rank_of(member)]
                ready_s = now - since
                self._append(
                    MemberReady(at_s=time.time() - ready_s, node_id=node_id, seconds=ready_s)
                )
        self._append(
            WorkerGroupStarted(
                at_s=time.time(),
                generation=roster.generation,
                world_size=len(roster.members),
                node_ids=roster.node_ids,
                live=bool(roster.heirs),
            )
        )

    def fallback(self, *, had_members: bool, now: float) -> None:
        """Tell where the state in the members' memory is not enough to go on at once.

        Args:
            had_members: There were some before the last look.
            now: The time, monotonic.
        """
        membership = self._membership
        if membership.done or membership.gave_up:
            return
        left = len(membership.members_alive())
        if had_members and not left:
            self._fell_back(
                "no worker is left: the next ones begin from what was saved", "snapshot"
            )
        if not (left and membership.holding()):
            self._holds_since = None
        elif self._holds_since is None:
            self._holds_since = now
        elif self._holds_since + _HOLD_S <= now:
            self._holds_since = float("inf")  # told
            least = membership.min_workers
            why = f"{left} worker(s) of at least {least} are left: they wait, and keep the state"
            self._fell_back(why, "waiting")

    def _fell_back(self, why: str, to: str) -> None:
        log.warning("%s", why)
        generation = self._membership.roster.generation
        self._append(FellBack(at_s=time.time(), generation=generation, why=why, to=to))
