"""What a policy saves against a baseline over a set of jobs, and how sure that is."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

_RESAMPLES = 1000


@dataclass(frozen=True, kw_only=True)
class Savings:
    """Fractions are of sums of costs, not means of ratios; all None without a baseline."""

    cheaper_frac: float | None = None
    low_frac: float | None = None  # 95 % confidence by resampling groups; None of one group
    high_frac: float | None = None
    worst_regret_frac: float | None = None  # of the job that costs most more than its base


def savings_of(
    groups: Sequence[str],
    costs: Sequence[float],
    bases: Sequence[float] | None,
    *,
    order: Sequence[str],
) -> Savings:
    """Compare the costs of the same jobs, one entry of each argument a job.

    Args:
        groups: where each job comes from, a trace or a world. Jobs of one go together: a
            confidence draws whole groups.
        costs: of each job under the policy, USD.
        bases: under the baseline, USD, > 0; None if it did not run.
        order: every group once. The draws are the same for the same order.
    """
    if bases is None:
        return Savings()
    low, high = _confidence(groups, costs, bases, order) if len(order) > 1 else (None, None)
    return Savings(
        cheaper_frac=1 - sum(costs) / sum(bases),
        low_frac=low,
        high_frac=high,
        worst_regret_frac=max(a / b for a, b in zip(costs, bases, strict=True)) - 1,
    )


def _confidence(
    groups: Sequence[str], costs: Sequence[float], bases: Sequence[float], order: Sequence[str]
) -> tuple[float, float]:
    sums = {group: [0.0, 0.0] for group in order}
    for group, cost, base in zip(groups, costs, bases, strict=True):
        sums[group][0] += cost
        sums[group][1] += base
    chance = random.Random(0)
    drawn = []
    for _ in range(_RESAMPLES):
        some = [sums[group] for group in chance.choices(order, k=len(order))]
        drawn.append(1 - sum(one[0] for one in some) / sum(one[1] for one in some))
    drawn.sort()
    return drawn[round(0.025 * _RESAMPLES)], drawn[round(0.975 * _RESAMPLES) - 1]
