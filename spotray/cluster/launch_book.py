"""The launch policy that starts from what nodes of earlier clusters taught, read from storage."""

from __future__ import annotations

import logging
import math
import threading
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
_PATIENCE_S = 2.0  # who decides looks at its nodes every second, or launches some


class LearnedCost:
    """`ExpectedCost` with the lives of a book, which is read at the first decision.

    A book that is empty or cannot be read is logged and costs no launch: public traces are
    believed until it can. Nor does storage that does not answer: what comes late counts later.
    """

    def __init__(
        self, config: ExpectedCostConfig, book: str, *, patience_s: float = _PATIENCE_S
    ) -> None:
        """Nothing is read yet: a config is also looked at where no storage can be reached.

        Args:
            config: of `ExpectedCost`.
            book: its folder; a path or a URL.
            patience_s: a decision waits for storage no longer than that.
        """
        self.config, self.book, self._patience_s = config, book, patience_s
        self._policy = ExpectedCost(config)
        self._read_s = -math.inf  # when to read it next
        self._reading: threading.Thread | None = None
        self._found: Hazards | None = None  # by the last reading

    def decide(self, view: LaunchView) -> Decision:
        if self._reading is None and view.now_s >= self._read_s:
            self._reading = threading.Thread(target=self._look, name="launch-book", daemon=True)
            self._reading.start()
            self._reading.join(self._patience_s)
        if self._reading is not None and not self._reading.is_alive():
            self._reading = None
            self._read_s = view.now_s + (_RETRY_S if self._found is None else _AGAIN_S)
            if self._found is not None:
                self._policy = ExpectedCost(self.config, hazards=self._found)
        return self._policy.decide(view)

    def _look(self) -> None:
        self._found = None
        self._found = self._read()

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
