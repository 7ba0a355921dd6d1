"""The page of a sweep: its trials, their nodes and their money."""

from __future__ import annotations

from spotray.events import Reported
from spotray.ledger.sweep import SweepEvents, SweepSummary, metric_of, plain_events, summarize_sweep
from spotray.report import figures
from spotray.report.page import Page, Section, Table, clock
from spotray.report.rows import is_number, rows_of, thinned
from spotray.report.run import (
    MONEY,
    axis_of,
    decisions_section,
    hazard_section,
    money_cells,
    money_numbers,
    money_section,
    money_table,
    nodes_section,
)
from spotray.report.sweep import metric_words
from spotray.report.tables import duration, percent

_POINTS = 300  # of one trial's curve


def page_of_sweep(sweep: SweepEvents) -> Page:
    """Everything that a sweep's journals tell, as a page."""
    summary = summarize_sweep(sweep)
    events = plain_events(sweep)
    bill = summary.cost.total
    rows = rows_of(events, bill, until_s=summary.until_s)
    axis = axis_of(summary.started_at_s, bill, events)
    best = next((t for t in summary.trials if t.trial == summary.best), None)
    return Page(
        title=f"{summary.name or 'Sweep'}: {summary.state}",
        subtitle=f"{len(summary.trials)} trials, began {clock(axis.zero_s)} UTC, "
        f"{duration(axis.end_s - axis.zero_s)}",
        numbers=[
            *money_numbers(bill),
            ("goodput", percent(summary.goodput_frac), "of the trials' time with workers"),
            ("trials", str(len(summary.trials)), f"{summary.goodput.steps} steps"),
            *([(f"best {summary.metric}", metric_words(best.metric), best.trial)] if best else []),
            (
                "preemptions",
                str(summary.preemptions_noticed + summary.preemptions_silent),
                f"{summary.preemptions_noticed} with notice, {summary.preemptions_silent} without",
            ),
            ("steps done again", str(summary.steps_lost), "over all trials"),
        ],
        warnings=[*dict.fromkeys([*summary.warnings, *bill.left_out])],
        sections=[
            _trials(sweep, summary, axis),
            nodes_section(rows, bill, axis),
            money_section(
                rows,
                bill,
                axis,
                first=[_bills(summary), money_table("By cause", "cause", bill.by_cause)],
            ),
            decisions_section(events, axis),
            hazard_section(events),
        ],
        data={"cost": summary.cost, "goodput": summary.goodput},
    )


def _trials(sweep: SweepEvents, summary: SweepSummary, axis: figures.Axis) -> Section:
    curves = []
    for trial in summary.trials:
        told = [
            (event.at_s, value, event.step)
            for run in trial.runs
            for event in sweep.runs.get(run, ())
            if isinstance(event, Reported)
            and (value := metric_of(event.metrics, summary.metric)) is not None
            and is_number(value)
        ]
        if told:
            curves.append(thinned(trial.trial, sorted(told), _POINTS))
    columns = ["trial", "state", ">step", f">{summary.metric or 'metric'}", ">preemptions"]
    table = Table(
        caption="Trials",
        columns=[*columns, ">steps again", ">goodput", ">saved"],
        rows=[
            [
                trial.trial,
                trial.state,
                str(trial.step),
                metric_words(trial.metric),
                str(trial.presence.preemptions_noticed + trial.presence.preemptions_silent),
                str(trial.steps_lost),
                percent(trial.goodput_frac),
                percent(trial.bill.saved_frac),
            ]
            for trial in summary.trials
        ],
    )
    words = f"{summary.metric} over time of {len(curves)} trials"
    return Section(
        name="trials-section",
        title="Trials",
        figures=[(figures.trials(curves, summary.metric or "metric", axis), words)]
        if curves
        else [],
        tables=[table] if summary.trials else [],
    )


def _bills(summary: SweepSummary) -> Table:
    rest = (("idle", summary.cost.idle), ("head", summary.cost.head))
    rows = [[trial.trial, *money_cells(trial.bill.money)] for trial in summary.trials]
    rows += [[name, *money_cells(money)] for name, money in rest if money.seconds]
    return Table(caption="By trial", columns=["trial", *MONEY], rows=rows)
