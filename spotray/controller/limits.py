"""Deadlines and budgets of the running jobs, as their `SpotConfig` has them. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class JobLimits:
    """What a running job may take.

    Args:
        name: of the job.
        deadline_s: by then it should be done, Unix seconds; inf: it has none.
        max_cost_usd: what its cluster may cost while it runs; inf: whatever it does.
        began_s: when this run of it began, Unix seconds.
        driver: Ray's id of the driver that runs it; empty if it does not tell.
    """

    name: str
    deadline_s: float = math.inf
    max_cost_usd: float = math.inf
    began_s: float = 0.0
    driver: str = ""


@dataclass(frozen=True, kw_only=True)
class NodeSpan:
    """A node's time and price. ``end_s``: None while it runs; ``usd_per_hour``: None: unknown."""

    name: str
    usd_per_hour: float | None
    start_s: float
    end_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What nodes cost, and the names of those whose price nobody knows."""

    usd: float
    unknown: tuple[str, ...] = ()


def limits_of(told: Iterable[Mapping[str, Any]]) -> list[JobLimits]:
    """The limits of jobs from what their coordinators tell.

    A budget that `spotray launch` watches is left out: that stops the job by itself.
    """
    return [
        JobLimits(
            name=one["name"],
            deadline_s=_or_inf(one.get("deadline_s")),
            max_cost_usd=_or_inf(None if one.get("is_watched") else one.get("max_cost_usd")),
            began_s=one.get("began_s") or 0.0,
            driver=one.get("driver") or "",
        )
        for one in told
    ]


def next_deadline(limits: Iterable[JobLimits], *, now_s: float) -> tuple[float, str]:
    """The deadline that comes next, Unix seconds, and whose it is; inf: there is none to come."""
    to_come = [(one.deadline_s, one.name) for one in limits if now_s < one.deadline_s < math.inf]
    return min(to_come, default=(math.inf, ""))


def spent(nodes: Sequence[NodeSpan], *, from_s: float, now_s: float) -> Spent:
    """What nodes cost since ``from_s``, whatever ran on them."""
    total, unknown = 0.0, []
    for node in nodes:
        end_s = now_s if node.end_s is None else min(node.end_s, now_s)
        seconds = end_s - max(node.start_s, from_s)
        if seconds <= 0:
            continue
        if node.usd_per_hour is None:
            unknown.append(node.name)
        else:
            total += seconds / 3600 * node.usd_per_hour
    return Spent(usd=total, unknown=tuple(sorted(unknown)))


def _or_inf(given: float | None) -> float:
    return math.inf if given is None else given
