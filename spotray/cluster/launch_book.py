"""The launch policy that starts from what nodes of earlier clusters taught, read from storage."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

from spotray.errors import ConfigError, JournalError
from spotray.policy.decision import Decision
from spotray.policy.expected_cost import ExpectedCost, ExpectedCostConfig
from spotray.policy.view import LaunchView

if TYPE_CHECKING:
    from spotray.market.hazards import Hazards

log = logging.getLogger(__name__)

_AGAIN_S = 6 * 3600.0  # other clusters write to the book, too
_RETRY_S = 600.0


class LearnedCost:
    """`ExpectedCost` with the lives of a book, which is read at the first decision.

    A book that is empty or cannot be read is logged and costs no launch: public traces are
    believed until it can.
    """

    def __init__(self, config: ExpectedCostConfig, book: str) -> None:
        """Nothing is read yet: a config is also looked at where no storage can be reached."""
        self.config, self.book = config, book
        self._policy = ExpectedCost(config)
        self._read_s = -math.inf  # when to read it next

    def decide(self, view: LaunchView) -> Decision:
        if view.now_s >= self._read_s:
            hazards = self._read()
            self._read_s = view.now_s + (_RETRY_S if hazards is None else _AGAIN_S)
            if hazards is not None:
                self._policy = ExpectedCost(self.config, hazards=hazards)
        return self._policy.decide(view)

    def _read(self) -> Hazards | None:
        # Late: these bring pyarrow, and most configs name no book.
        from spotray.market.hazards import learn
        from spotray.market.lives import LivesBook
        from spotray.storage import Store

        try:
            lives = LivesBook(Store.at(self.book)).lives()
        except (ConfigError, JournalError) as exc:
            log.warning("going on without the book: %s", exc)
            return None
        log.info("%d lives of spot nodes are in %s", len(lives), self.book)
        return learn(lives) if lives else None
