"""How a run goes on when its workers change: they meet, and have one state.

Whether to go on at all may be somebody else's decision: then they wait for it together,
between two steps. Without live recovery nobody meets: the loop is told of a loss, and the
trainer starts anew.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

from spotray.errors import ConfigError, WorldBroken
from spotray.train.audit import Tally
from spotray.train.keeper import Keeper
from spotray.train.member import LeftJob, Member, Reenter
from spotray.train.messages import SAVE, Ask
from spotray.train.reporting import Reports
from spotray.train.session import Session
from spotray.train.state import Position
from spotray.train.world import World

log = logging.getLogger(__name__)


class Meetings:
    """One worker's way from one world to the next.

    Args:
        session: The job around this worker; None outside of a trainer.
        keeper: Has the state, and tells the steps.
        position: Of the run; it moves with the state.
        tally: Counts samples; None without an audit.
        reports: What the run reported, and what of it is to be decided on.
        drop_step: Forgets the step under way: its shards will be others.
    """

    def __init__(
        self,
        session: Session | None,
        keeper: Keeper,
        position: Position,
        *,
        tally: Tally | None,
        reports: Reports,
        drop_step: Callable[[], None],
    ) -> None:
        self._session = session
        self._keeper = keeper
        self._position = position
        self._tally = tally
        self._reports = reports
        self._drop_step = drop_step
        self._asking = False  # until it is decided whether to go on
        self.is_live = session is not None and session.member is not None
        self.warming_up = False  # a newcomer's first pass, whose result counts for nothing
        self._ended_by: BaseException | None = None  # told to the loop, which must not go on

    def begin(self, world: World) -> World:
        """Have the workers' state: at once where nobody steps yet, else after a pass beside them.

        Args:
            world: The workers, as far as known.

        Returns:
            Those to begin with.
        """
        session = self._session
        if session is None or not self.is_live:
            self._keeper.restore()
        elif session.handed_over is not None:
            (saved, whence), session.handed_over = session.handed_over, None
            self._keeper.restore_from(saved, whence)
            self._enter(session, world)
        elif session.warm_up_from is not None:
            self.warming_up = True
            # Only where to begin: the state comes when this worker is let in.
            self._position.epoch, self._position.step = session.warm_up_from
        else:
            return self.meet()
        return world

    def meet(self, lost: WorldBroken | None = None) -> World:
        """Leave the present world, meet the other workers of the next one, have one state.

        Args:
            lost: What broke; None if all agreed to meet.

        Raises:
            WorldBroken: ``lost``, where nobody can say how to go on.
            LeftJob: there is no next world for this worker.
            Reenter: the state that counts lies before this epoch.
        """
        with self._noting_the_end():
            if self._session is None or not self.is_live:
                assert lost is not None, "only live workers agree to meet"
                raise lost
            self._meet(self._session, lost)
            self._wait_for_decision(self._session)
            return self._session.world

    def ask_before_next_step(self) -> None:
        """What was reported since the last decision is to be decided on."""
        self._asking = bool(self._reports.unasked) and not self.warming_up

    def decided(self, world: World) -> World:
        """Wait for what is decided, if anything is asked: to go on, save first, or leave the job.

        Args:
            world: The present workers.

        Returns:
            Those to go on with: waiting may have taken a meeting.

        Raises:
            LeftJob: the job ends here, or there is no next world for this worker.
            Reenter: the state that counts lies before this epoch.
        """
        if self._session is None or not self._asking:
            return world
        with self._noting_the_end():
            self._wait_for_decision(self._session)
        return self._session.world

    def check(self) -> None:
        """Find a loop that caught the error of a lost worker and went on.

        Raises:
            ConfigError: it did.
        """
        error = self._ended_by
        if error is not None:
            name = type(error).__name__
            raise ConfigError(
                f"the training loop caught {name} ({error}), by which a worker learns that the "
                f"workers changed, and went on: let it pass (except spotray.{name}: raise)"
            ) from error

    @contextlib.contextmanager
    def _noting_the_end(self) -> Iterator[None]:
        try:
            yield
        except (WorldBroken, LeftJob, Reenter) as exc:
            self._ended_by = exc  # for a loop that catches even these
            raise

    def _meet(self, session: Session, lost: WorldBroken | None) -> None:
        why, asking = str(lost or ""), self._asking
        if lost is not None:
            _log_broken(session, lost)
        member, keeper = session.member, self._keeper
        assert member is not None, "only live workers meet"
        self._drop_step()
        keeper.tell_rest()
        self.warming_up = False
        while True:
            checkpoints = keeper.saver.checkpoints
            is_busy = checkpoints is not None and checkpoints.is_busy
            spoke = member.speaks
            epoch = self._position.epoch
            self._enter(session, member.join(why, is_busy=is_busy))
            assert member.roster is not None, "it joined"
            try:
                if member.roster.heirs:
                    asks = self._reports.unasked if asking else None
                    has_new_state, asked = keeper.heal(self._position.step, asks=asks)
                    self._asking = asked is not None
                    if asked is not None:
                        self._reports.unasked = list(asked)
                else:
                    keeper.restore()
                    has_new_state = True
                    asked_step = member.assignment.asked_step if member.assignment else -1
                    self._asking = session.asks and self._position.step == asked_step
                break
            except WorldBroken as exc:
                why = str(exc)
                _log_broken(session, exc)
        if self._tally is not None and member.speaks and (has_new_state or not spoke):
            self._tally.tell()  # who spoke before may not have come to it
        self._reports.forget_undone()
        if member.speaks and not spoke and member.assignment is not None:
            self._reports.tell_again(member.assignment.told_report)
        self._drop_step()
        if self._position.epoch < epoch:
            raise Reenter(
                f"the state is of epoch {self._position.epoch}, this loop is in epoch {epoch}"
            )

    def _wait_for_decision(self, session: Session) -> None:
        while self._asking:
            assert session.member is not None, "only live workers ask"
            now = self._position
            try:
                reports = tuple(self._reports.unasked)
                ask = Ask(step=now.step, epoch=now.epoch, reports=reports)
                self._reports.settle()
                if session.member.ask(ask) == SAVE:
                    self._save_as_asked(session.member, session.world)
                    continue
            except WorldBroken as exc:
                self._meet(session, exc)  # and ask there, with those who come
                continue
            self._asking = False
            self._reports.unasked.clear()

    def _save_as_asked(self, member: Member, world: World) -> None:
        now = self._position
        url = self._keeper.saver.checkpoint_asked_for(now.step, now.epoch)
        if world.rank == 0:
            member.saved(now.step, url)
        # Nobody may ask again, and hear of the same save, before it is told.
        world.gather_objects(None)

    def _enter(self, session: Session, world: World) -> None:
        assert session.member is not None, "only live workers change their world"
        session.world = world
        session.member.speaks = world.rank == 0
        if session.member.assignment is not None:
            session.reached_step = session.member.assignment.reached_step
        self._keeper.enter(world)


def _log_broken(session: Session, error: WorldBroken) -> None:
    log.warning("generation %d broke: %s", session.world.generation, error)
