"""When which nodes are taken from a sweep: a script by steps, or a market's trace by time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, Protocol

from spotray.errors import LabError, TraceError
from spotray.market.trace import Trace

Kind = Literal["kill", "notice"]
KINDS: tuple[Kind, ...] = ("kill", "notice", "kill", "notice", "notice", "kill")
NOTICE_S = 8.0


class Nodes(Protocol):
    """The spot nodes of a sweep."""

    def oldest(self) -> str | None:
        """Of those that are ready and not under notice; None: there is none."""
        ...

    def kill(self, name: str) -> None: ...

    def preempt(self, name: str, notice_s: float) -> None: ...

    def set_capacity(self, nodes: int, notice_s: float) -> None:
        """The youngest beyond it are taken; 0 s: without a word."""
        ...


@dataclass(frozen=True, kw_only=True)
class Loss:
    """One node is taken as soon as so many steps were done, each counted once."""

    at_step: int
    kind: Kind


@dataclass(frozen=True, kw_only=True)
class Change:
    """The market holds another number of nodes, so long after the first step."""

    at_s: float
    nodes: int
    kind: Kind  # how those are taken that are too many


def script(losses: int, *, steps: int) -> list[Loss]:
    """Losses of both kinds, evenly over the work of a sweep.

    Args:
        losses: How many.
        steps: Steps of all trials together.
    """
    kinds = itertools.islice(itertools.cycle(KINDS), losses)
    return [
        Loss(at_step=round(steps * (index + 1) / (losses + 1)), kind=kind)
        for index, kind in enumerate(kinds)
    ]


def replay(
    trace: Trace, *, most: int, from_s: float, until_s: float, time_scale: float
) -> list[Change]:
    """What a market's trace does to a sweep, with both kinds of losses in turn.

    Args:
        trace: Nodes that could be held.
        most: Nodes that the sweep has at most: what the market holds beyond is nobody's.
        from_s: Where in it the sweep begins, seconds of the market's time.
        until_s: From where on the market holds what it held then, likewise.
        time_scale: Seconds of the market's time in one second.

    Raises:
        TraceError: it is no trace of nodes, or there is none at the start or left at the end,
            where a sweep would wait for ever.
    """
    kinds: itertools.cycle[Kind] = itertools.cycle(("kill", "notice"))
    before = min(most, trace.capacity_at(from_s))
    for end_s in (from_s, until_s):
        if trace.capacity_at(end_s) == 0:
            raise TraceError(
                f"{trace.source}: no node at hour {end_s / 3600:g}, where a sweep would wait "
                "for ever: choose other hours"
            )
    changes: list[Change] = []
    for market_s, _ in trace.changes():
        if not from_s < market_s <= until_s:
            continue
        nodes = min(most, trace.capacity_at(market_s))
        if nodes == before:
            continue
        kind = next(kinds) if nodes < before else "kill"
        changes.append(Change(at_s=(market_s - from_s) / time_scale, nodes=nodes, kind=kind))
        before = nodes
    return changes


class Taker:
    """Does what a schedule says, each thing in a thread: a node needs a moment to go.

    Args:
        nodes: Whose nodes.
        schedule: By step or by time, not both; in order.
        say: Told of each thing that is done, and of each that could not be.
    """

    def __init__(
        self, nodes: Nodes, schedule: Sequence[Loss | Change], say: Callable[[str], None]
    ) -> None:
        self._nodes, self._left, self._say = nodes, list(schedule), say
        self._threads = ThreadPoolExecutor(max_workers=1)
        self._doing: list[Future[None]] = []

    @property
    def losses_left(self) -> int:
        """Losses of a script that are still to come; a trace is longer than a sweep."""
        return sum(isinstance(what, Loss) for what in self._left)

    def look(self, *, step: int, elapsed_s: float) -> None:
        """Do what is due.

        Args:
            step: Steps that all trials have done, each counted once.
            elapsed_s: Since the first of them.
        """
        while self._left and _is_due(self._left[0], step=step, elapsed_s=elapsed_s):
            self._doing.append(self._threads.submit(self._do, self._left.pop(0), step))

    def close(self) -> None:
        """Wait for what is being done; raises what went wrong."""
        self._threads.shutdown()
        for one in self._doing:
            one.result()

    def _do(self, what: Loss | Change, step: int) -> None:
        notice_s = NOTICE_S if what.kind == "notice" else 0.0
        try:
            if isinstance(what, Change):
                self._nodes.set_capacity(what.nodes, notice_s)
                self._say(f"{step} steps: the market holds {what.nodes} nodes")
                return
            name = self._nodes.oldest()
            if name is None:
                self._say(f"{step} steps: no node is there for a {what.kind}")
            elif what.kind == "kill":
                self._nodes.kill(name)
                self._say(f"{step} steps: {name} is taken without a word")
            else:
                self._nodes.preempt(name, notice_s)
                self._say(f"{step} steps: {name} goes in {notice_s:g} s")
        except LabError as exc:  # the node went by itself meanwhile
            self._say(f"{step} steps: {what.kind} left out: {exc}")


def _is_due(what: Loss | Change, *, step: int, elapsed_s: float) -> bool:
    return step >= what.at_step if isinstance(what, Loss) else elapsed_s >= what.at_s
