"""The page of one run: what it shows, in which order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from spotray.events import EpochAudited, Event
from spotray.ledger.account import Account, account
from spotray.ledger.describe import describe, short
from spotray.ledger.goodput import Goodput
from spotray.ledger.pricing import Money
from spotray.ledger.recovery import RecoverySummary
from spotray.ledger.rundir import RunEvents
from spotray.ledger.summary import RunSummary, summarize
from spotray.market.hazards import AgeBand, age_bands
from spotray.market.lives import node_lives
from spotray.report import figures
from spotray.report.decisions import decisions
from spotray.report.figures import Axis, age_words
from spotray.report.page import Page, Section, Table, clock
from spotray.report.rows import Rows, machine_of, rows_of
from spotray.report.tables import duration, fine_duration, percent, usd

MONEY = [">node time", ">cost", ">on demand", ">no price for"]


def page_of_run(run: RunEvents) -> Page:
    """Everything that a run's journals tell, as a page."""
    events = run.events
    summary = summarize(run)
    bill = account(events, damaged_lines=run.damaged_lines, unfinished_lines=run.unfinished_lines)
    rows = rows_of(events, bill)
    axis = axis_of(summary.started_at_s, bill, events)
    title = f"{summary.job or 'Nodes'}: {summary.state}"
    began = clock(axis.zero_s) if events else "-"
    return Page(
        title=title,
        subtitle=f"run {summary.run_id or '-'}, began {began} UTC, "
        f"{duration(axis.end_s - axis.zero_s)}",
        numbers=[
            *money_numbers(bill),
            (
                "goodput",
                percent(summary.goodput.goodput_frac),
                f"of {duration(summary.goodput.wall_s)}",
            ),
            *_job_numbers(summary),
        ],
        warnings=[*run.missing, *bill.left_out, *summary.warnings],
        sections=[
            nodes_section(rows, bill, axis),
            _world(rows, axis),
            *_curves(rows, axis, events),
            money_section(rows, bill, axis),
            _goodput(summary.goodput, bill),
            _losses(summary.recovery, axis),
            decisions_section(events, axis),
            hazard_section(events),
        ],
        data={"cost": bill, "goodput": summary.goodput, "recovery": summary.recovery},
    )


def axis_of(started_s: float | None, bill: Account, events: Sequence[Event]) -> Axis:
    """Time from the job's start to its last node's end."""
    starts = [node.start_s for node in bill.nodes] or [event.at_s for event in events[:1]]
    zero_s = started_s if started_s is not None else min(starts, default=0.0)
    ends = [node.end_s for node in bill.nodes] or [event.at_s for event in events[-1:]]
    return Axis(zero_s, max([*ends, zero_s + 1.0]))


def money_numbers(bill: Account) -> Iterator[tuple[str, str, str]]:
    """The bill in a few numbers."""
    doubt = "over " if bill.total.unpriced_s or bill.unseen_nodes else ""
    other = bill.billed_usd is not None and (bill.charges or bill.disks)
    yield (
        "node time",
        f"{doubt}{usd(bill.total.cost_usd)}",
        f"{duration(bill.total.seconds)} of nodes",
    )
    if other:
        no_price = doubt or any(disk.cost_usd is None for disk in bill.disks)
        billed = f"{'over ' if no_price else ''}{usd(bill.billed_usd)}"
        yield "billed", billed, "with free hours, shortest bills, disks"
    yield (
        "the same nodes, on demand",
        usd(bill.total.on_demand_cost_usd),
        f"saved {percent(bill.saved_frac)}",
    )
    if bill.same_steps.cost_usd is not None:
        more = "over " if bill.same_steps.unpriced_s else ""
        yield (
            "the same steps, on demand",
            f"{more}{usd(bill.same_steps.cost_usd)}",
            f"undisturbed, in {duration(bill.same_steps.seconds)}",
        )


def _job_numbers(summary: RunSummary) -> Iterator[tuple[str, str, str]]:
    lost = summary.recovery
    loss = "" if summary.loss is None else f"loss {summary.loss:.4g}"
    yield "steps", str(summary.step), loss
    yield (
        "preemptions",
        str(lost.preemptions_noticed + lost.preemptions_silent),
        f"{lost.preemptions_noticed} with notice, {lost.preemptions_silent} without",
    )
    steps_lost = sum(one.steps_lost or 0 for one in lost.recoveries)
    yield "steps done again", str(steps_lost), f"{lost.steps_lost_noticed} after a notice"
    yield (
        "recovery",
        fine_duration(lost.recovery_s_median),
        f"median; longest {fine_duration(lost.recovery_s_max)}",
    )


def nodes_section(rows: Rows, bill: Account, axis: Axis) -> Section:
    """The time line of machines."""
    fates = {loss.node_id: loss.kind for loss in rows.losses}
    table = Table(
        caption="Nodes while the job ran",
        columns=["node", "id", "market", ">from", ">to", "fate", *MONEY],
        rows=[
            [
                machine_of(node),
                short(node.node_id),
                node.market or "unknown",
                duration(node.start_s - axis.zero_s),
                duration(node.end_s - axis.zero_s),
                fates.get(node.node_id, ""),
                *money_cells(node.money),
            ]
            for node in bill.nodes
        ],
    )
    words = f"Time line of {len(bill.nodes)} nodes, of which {len(rows.losses)} were lost"
    return Section(
        name="nodes-section",
        title="Nodes",
        text="Each row is a machine while it was paid for. Arrow keys move a picture that has "
        "the focus, + and - zoom it, Escape shows all.",
        figures=[(figures.time_line(rows, axis), words)] if rows.bars else [],
        alternative=[table] if bill.nodes else [],
    )


def _world(rows: Rows, axis: Axis) -> Section:
    shown = []
    if rows.world:
        met = sum(workers > 0 for _, workers in rows.world)
        shown.append((figures.world(rows, axis), f"Workers over {met} generations"))
    if rows.throughput.values:
        most = max(rows.throughput.values)
        words = f"Samples per second over time, at most {most:.4g}"
        shown.append((figures.throughput(rows, axis), words))
    table = Table(
        caption="World size",
        columns=[">after", ">workers"],
        rows=[[duration(max(0.0, at_s - axis.zero_s)), str(n)] for at_s, n in rows.world],
    )
    return Section(
        name="workers",
        title="Workers and throughput",
        figures=shown,
        alternative=[table] if rows.world else [],
    )


def _curves(rows: Rows, axis: Axis, events: Sequence[Event]) -> Iterator[Section]:
    audits = {e.epoch: e.exactly_once for e in events if isinstance(e, EpochAudited)}
    text = ""
    if audits:
        good = sum(audits.values())
        text = f"In {good} of {len(audits)} epochs that were counted each sample was used once. "
    if rows.more_metrics:
        text += f"Not drawn: {', '.join(rows.more_metrics)}."
    yield Section(
        name="metrics",
        title="Loss and metrics",
        text=text,
        figures=[
            (figures.curve(one, rows, axis, index), f"{one.name}, last {one.values[-1]:.5g}")
            for index, one in enumerate(rows.curves)
        ],
        alternative=[
            Table(
                caption="Last, least and greatest",
                columns=["metric", ">last", ">least", ">greatest", ">step"],
                rows=[
                    [
                        one.name,
                        f"{one.values[-1]:.5g}",
                        f"{min(one.values):.5g}",
                        f"{max(one.values):.5g}",
                        str(one.steps[-1]),
                    ]
                    for one in rows.curves
                ],
            )
        ]
        if rows.curves
        else [],
    )


def money_section(rows: Rows, bill: Account, axis: Axis, *, first: Sequence[Table] = ()) -> Section:
    """Money against time, and the bill in every cut."""
    same = bill.same_steps.cost_usd
    drawn = figures.money(rows.money, axis, same_steps_usd=same, losses=rows.losses)
    words = (
        f"Price of the node time so far: {usd(bill.total.cost_usd)} at the end, beside "
        f"{usd(bill.total.on_demand_cost_usd)} on demand"
    )
    every = max(1, len(rows.money) // 20)
    over_time = Table(
        caption="Price of the node time so far",
        columns=[">after", ">price", ">on demand"],
        rows=[
            [duration(row.at_s - axis.zero_s), usd(row.cost_usd), usd(row.on_demand_usd)]
            for row in rows.money[::every]
        ],
    )
    cuts = (
        ("kind", bill.by_kind),
        ("market", bill.by_market),
        ("zone", bill.by_zone),
        ("week", bill.by_week),
    )
    return Section(
        name="money-section",
        title="Money",
        text="Node time at the price of each moment. What clouds do not bill or bill more, and "
        "disks, stand below it; together they are the bill.",
        figures=[(drawn, words)] if rows.money else [],
        alternative=[over_time] if rows.money else [],
        tables=[
            *(table for table in first if table.rows),
            *(money_table(f"By {name}", name, groups) for name, groups in cuts if groups),
            *_beside(bill),
        ],
    )


def _beside(bill: Account) -> Iterator[Table]:
    if bill.charges:
        yield Table(
            caption="What the clouds' terms change",
            columns=["node", "market", ">USD", "why"],
            rows=[[c.name, c.market, f"{c.usd:+.4f}", c.why] for c in bill.charges],
        )
    if bill.disks:
        yield Table(
            caption="Disks",
            columns=["disk", "zone", ">GiB", ">for", ">cost"],
            rows=[
                [d.disk, d.zone, str(d.size_gib), duration(d.seconds), usd(d.cost_usd)]
                for d in bill.disks
            ],
        )


def money_table(caption: str, name: str, groups: Mapping[str, Money]) -> Table:
    """Node time and its price by a name."""
    rows = [[key, *money_cells(money)] for key, money in groups.items()]
    return Table(caption=caption, columns=[name, *MONEY], rows=rows)


def money_cells(money: Money) -> list[str]:
    """A row's cells under `MONEY`."""
    return [
        duration(money.seconds),
        usd(money.cost_usd),
        usd(money.on_demand_cost_usd),
        duration(money.unpriced_s) if money.unpriced_s else "",
    ]


def _goodput(spent: Goodput, bill: Account) -> Section:
    parts = {"useful": spent.useful_s, **spent.lost_s}
    table = Table(
        caption="The job's time by what it was good for, with the price of the nodes meanwhile",
        columns=["cause", ">time", ">share", *MONEY],
        rows=[
            [
                name,
                fine_duration(parts[name]) if name in parts else "",
                percent(parts[name] / spent.wall_s) if name in parts else "",
                *money_cells(bill.by_cause.get(name, Money())),
            ]
            for name in dict.fromkeys([*parts, *bill.by_cause])
            if parts.get(name) or name in bill.by_cause
        ],
    )
    return Section(
        name="goodput-section",
        title="Goodput",
        text="Useful are the steps that survive; all else is told by its cause.",
        figures=[
            (
                figures.goodput_bars(spent, bill.by_cause),
                f"Goodput {percent(spent.goodput_frac)} of {duration(spent.wall_s)}",
            )
        ]
        if spent.wall_s
        else [],
        alternative=[table] if spent.wall_s else [],
    )


def _losses(recovery: RecoverySummary, axis: Axis) -> Section:
    rows = []
    for one in recovery.recoveries:
        longest = sorted(one.parts.items(), key=lambda part: -part[1])[:3]
        rows.append(
            [
                duration(max(0.0, one.lost_at_s - axis.zero_s)),
                one.kind,
                one.mode,
                f"{one.world_before} to {one.world_after}",
                fine_duration(one.seconds),
                fine_duration(one.pause_s),
                "-" if one.steps_lost is None else str(one.steps_lost),
                one.source,
                ", ".join(f"{name} {fine_duration(seconds)}" for name, seconds in longest),
            ]
        )
    told = [*recovery.fallbacks, *recovery.fenced_out]
    fell = [
        [duration(max(0.0, event.at_s - axis.zero_s)), describe(event)]
        for event in sorted(told, key=lambda event: event.at_s)
    ]
    columns = [">after", "kind", "mode", "workers", ">recovered in", ">pause", ">steps again"]
    tables = []
    if rows:
        columns += ["state from", "longest parts"]
        tables.append(Table(caption="Changes of the workers", columns=columns, rows=rows))
    if fell:
        tables.append(Table(caption="Setbacks", columns=[">after", "what"], rows=fell))
    return Section(name="losses", title="Losses and resizes", tables=tables)


def decisions_section(events: Sequence[Event], axis: Axis) -> Section:
    """Who decided what, and why."""
    rows = [
        [duration(max(0.0, one.at_s - axis.zero_s)), one.about, one.what, one.why]
        for one in decisions(events)
        if one.at_s <= axis.end_s
    ]
    table = Table(caption="Decisions", columns=[">after", "about", "what", "why"], rows=rows)
    return Section(name="decisions", title="Decisions", tables=[table] if rows else [])


def hazard_section(events: Sequence[Event]) -> Section:
    """How long spot nodes lived, as far as this run saw."""
    seen = node_lives(events)
    bands = age_bands(life.life for life in seen)
    words = f"Losses per node-hour in {len(bands)} age bands"
    lost = sum(life.ended for life in seen)
    return Section(
        name="hazard-section",
        title="Hazard seen",
        text=f"{lost} of {len(seen)} spot nodes were preempted; bars are 95 % confidence of a "
        "count. `spotray hazards` learns from many runs."
        if bands
        else "",
        figures=[(figures.hazard(bands), words)] if bands else [],
        alternative=[
            Table(
                caption="Losses by age",
                columns=["age", ">losses", ">node-hours", ">per hour", ">95 %"],
                rows=[_band(band) for band in bands],
            )
        ]
        if bands
        else [],
    )


def _band(band: AgeBand) -> list[str]:
    return [
        age_words(band),
        str(band.losses),
        f"{band.node_hours:.3f}",
        f"{band.hazard_per_hour:.3f}",
        f"{band.low_per_hour:.3f} to {band.high_per_hour:.3f}",
    ]
