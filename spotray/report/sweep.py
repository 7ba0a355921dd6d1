"""A sweep in words: what a table and a line say of its trials and its money."""

from __future__ import annotations

from collections.abc import Mapping

from spotray.ledger.pricing import Money
from spotray.ledger.sharing import SweepCost
from spotray.report.tables import usd


def cost_words(money: Money, *, unseen_nodes: int = 0) -> str:
    """Money as it is known: ``-`` for no node time, ``over`` where a part has no price.

    >>> cost_words(Money()), cost_words(Money(seconds=9.0, unpriced_s=9.0))
    ('-', 'unknown')
    >>> cost_words(Money(seconds=9.0, cost_usd=2.5, unpriced_s=1.0))
    'over $2.50'
    """
    is_whole = not money.unpriced_s and not unseen_nodes
    if money.cost_usd is None:
        return "-" if is_whole else "unknown"
    return usd(money.cost_usd) if is_whole else f"over {usd(money.cost_usd)}"


def market_words(markets: Mapping[str, int]) -> str:
    """Where workers are, in the width of one market.

    >>> market_words({"m/a/spot": 1, "m/b/spot": 2}), market_words({})
    ('m/b/spot and 1 more', '-')
    """
    if not markets:
        return "-"
    most = max(sorted(markets), key=lambda market: markets[market])
    return most if len(markets) == 1 else f"{most} and {len(markets) - 1} more"


def metric_words(value: float | None) -> str:
    """A metric, four digits of it.

    >>> metric_words(0.123456), metric_words(None)
    ('0.1235', '-')
    """
    return "-" if value is None else f"{value:.4g}"


def sweep_cost_words(cost: SweepCost) -> str:
    """What a sweep cost, and what of it served no trial."""
    rest = [
        f"{name} {cost_words(money)}"
        for name, money in (("idle", cost.idle), ("head", cost.head))
        if money.seconds
    ]
    total = cost_words(cost.total.total, unseen_nodes=cost.total.unseen_nodes)
    return f"{total}{' (' if rest else ''}{', '.join(rest)}{')' if rest else ''}"
