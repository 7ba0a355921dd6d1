"""What many runs cost together, by run, week and label; who shared a node shares its price."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from spotray.events import Event, NodeUp
from spotray.ledger.account import account, grouped, weeks
from spotray.ledger.charges import charges, disk_costs
from spotray.ledger.cost import job_windows, node_facts
from spotray.ledger.pricing import Money, Prices, Span, clip, lives, part_of

NO_LABEL = "(none)"


@dataclass(frozen=True, kw_only=True)
class ManyRuns:
    """Several runs' node time: each cut adds up to ``total``.

    A node that served several of the runs at one time is paid once, in equal parts.
    """

    total: Money = field(default_factory=Money)
    by_run: Mapping[str, Money] = field(default_factory=dict)
    by_week: Mapping[str, Money] = field(default_factory=dict)  # ISO weeks, UTC
    by_label: Mapping[str, Mapping[str, Money]] = field(default_factory=dict)  # label -> value
    charges_usd: float = 0.0  # by the clouds' terms; below zero: not billed
    disks_usd: float | None = None  # None: none with a known price
    left_out: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by run

    @property
    def billed_usd(self) -> float | None:
        """Node time with charges and disks; None where not one price is known."""
        parts = [one for one in (self.total.cost_usd, self.disks_usd) if one is not None]
        return math.fsum([*parts, self.charges_usd]) if parts else None


@dataclass(frozen=True)
class _Share:
    run: str
    week: str
    money: Money


def sum_runs(
    runs: Mapping[str, Sequence[Event]], *, damaged: Mapping[str, int] | None = None
) -> ManyRuns:
    """Fold the facts of several runs.

    Args:
        runs: each run's facts, with those about its nodes; by a name of the run.
        damaged: lines of its journals that were left out.
    """
    bills = {
        run: account(events, damaged_lines=(damaged or {}).get(run, 0))
        for run, events in runs.items()
    }
    shares: list[_Share] = []
    charged: list[float] = []
    disks: list[float] = []
    for cluster in _clusters(runs):
        events = [event for run in cluster for event in runs[run]]
        until_s = max((event.at_s for event in events), default=0.0)
        facts = node_facts(events)
        windows = {run: job_windows(node_facts(runs[run]), until_s=until_s) for run in cluster}
        anyones = merged(span for spans in windows.values() for span in spans)
        shares += _shares(facts, windows, until_s=until_s)
        charged += [one.usd for one in charges(facts, anyones, until_s=until_s)]
        for disk in disk_costs(events, anyones, until_s=until_s):
            disks += [] if disk.cost_usd is None else [disk.cost_usd]
    labels = sorted({label for bill in bills.values() for label in bill.labels})
    return ManyRuns(
        total=sum((one.money for one in shares), Money()),
        by_run={run: Money() for run in runs} | grouped((one.run, one.money) for one in shares),
        by_week=grouped((one.week, one.money) for one in shares),
        by_label={
            label: grouped(
                (bills[one.run].labels.get(label, NO_LABEL), one.money) for one in shares
            )
            for label in labels
        },
        charges_usd=math.fsum(charged),
        disks_usd=math.fsum(disks) if disks else None,
        left_out={run: bill.left_out for run, bill in bills.items() if bill.left_out},
    )


def merged(spans: Iterable[Span]) -> list[Span]:
    """Spans without overlap.

    >>> merged([(3, 5), (0, 2), (1, 3)])
    [(0, 5)]
    """
    found: list[Span] = []
    for low, high in sorted(spans):
        if found and low <= found[-1][1]:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return found


def _clusters(runs: Mapping[str, Sequence[Event]]) -> list[list[str]]:
    """The runs in groups: those that tell of a common node are of one cluster."""
    found: list[tuple[set[str], list[str]]] = []
    for run, events in runs.items():
        nodes = {event.node_id for event in events if isinstance(event, NodeUp)}
        mine = [run]
        apart = []
        for its_nodes, its_runs in found:
            if nodes & its_nodes:
                nodes |= its_nodes
                mine = its_runs + mine
            else:
                apart.append((its_nodes, its_runs))
        found = [*apart, (nodes, mine)]
    return [its_runs for _, its_runs in found]


def _shares(
    facts: Sequence[Event], windows: Mapping[str, Sequence[Span]], *, until_s: float
) -> Iterator[_Share]:
    """Each node's time, cut where weeks and runs begin and end, in equal parts."""
    prices = Prices(facts)
    edges = sorted({edge for spans in windows.values() for span in spans for edge in span})
    for life in lives(facts, until_s=until_s):
        for piece in clip((life.start_s, life.end_s), pairwise(edges)):
            here = [run for run, spans in windows.items() if clip(piece, spans)]
            for week, part in weeks(piece) if here else ():
                money = part_of(prices.money(life, part), 1 / len(here))
                yield from (_Share(run, week, money) for run in here)
