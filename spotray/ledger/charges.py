"""What a bill has beside the price of node time: shortest bills, free hours, disks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spotray.events import DiskDeleted, DiskMounted, Event, NodeDown
from spotray.ledger.pricing import Life, Money, Prices, Span, clip, lives
from spotray.market.terms import CLOUDS, LEAST_S, is_free

_MONTH_S = 730 * 3600.0  # as disks are priced

FREE = "taken by the cloud so early that it is free"
LEAST = f"the shortest bill is {LEAST_S:.0f} s"


@dataclass(frozen=True, kw_only=True)
class Charge:
    """What a cloud's terms add to the price of a node's time, or take from it."""

    name: str  # of the machine
    market: str
    usd: float  # below zero: not billed
    why: str


@dataclass(frozen=True, kw_only=True)
class DiskCost:
    """One data disk, inside the job's time; it costs also while no node has it."""

    disk: str
    zone: str
    size_gib: int
    seconds: float
    cost_usd: float | None  # at list price; None if unknown


def charges(facts: Sequence[Event], windows: Sequence[Span], *, until_s: float) -> list[Charge]:
    """What clouds' terms change in the price of node time inside some windows.

    AWS bills nothing for a spot node that it takes within the first hour, Google nothing
    within the first minute; nobody bills less than a minute. A machine's time counts as a
    whole for that, also what lies outside the windows; what is added for a shortest bill
    belongs to the window in which the machine ended. Who is still up is not charged yet.

    Args:
        facts: as `node_facts` gives them.
        windows: that do not overlap.
        until_s: up to when facts count, Unix seconds.
    """
    downs: dict[str, NodeDown] = {}
    for event in facts:
        if isinstance(event, NodeDown):
            downs.setdefault(event.node_id, event)
    machines: dict[str, list[Life]] = defaultdict(list)
    for life in lives(facts, until_s=until_s):
        machines[life.up.name or life.up.node_id].append(life)
    prices = Prices(facts)
    found = []
    for name, its_lives in machines.items():
        last = its_lives[-1]
        down = downs.get(last.up.node_id)
        cloud = last.up.market.partition("/")[0]
        if down is None or down.at_s > until_s or cloud not in CLOUDS:
            continue  # nobody knows whose terms hold
        lived_s = last.end_s - its_lives[0].start_s
        taken = last.up.spot and down.cause == "preemption"
        if is_free(cloud, lived_s, taken=taken):
            usd = -(_inside(its_lives, windows, prices).cost_usd or 0.0)
            why = FREE
        elif lived_s < LEAST_S and any(low < last.end_s <= high for low, high in windows):
            rest = (last.end_s, last.end_s + LEAST_S - lived_s)
            usd, why = prices.money(last, rest).cost_usd or 0.0, LEAST
        else:
            continue
        if usd:
            found.append(Charge(name=name, market=last.up.market, usd=usd, why=why))
    return found


def _inside(its_lives: Iterable[Life], windows: Sequence[Span], prices: Prices) -> Money:
    spans = (
        (life, span) for life in its_lives for span in clip((life.start_s, life.end_s), windows)
    )
    return sum((prices.money(life, span) for life, span in spans), Money())


def disk_costs(
    events: Iterable[Event], windows: Sequence[Span], *, until_s: float
) -> list[DiskCost]:
    """What data disks cost inside some windows, from their first mount to their deletion."""
    mounts: dict[str, DiskMounted] = {}
    starts: dict[str, float] = {}
    ends: dict[str, float] = {}
    for event in sorted(events, key=lambda event: event.at_s):
        if isinstance(event, DiskMounted):
            starts.setdefault(event.disk, event.at_s)
            known = mounts.setdefault(event.disk, event)
            if known.usd_per_month is None and event.usd_per_month is not None:
                mounts[event.disk] = event
        elif isinstance(event, DiskDeleted):
            ends[event.disk] = event.at_s
    found = []
    for disk, mounted in mounts.items():
        spans = clip((starts[disk], ends.get(disk, until_s)), windows)
        seconds = sum(high - low for low, high in spans)
        price = mounted.usd_per_month
        if seconds:
            found.append(
                DiskCost(
                    disk=disk,
                    zone=mounted.zone,
                    size_gib=mounted.size_gib,
                    seconds=seconds,
                    cost_usd=None if price is None else seconds / _MONTH_S * price,
                )
            )
    return sorted(found, key=lambda one: one.disk)
