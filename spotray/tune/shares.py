"""Which trial gets how many of the sweep's workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What one trial can use."""

    trial: str
    least: int  # workers, of which fewer do not step
    most: int  # more have nothing to do


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Who may have how many workers."""

    shares: Mapping[str, int]  # 0: the trial waits
    to_give: Mapping[str, int]  # trials that have more than others can spare, and what they keep


def shares(slots: int, demands: Sequence[Demand]) -> dict[str, int]:
    """Workers of each trial, when so many can run at once.

    In the order of its start each trial gets what it needs at least, if that is left; then
    one more at a time goes to the trial with the fewest. So few trials share all there is,
    and many get along with the least.

    Args:
        slots: Workers that the nodes hold.
        demands: In the order in which the trials started.

    >>> demands = [Demand(trial=t, least=1, most=3) for t in "abc"]
    >>> shares(5, demands), shares(2, demands)
    ({'a': 2, 'b': 2, 'c': 1}, {'a': 1, 'b': 1, 'c': 0})
    """
    left, given = slots, {}
    for demand in demands:
        given[demand.trial] = demand.least if demand.least <= left else 0
        left -= given[demand.trial]
    while left > 0:
        may_grow = [d for d in demands if 0 < given[d.trial] < d.most]
        if not may_grow:
            break
        given[min(may_grow, key=lambda d: given[d.trial]).trial] += 1  # of equals the first
        left -= 1
    return given


def plan(slots: int, demands: Sequence[Demand], have: Mapping[str, int], free: int) -> Plan:
    """Shares, and whose workers are needed elsewhere.

    Workers are taken from a trial only while another waits for its share and no slot is
    free: each change costs a meeting. And who has what it needs at least keeps that, though
    another that lost its nodes started earlier: else every loss would hit two trials.

    Args:
        slots: Workers that the nodes hold, those that run included.
        demands: In the order in which the trials started.
        have: Workers that each trial has on nodes that stay.
        free: Slots without a worker.
    """
    given = shares(slots, sorted(demands, key=lambda d: have.get(d.trial, 0) < d.least))
    missing = sum(max(0, given[d.trial] - have.get(d.trial, 0)) for d in demands) - free
    to_give: dict[str, int] = {}
    # Who has most beyond its share gives first; of equals who started last.
    for demand in reversed(sorted(demands, key=lambda d: have.get(d.trial, 0) - given[d.trial])):
        surplus = have.get(demand.trial, 0) - given[demand.trial]
        if missing <= 0 or surplus <= 0:
            break
        # Below its least a trial does not step, so it gives all.
        gives = surplus if given[demand.trial] == 0 else min(surplus, missing)
        to_give[demand.trial] = have.get(demand.trial, 0) - gives
        missing -= gives
    return Plan(shares=given, to_give=to_give)
