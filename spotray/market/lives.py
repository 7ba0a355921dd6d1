"""How long one's own nodes lived: folded from events, and kept in storage for later clusters."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from spotray.errors import ConfigError, JournalError
from spotray.events import Event, InstanceVanished, NodeDown, NodeUp
from spotray.market.offer import Market
from spotray.market.survival import Life
from spotray.storage import Store

_SUFFIX = ".lives.json"  # no journal's name, so that both can lie in one folder


@dataclass(frozen=True, kw_only=True)
class NodeLife:
    """One spot machine: where and when it began, how long it was seen, how that ended."""

    market: str  # "aws/us-east-1a/g5.xlarge/spot"
    name: str  # instance id; Ray's node id where nobody knew it
    start_s: float  # Unix seconds
    seconds: float  # >= 0
    ended: bool  # by preemption; else it was let go, or it lives on

    def __post_init__(self) -> None:
        Market.parse(self.market)
        for field in ("start_s", "seconds"):
            value = getattr(self, field)
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise ConfigError(f"{field} is {value!r}: not a number")
            if not 0 <= value < math.inf:
                raise ConfigError(f"{field} is {value!r}: give a finite number of at least 0")
        if not isinstance(self.ended, bool):
            raise ConfigError(f"ended is {self.ended!r}: give true or false")

    @property
    def life(self) -> Life:
        """What survival is estimated from."""
        return Life(seconds=self.seconds, ended=self.ended)


def node_lives(events: Iterable[Event], *, until_s: float | None = None) -> list[NodeLife]:
    """The lives of the spot machines that a journal tells of, by start.

    Only a preemption ends a life. A machine that was let go, that failed, or that runs
    still counts for as long as it was seen, for it might have lived on. One that came back
    to Ray under another node id lived all the while; one that was preempted and started again
    has two lives. Machines of an unknown market are left out.

    Args:
        events: of a cluster's journal, in any order.
        until_s: who is still up counts until then, Unix seconds; default: the last event.
    """
    facts = sorted(
        (one for one in events if isinstance(one, NodeUp | NodeDown | InstanceVanished)),
        key=lambda one: one.at_s,
    )
    end_s = until_s if until_s is not None else max((one.at_s for one in facts), default=0.0)
    machines: dict[str, _Machine] = {}
    names: dict[str, str] = {}  # of Ray's node ids
    for fact in facts:
        if isinstance(fact, NodeDown):
            if machine := machines.get(names.get(fact.node_id, "")):
                machine.went_down(fact)
            continue
        name = fact.name or (fact.node_id if isinstance(fact, NodeUp) else "")
        machine = machines.setdefault(name, _Machine(name))
        if isinstance(fact, NodeUp):
            names[fact.node_id] = name
            machine.came_up(fact)
        else:
            machine.vanished(fact)
    found = [life for machine in machines.values() for life in machine.lives(end_s)]
    return sorted(found, key=lambda life: (life.start_s, life.name))


class _Machine:
    """What the facts, by time, say of one machine."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._spans: list[tuple[str, float, float | None, bool]] = []  # market, from, to, ended

    def came_up(self, fact: NodeUp) -> None:
        if self._spans and not self._spans[-1][3]:
            market, start_s, _, _ = self._spans[-1]
            self._spans[-1] = (market or fact.market, start_s, None, False)
        else:
            self._spans.append((fact.market, fact.at_s, None, False))

    def went_down(self, fact: NodeDown) -> None:
        if self._spans and not self._spans[-1][3]:
            market, start_s, _, _ = self._spans[-1]
            self._spans[-1] = (market, start_s, fact.at_s, fact.cause == "preemption")

    def vanished(self, fact: InstanceVanished) -> None:
        start_s = max(fact.at_s - fact.lived_s, 0.0)
        if not self._spans:  # it never came to Ray
            self._spans.append((fact.market, start_s, fact.at_s, fact.preempted))
            return
        market, up_s, down_s, ended = self._spans[-1]
        if fact.at_s - fact.lived_s > (fact.at_s if down_s is None else down_s):
            self._spans.append((fact.market, start_s, fact.at_s, fact.preempted))
        elif not ended:  # the cloud knows better than Ray why it went
            self._spans[-1] = (market or fact.market, up_s, down_s or fact.at_s, fact.preempted)

    def lives(self, end_s: float) -> Iterable[NodeLife]:
        for text, start_s, to_s, ended in self._spans:
            try:
                market = Market.parse(text)
            except ConfigError:
                continue  # nobody knew what it was
            if not market.spot:
                continue
            yield NodeLife(
                market=text,
                name=self._name,
                start_s=start_s,
                seconds=max((end_s if to_s is None else to_s) - start_s, 0.0),
                ended=ended,
            )


class LivesBook:
    """Lives of many clusters in one folder of storage, each cluster's in a file of its own.

    So two clusters never write to one file, and a cluster whose journal is deleted leaves
    what its nodes taught.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def put(self, source: str, lives: Sequence[NodeLife]) -> None:
        """Keep what a source tells; of a machine told of before, the longer life.

        Args:
            source: where it is from, such as the URL of a cluster's journal.
            lives: as `node_lives` gives them.

        Raises:
            JournalError: storage cannot be read or written, or a file in it is damaged.
        """
        name = f"{hashlib.sha256(source.encode()).hexdigest()[:16]}{_SUFFIX}"
        try:
            known = self._read(name) if self._store.exists(name) else []
            kept = [asdict(one) for one in merged([*known, *lives])]
            document = {"source": source, "lives": kept}
            self._store.write(name, json.dumps(document, indent=0).encode())
        except OSError as exc:
            raise JournalError(f"cannot keep lives in {self._store.url}: {exc}") from exc

    def lives(self) -> list[NodeLife]:
        """All that is kept, by start; empty if nothing is.

        Raises:
            JournalError: storage cannot be read, or a file in it is damaged; the message
                names the file and the place.
        """
        try:
            files = [name for name, _ in self._store.list(recursive=False)]
            found = [one for name in files if name.endswith(_SUFFIX) for one in self._read(name)]
        except OSError as exc:
            raise JournalError(f"cannot read lives in {self._store.url}: {exc}") from exc
        return merged(found)

    def _read(self, name: str) -> list[NodeLife]:
        where = f"{self._store.url}/{name}"
        try:
            raw: Any = json.loads(self._store.read(name))
        except ValueError as exc:
            raise JournalError(f"{where}: not JSON: {exc}") from exc
        rows = raw.get("lives") if isinstance(raw, dict) else None
        if not isinstance(rows, list):
            raise JournalError(f"{where}: no list of lives in it")
        found = []
        for index, row in enumerate(rows):
            try:
                found.append(NodeLife(**row))
            except (TypeError, AttributeError, ConfigError) as exc:
                raise JournalError(f"{where}: lives[{index}]: {exc}") from exc
        return found


def merged(lives: Iterable[NodeLife]) -> list[NodeLife]:
    """Each machine once: of two that overlap the longer holds, and one with an end before none."""
    by_machine: dict[tuple[str, str], list[NodeLife]] = {}
    for one in sorted(lives, key=lambda one: one.start_s):
        mine = by_machine.setdefault((one.market, one.name), [])
        if not mine or one.start_s > mine[-1].start_s + mine[-1].seconds:
            mine.append(one)
        elif (one.ended, one.seconds) > (mine[-1].ended, mine[-1].seconds):
            mine[-1] = one  # told later, or by one who knew more
    found = [one for mine in by_machine.values() for one in mine]
    return sorted(found, key=lambda one: (one.start_s, one.name))
