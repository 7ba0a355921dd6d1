"""When live members should meet again although nobody is lost."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from spotray.train.leaving import time_to_leave
from spotray.train.session import Progress

# Clouds announce the loss of several nodes within a minute of each other; all of them
# are left in one move.
NOTICES_TOGETHER_S = 60.0
_SETTLE_S = 1.0  # newcomers often come several at a time: wait this long for the next


@dataclass(frozen=True, kw_only=True)
class Move:
    """Whether all members should meet after their next step, and who is not to come along."""

    why: str = ""  # empty: they go on
    durable: bool = False  # the state must reach storage first
    leaving_nodes: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Newcomers:
    """Workers that are no members yet."""

    ready: int  # wait to be let in
    waited_s: float  # the first of them, seconds
    on_the_way: int


class Planner:
    """Decides on moves: knows the notices, and what a meeting costs.

    Args:
        margin_s: Stop stepping this long before an announced loss, seconds.
        mtbp_s: How long a new node is expected to live, seconds.
    """

    def __init__(self, *, margin_s: float, mtbp_s: float) -> None:
        self._margin_s, self._mtbp_s = margin_s, mtbp_s
        self.notices: Mapping[str, float | None] = {}  # node id -> deadline, Unix seconds
        self._noticed_at: dict[str, float] = {}  # monotonic
        self._pause_s = 0.3  # of a planned meeting; a first guess, then measured
        self._met_at: float | None = None  # monotonic; None: not to be measured

    def set_notices(self, deadlines: Mapping[str, float | None], *, monotonic_s: float) -> None:
        """Nodes under notice, all of them, with the deadline where one is known."""
        for node_id in deadlines:
            self._noticed_at.setdefault(node_id, monotonic_s)
        for node_id in self._noticed_at.keys() - deadlines.keys():
            del self._noticed_at[node_id]  # withdrawn, or the node is gone
        self.notices = dict(deadlines)

    def met(self, *, planned: bool, monotonic_s: float) -> None:
        """A generation was formed; ``planned``: of members that had agreed to meet."""
        self._met_at = monotonic_s if planned else None

    def stepped(self, progress: Progress, *, monotonic_s: float) -> None:
        """The generation makes steps; from its first one follows what meeting cost."""
        if self._met_at is not None:
            self._pause_s = max(0.0, monotonic_s - self._met_at - progress.step_s)
            self._met_at = None

    def decide(
        self,
        group: Sequence[str],
        newcomers: Newcomers,
        *,
        progress: Progress,
        most: int,
        share: int,
        now_s: float,
        monotonic_s: float,
    ) -> Move:
        """What the members should do, while nothing is broken.

        Args:
            group: Nodes of the members, one for each.
            newcomers: Who might come.
            progress: How long a step and a checkpoint take.
            most: More workers have nothing to do.
            share: More workers are not this job's: others need them.
            now_s: Unix seconds, as deadlines are.
            monotonic_s: The time by which waiting is measured.
        """
        leaving = [n for n in self.notices if n in group]
        move = Move()
        if leaving:
            move = self._leave(
                leaving, group, newcomers, progress, now_s=now_s, monotonic_s=monotonic_s
            )
        # Until then they step with the others, also through a meeting for another reason.
        parting = set(leaving) if move.why else set()
        going = frozenset((set(self.notices) - set(group)) | parting)
        if not move.why and newcomers.ready and len(group) < most:
            settled = newcomers.on_the_way == 0 or newcomers.waited_s >= _SETTLE_S
            pays = growth_pays(
                pause_s=self._pause_s, workers=len(group), expected_life_s=self._mtbp_s
            )
            if settled and pays:
                return Move(why=f"{newcomers.ready} worker(s) are ready", leaving_nodes=going)
        if not move.why and len(group) > share:
            why = f"{len(group) - share} worker(s) are needed elsewhere"
            return Move(why=why, leaving_nodes=going)
        return Move(why=move.why, durable=move.durable, leaving_nodes=going)

    def _leave(
        self,
        leaving: Collection[str],
        group: Sequence[str],
        newcomers: Newcomers,
        progress: Progress,
        *,
        now_s: float,
        monotonic_s: float,
    ) -> Move:
        """Whether to leave some of the group's nodes now."""
        room = sum(n not in self.notices for n in group) + newcomers.ready
        known = [d for n in leaving if (d := self.notices[n]) is not None]
        deadline_s = min(known) if len(known) == len(leaving) else None
        if room == 0:
            # No peer will be left to keep the state: it goes to storage in time.
            stop = time_to_leave(
                deadline_s=deadline_s,
                leaving=leaving,
                group=group,
                progress=progress,
                room=0,
                margin_s=self._margin_s,
                now_s=now_s,
            )
            return Move() if stop is None else Move(why=stop.why, durable=stop.durable)
        if time_to_part(
            deadline_s=deadline_s,
            step_s=progress.step_s,
            margin_s=self._margin_s,
            now_s=now_s,
        ):
            return Move(why=f"{len(leaving)} node(s) are about to be taken")
        first = min(self._noticed_at[n] for n in leaving)
        if room >= len(group) and time_to_swap(noticed_for_s=monotonic_s - first):
            return Move(why=f"{len(leaving)} node(s) will be taken, others are ready")
        return Move()


def time_to_swap(*, noticed_for_s: float) -> bool:
    """Whether to leave nodes under notice now, where others are ready to take over.

    They still work, so there is no hurry before their deadline; waiting lets further
    notices share the move.

    Args:
        noticed_for_s: Seconds since the first of the notices.
    """
    return noticed_for_s >= NOTICES_TOGETHER_S


def time_to_part(*, deadline_s: float | None, step_s: float, margin_s: float, now_s: float) -> bool:
    """Whether nodes under notice must be left after the next step.

    Args:
        deadline_s: When the first of them is taken, Unix seconds; None if the cloud
            did not say, which is taken for now.
        step_s: Seconds of a step: the one under way is finished first.
        margin_s: Seconds to keep in hand.
        now_s: Unix seconds.
    """
    return deadline_s is None or deadline_s - now_s <= margin_s + 2 * step_s


def growth_pays(*, pause_s: float, workers: int, expected_life_s: float) -> bool:
    """Whether letting one more worker in costs less than what it will add.

    All workers stand still for the pause, and the new one adds its time for as long as
    it lives.

    Args:
        pause_s: Of meeting again and healing the newcomer, seconds.
        workers: That stand still meanwhile.
        expected_life_s: Of the new node, seconds.
    """
    return expected_life_s > pause_s * (workers + 1)
