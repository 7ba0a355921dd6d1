"""What `spotray launch` is about to do, and what that may cost, for people."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from spotray.cli.tables import duration, plain_table, usd

if TYPE_CHECKING:
    from spotray.launch.estimate import TypeCost
    from spotray.launch.launch import Plan
    from spotray.market.prices import PriceRange


def show_plan(planned: Plan, *, show: Callable[[str], None]) -> None:
    """What will be done, and what it may cost."""
    costs, wishes = planned.estimate, planned.wishes
    title = f"Cluster {costs.cluster_name}, USD per hour of a node"
    columns = ["node type", "instance", ">nodes", "bought as", ">spot", ">on demand"]
    for line in plain_table(title, columns, [_cost_row(one) for one in costs.types]):
        show(line)
    low, high = costs.low_usd_per_hour, costs.high_usd_per_hour
    show(f"with all {costs.max_workers} workers  {_range(low, high, complete=not costs.unknown)}")
    idle = costs.idle_usd_per_hour
    show(f"with no job  {'unknown' if idle is None else f'{usd(idle)} per hour'}")
    if costs.hours is not None:
        total = _range(costs.low_usd, costs.high_usd, complete=not costs.unknown, per="")
        show(f"for {costs.hours:g} hours  {total}")
    if wishes.max_cost_usd is not None and high:
        at_least = duration(wishes.max_cost_usd / high * 3600)
        show(f"budget  {usd(wishes.max_cost_usd)} from the job's start: {at_least} at the highest")
    if wishes.deadline_s is not None:
        until = datetime.fromtimestamp(wishes.deadline_s).astimezone()
        show(f"deadline  {until:%Y-%m-%d %H:%M %Z}")
    if costs.unknown:
        show(f"price unknown  {', '.join(costs.unknown)}: give it with --prices FILE")
    if costs.sources:
        show(f"prices  {'; '.join(costs.sources)}; disks and traffic are not in it")
    show(f"job  {' '.join(planned.launch.command)}, as {planned.launch.name}")
    show(f"at its end  the cluster {'goes down' if wishes.down else 'stays up, and is paid for'}")
    for problem in planned.warnings:
        show(f"warning  {problem}")


def _cost_row(one: TypeCost) -> list[str]:
    nodes = str(one.max_nodes) if one.is_head else f"{one.min_nodes} to {one.max_nodes}"
    kinds = [
        *(["spot"] if one.may_be_spot else []),
        *(["on-demand"] if one.may_be_on_demand else []),
    ]
    return [
        one.name,
        ", ".join(one.instance_types) or "-",
        nodes,
        ", then ".join(kinds),
        _price(one.spot, asked=one.may_be_spot),
        _price(one.on_demand, asked=one.may_be_on_demand),
    ]


def _price(price: PriceRange | None, *, asked: bool) -> str:
    if price is None:
        return "unknown" if asked else "-"
    low, high = price.low_usd_per_hour, price.high_usd_per_hour
    return f"{low:.3f}" if low == high else f"{low:.3f}-{high:.3f}"


def _range(low: float | None, high: float | None, *, complete: bool, per: str = " per hour") -> str:
    if low is None:
        return "unknown"
    if not complete or high is None:
        return f"at least {usd(low)}{per}, without what is unknown"
    return f"{usd(low)}{per}" if low == high else f"{usd(low)} to {usd(high)}{per}"
