"""One launch, from the wish for nodes to nodes or a reason: asks the policy, then the cloud.

The clouds' node providers differ in how one market is asked; all else is here. Nothing of
Ray and nothing of a cloud.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from spotray.clock import Clock, SystemClock
from spotray.cluster.memory import LaunchMemory
from spotray.errors import (
    ConfigError,
    MarketError,
    NoCapacityError,
    NotOfferedError,
    NotPermittedError,
    QuotaError,
    SpotrayError,
    ThrottledError,
)
from spotray.events import Event, LaunchTried, LaunchWaited
from spotray.market.offer import Market
from spotray.policy.decision import Attempt, LaunchPolicy, Wait
from spotray.policy.view import Launched, LaunchView, OnDemandFirst, Refusal, Refused

log = logging.getLogger(__name__)

PARTIAL = "PartialCapacity"  # our word: fewer nodes than asked for

Ask = Callable[[Market, int], Mapping[str, Any]]  # market, count -> what came up, by its id

_REFUSALS: Mapping[type[SpotrayError], Refusal] = {
    NoCapacityError: Refusal.CAPACITY,
    QuotaError: Refusal.QUOTA,
    NotOfferedError: Refusal.NOT_OFFERED,
    NotPermittedError: Refusal.NOT_PERMITTED,
    ThrottledError: Refusal.THROTTLED,
    ConfigError: Refusal.CONFIG,
}


class NothingLaunched(Exception):
    """No node came up. ``word``: the last refusal or "waiting", for Ray's own status."""

    def __init__(self, why: str, *, word: str) -> None:
        super().__init__(why)
        self.word = word


class Launcher:
    """Launches nodes where the policy says, remembers the answers, tells the journal.

    One launch at a time: of two that start together, the second knows what the first one
    was refused. Safe from any thread.
    """

    def __init__(
        self,
        policy: LaunchPolicy,
        memory: LaunchMemory,
        *,
        tell: Callable[[Event], None],
        clock: Clock | None = None,
        foreign: tuple[type[Exception], ...] = (),
    ) -> None:
        """Nothing is asked yet.

        Args:
            policy: decides.
            memory: what is remembered, and where the answers go.
            tell: takes the events; must return at once.
            clock: tells the time.
            foreign: errors of the cloud's SDK that are none of ours: refusals for a
                reason that nobody here knows.
        """
        self.memory = memory
        self._policy = policy
        self._tell = tell
        self._clock = clock or SystemClock()
        self._refusals: tuple[type[Exception], ...] = (MarketError, ConfigError, *foreign)
        self._asked_since_s = self._clock.now_s()
        self._waits_until_s: dict[str, float] = {}  # by node type; what was told already
        self._lock = threading.Lock()

    def launch(
        self,
        ask: Ask,
        *,
        node_type: str,
        candidates: tuple[Market, ...],
        wanted: int,
        on_demand: int = 0,
    ) -> dict[str, Any]:
        """Up to ``wanted`` nodes, at least one, from the candidates.

        Args:
            ask: asks one market, once: returns what it gave, or raises an error of ours.
            node_type: the entry in the cluster's YAML.
            candidates: the markets that may be asked, in the order of the config.
            wanted: nodes, >= 1.
            on_demand: so many of them are on-demand: what a floor lacks. They come first,
                and spot does not stand in for them.

        Raises:
            NothingLaunched: none came up; the message says why, and until when nobody
                will be asked.
        """
        steady = tuple(market for market in candidates if not market.spot)
        hurry = self._hurry()
        first = (wanted if hurry else min(on_demand, wanted)) if steady else 0
        if not first:
            return self._launch(ask, node_type, candidates, wanted)
        got: dict[str, Any] = {}
        failed: NothingLaunched | None = None
        try:
            got |= self._launch(ask, node_type, steady, first, because=hurry)
        except NothingLaunched as exc:  # what is missing is asked for again
            failed = exc
        # In a hurry spot does stand in: it may come sooner than nothing.
        rest = wanted - (len(got) if hurry else first)
        if rest > 0:
            try:
                got |= self._launch(ask, node_type, candidates, rest)
            except NothingLaunched as exc:
                failed = exc
        if not got and failed is not None:
            raise failed
        return got

    def _hurry(self) -> str:
        """Why on-demand comes before spot now; empty if it does not."""
        told = [fact for fact in self.memory.facts() if isinstance(fact, OnDemandFirst)]
        return told[-1].why if told and told[-1].until_s > self._clock.now_s() else ""

    def _launch(
        self,
        ask: Ask,
        node_type: str,
        candidates: tuple[Market, ...],
        wanted: int,
        *,
        because: str = "",
    ) -> dict[str, Any]:
        with self._lock:
            got: dict[str, Any] = {}
            tried: list[Market] = []
            word = "waiting"
            while len(got) < wanted:
                view = LaunchView(
                    now_s=self._clock.now_s(),
                    wanted=wanted - len(got),
                    candidates=candidates,
                    node_type=node_type,
                    facts=self.memory.facts(),
                    tried=tuple(tried),
                    asked_since_s=self._asked_since_s,
                )
                decision = self._policy.decide(view)
                if isinstance(decision, Wait):
                    if got:
                        return got  # what is missing is asked for again, and waits then
                    self._waiting(decision, view)
                    raise NothingLaunched(decision.why, word=word)
                attempt = decision.attempts[0]
                if attempt.market not in view.left:
                    raise AssertionError(f"{attempt.market} is not to be asked: {view.left}")
                tried.append(attempt.market)
                if because:
                    attempt = replace(attempt, why=because)
                more, word = self._try(ask, attempt, view)
                got.update(more)
            self._waits_until_s.pop(node_type, None)
            return got

    def _try(self, ask: Ask, attempt: Attempt, view: LaunchView) -> tuple[Mapping[str, Any], str]:
        """What one market gave, and the word for what it did not."""
        market, start_s = attempt.market, self._clock.now_s()
        got: Mapping[str, Any] = {}
        error: Exception | None = None
        try:
            got = ask(market, view.wanted)
        except self._refusals as exc:
            error = exc
        now_s = self._clock.now_s()
        kind, code = _refusal(error) if error else (Refusal.CAPACITY, PARTIAL)
        if got:
            self.memory.add(Launched(at_s=now_s, market=market, names=tuple(sorted(got))))
        if len(got) < view.wanted:
            self.memory.add(
                Refused(
                    at_s=now_s,
                    market=market,
                    kind=kind,
                    code=code,
                    node_type=view.node_type,
                    retry_after_s=getattr(error, "retry_after_s", None),
                )
            )
        log.info(
            "%s: %d of %d %s in %.1f s (%s)%s",
            market,
            len(got),
            view.wanted,
            view.node_type,
            now_s - start_s,
            attempt.why,
            f": {error}" if error else "",
        )
        self._tell(
            LaunchTried(
                at_s=now_s,
                market=str(market),
                node_type=view.node_type,
                wanted=view.wanted,
                names=tuple(sorted(got)),
                refused="" if got else str(kind),
                code="" if got else code,
                why=attempt.why,
                seconds=now_s - start_s,
            )
        )
        return got, "" if len(got) >= view.wanted else code or str(kind)

    def _waiting(self, wait: Wait, view: LaunchView) -> None:
        """Ray asks again every few seconds; the journal wants to know once."""
        if view.now_s < self._waits_until_s.get(view.node_type, 0.0):
            return
        self._waits_until_s[view.node_type] = wait.until_s
        log.info("no %s for %.0f s: %s", view.node_type, wait.until_s - view.now_s, wait.why)
        self._tell(
            LaunchWaited(
                at_s=view.now_s,
                node_type=view.node_type,
                wanted=view.wanted,
                until_s=wait.until_s,
                why=wait.why,
            )
        )


def launch_head(
    ask: Ask, *, cloud: str, zones: tuple[str, ...], instance_type: str, count: int
) -> dict[str, Any]:
    """The cluster's head: on-demand, in the first zone that has it, whatever is remembered.

    A person waits for it and says when to try again, so no cool-down holds it up.

    Raises:
        SpotrayError: no zone has it, with the words of each; or what no other zone cures.
    """
    failed: list[str] = []
    for zone in zones:
        market = Market(cloud=cloud, zone=zone, instance_type=instance_type, spot=False)
        try:
            return dict(ask(market, count))
        except (NoCapacityError, NotOfferedError) as exc:
            failed.append(str(exc))
    where = f"{cloud}/{'|'.join(zones)}/{instance_type}/on-demand"
    raise NoCapacityError("; ".join(failed), market=where)


def _refusal(error: Exception) -> tuple[Refusal, str]:
    """Which refusal an error is, and the cloud's own word for it."""
    for cls, kind in _REFUSALS.items():
        if isinstance(error, cls):
            return kind, getattr(error, "code", "") or _code(error.__cause__)
    return Refusal.UNKNOWN, _code(error) or type(error).__name__


def _code(error: BaseException | None) -> str:
    """The cloud's word in an SDK's error, as boto has it; empty if there is none."""
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""
