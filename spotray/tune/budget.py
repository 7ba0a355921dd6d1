"""When a sweep starts no more trials, so that its budget is not passed.

What runs goes on: the rule leaves room for that. It holds back a trial that would not
fit beside what is spent and what the running trials will still take, each judged by the
dearest trial so far: only a trial that gets dearer than any before it can pass the budget.
Money that is not known is not taken for nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from spotray.errors import ConfigError
from spotray.events import Event
from spotray.ledger.cost import node_facts
from spotray.ledger.describe import short
from spotray.ledger.pricing import Prices, lives
from spotray.ledger.sharing import Bill
from spotray.ledger.sweep import SweepState
from spotray.report.tables import duration, usd


@dataclass(frozen=True, kw_only=True)
class Spending:
    """What a sweep spent so far."""

    spent_usd: float | None  # in all; None: no second has a price, or there is none yet
    unpriced_s: float = 0.0  # node time without a known price
    unseen_nodes: int = 0  # trained, but nobody saw them come up
    overhead_frac: float = 0.0  # what no trial used, as a part of what the trials cost
    ended_usd: tuple[float, ...] = ()  # of each trial that ended
    running_usd: tuple[float, ...] = ()  # so far, of each trial that runs

    @property
    def dearest_usd(self) -> float:
        """The most that a trial has cost, so far as it came."""
        return max((*self.ended_usd, *self.running_usd), default=0.0)

    @property
    def to_come_usd(self) -> float:
        """What the running trials will still take, if each gets as dear as the dearest."""
        left = sum(self.dearest_usd - so_far for so_far in self.running_usd)
        return left * (1.0 + self.overhead_frac)

    @property
    def one_more_usd(self) -> float:
        """What one more trial will take, by the same measure."""
        return self.dearest_usd * (1.0 + self.overhead_frac)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether one more trial may start: ``launch``, ``wait`` (ask again later), ``stop``."""

    kind: Literal["launch", "wait", "stop"]
    why: str


def spending(state: SweepState, *, running: Collection[str]) -> Spending:
    """A sweep's spending from its ledger.

    Args:
        running: the trials that are under way; all others that began have ended.
    """
    cost = state.cost
    ended = [bill for trial, bill in cost.trials.items() if trial not in running]
    under_way = [cost.trials.get(trial, Bill()) for trial in sorted(running)]
    return Spending(
        spent_usd=cost.total.total.cost_usd,
        unpriced_s=cost.total.total.unpriced_s,
        unseen_nodes=cost.total.unseen_nodes,
        # Of a sweep that just began the overhead is nearly all: it says nothing of what comes.
        overhead_frac=(cost.overhead_frac or 0.0) if ended else 0.0,
        ended_usd=tuple(bill.money.cost_usd or 0.0 for bill in ended),
        running_usd=tuple(bill.money.cost_usd or 0.0 for bill in under_way),
    )


def check_prices(facts: Iterable[Event], *, max_cost_usd: float | None, now_s: float) -> None:
    """Refuse a budget that nobody could keep, before the first trial starts.

    Args:
        facts: about the nodes that are there.
        now_s: Unix seconds.

    Raises:
        ConfigError: there is a budget, and a node whose price is unknown.
    """
    if max_cost_usd is None:
        return
    known = node_facts(facts)
    prices = Prices(known)
    unknown = sorted(
        life.up.name or short(life.up.node_id)
        for life in lives(known, until_s=now_s)
        if life.end_s >= now_s > life.start_s
        and prices.money(life, (max(life.start_s, now_s - 1.0), now_s)).unpriced_s
    )
    if unknown:
        raise ConfigError(
            f"max_cost_usd is {max_cost_usd:g}, and no price is known of {len(unknown)} nodes "
            f"({', '.join(unknown[:3])}{', ...' if len(unknown) > 3 else ''}): name a journal "
            "that tells prices (SpotConfig.cluster_journal, SPOTRAY_JOURNAL), take "
            "instance types whose price spotray/market/prices.csv has, or leave max_cost_usd out"
        )


def may_launch(spent: Spending, *, max_cost_usd: float | None, room: int) -> Verdict:
    """Whether a sweep may start one more trial.

    No more start than can work side by side: so each is judged when it could begin, by
    what is known then.

    Args:
        max_cost_usd: the budget, USD; None: there is none.
        room: trials for which the nodes that are there have the least number of workers.

    Returns:
        ``wait`` only while a trial runs, so that whoever waits is woken by its end.
    """
    if max_cost_usd is None:
        return Verdict(kind="launch", why="there is no budget")
    running, budget = len(spent.running_usd), usd(max_cost_usd)
    later: Literal["wait", "stop"] = "wait" if running else "stop"
    if spent.unpriced_s > 0 or spent.unseen_nodes:
        what = f"no price is known for {duration(spent.unpriced_s)} of node time"
        if spent.unseen_nodes:
            what = f"{spent.unseen_nodes} nodes that trained are in no journal"
        return Verdict(
            kind=later, why=f"{what}, so nobody can say whether {budget} would be passed"
        )
    total = spent.spent_usd or 0.0
    if total >= max_cost_usd:
        return Verdict(kind="stop", why=f"{usd(total)} of {budget} are spent")
    if running >= max(1, room):
        return Verdict(kind="wait", why=f"{running} trials run, and there is room for {room}")
    expected = total + spent.to_come_usd + spent.one_more_usd
    if expected > max_cost_usd:
        return Verdict(
            kind=later,
            why=f"one more trial may bring the cost to {usd(expected)} of {budget}: "
            f"{usd(total)} are spent, the trials that run may take {usd(spent.to_come_usd)} "
            f"more, another one {usd(spent.one_more_usd)}",
        )
    return Verdict(kind="launch", why=f"{usd(expected)} of {budget} with one more trial")
