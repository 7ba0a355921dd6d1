"""``spotray status`` and ``spotray cost`` of a sweep: a line per trial, and the sums."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from typing import TYPE_CHECKING

from spotray.cli.tables import duration, percent, print_json, print_table, usd
from spotray.report.sweep import cost_words, market_words, metric_words, sweep_cost_words

if TYPE_CHECKING:
    from spotray.ledger.sweep import SweepSummary


def run_status(args: argparse.Namespace) -> int:
    """Print a sweep's status.

    Raises:
        ConfigError: recoveries are asked for: these are told of one trial.
    """
    from spotray.cli.status import follow
    from spotray.clock import SystemClock
    from spotray.errors import ConfigError
    from spotray.ledger.sweep import summarize_sweep
    from spotray.ledger.sweepdir import SweepReader

    if args.recoveries:
        raise ConfigError(
            f"--recoveries is about one trial, and {args.run_dir} is a sweep: give the folder of "
            f"one of its runs, {args.run_dir}/trials/RUN"
        )
    reader = SweepReader(args.run_dir)

    def look() -> tuple[str, bool]:
        summary = summarize_sweep(reader.poll())
        return headline(summary), summary.state == "running"

    if args.follow:
        follow(look, clock=SystemClock())
    summary = summarize_sweep(reader.poll())
    if args.json:
        print_json(summary)
    else:
        show(summary, now_s=time.time())
    return 0


def run_cost(sweep_dir: str, *, json: bool) -> int:
    """Print a sweep's cost."""
    from spotray.ledger.sweep import summarize_sweep
    from spotray.ledger.sweepdir import load_sweep

    summary = summarize_sweep(load_sweep(sweep_dir))
    if json:
        print_json(summary.cost)
    else:
        show_cost(summary)
    return 0


def headline(summary: SweepSummary) -> str:
    """A sweep in one line."""
    counts = Counter(trial.state for trial in summary.trials)
    trials = ", ".join(f"{counts[state]} {state}" for state in sorted(counts))
    name = summary.name or summary.sweep_dir
    words = f"{name}: {summary.state}, {len(summary.trials)} trials"
    return f"{words}{': ' if trials else ''}{trials}{_best(summary)}"


def show(summary: SweepSummary, *, now_s: float) -> None:
    """Print a status for people."""
    print(headline(summary))
    if summary.state == "running":
        print(f"last event  {duration(max(0.0, now_s - summary.until_s))} ago")
    spent = summary.goodput
    lost = [f"{cause} {duration(s)}" for cause, s in spent.lost_s.items() if s >= 0.05]
    waited = f" ({duration(summary.waited_s)} of it without workers)" if summary.waited_s else ""
    print(
        f"time        {duration(spent.wall_s)} of trials{waited}, "
        f"goodput {percent(summary.goodput_frac)} ({spent.steps} steps)"
        f"{'; ' if lost else ''}{', '.join(lost)}"
    )
    print(
        f"losses      {summary.preemptions_noticed} preemptions with notice, "
        f"{summary.preemptions_silent} without; {summary.steps_lost} steps lost"
    )
    print(f"cost        {_cost_line(summary)}")
    _print_held_back(summary)
    _print_warnings(summary)
    if summary.trials:
        print()
        _show_trials(summary)


def show_cost(summary: SweepSummary) -> None:
    """Print a cost for people: by trial, and as of a run."""
    from spotray.cli.cost import MONEY, bill_lines, cells, show_cuts, show_groups

    cost = summary.cost
    print(f"cost {_cost_line(summary)}")
    for line in bill_lines(cost.total):
        print(line)
    rows = [[t.trial, t.state, *cells(t.bill.money)] for t in summary.trials]
    rest = (("idle", cost.idle), ("head", cost.head))
    rows += [[name, "", *cells(money)] for name, money in rest if money.seconds]
    if rows:
        print()
        print_table("By trial", ["trial", "state", *MONEY], rows)
    show_groups(cost.total)
    show_cuts(cost.total)
    _print_held_back(summary)
    for warning in dict.fromkeys([*summary.warnings, *cost.total.left_out]):
        print(f"warning     {warning}")


def _show_trials(summary: SweepSummary) -> None:
    columns = ["trial", "state", ">step", f">{summary.metric or 'metric'}", ">workers", "market"]
    columns += [">preemptions", ">steps lost", ">goodput", ">cost", ">saved"]
    rows = []
    for trial in summary.trials:
        here, bill = trial.presence, trial.bill
        rows.append(
            [
                trial.trial,
                trial.state,
                str(trial.step),
                metric_words(trial.metric),
                str(here.workers) if here.workers else "-",
                market_words(here.markets),
                str(here.preemptions_noticed + here.preemptions_silent),
                str(trial.steps_lost),
                percent(trial.goodput_frac),
                cost_words(bill.money, unseen_nodes=bill.unseen_nodes),
                percent(bill.saved_frac),
            ]
        )
    print_table("Trials", columns, rows)
    for trial in summary.trials:
        if trial.why:
            print(f"  {trial.trial}: {' '.join(trial.why.split())}")


def _cost_line(summary: SweepSummary) -> str:
    from spotray.cli.cost import unknown_time

    cost = summary.cost
    return (
        f"{sweep_cost_words(cost)}, on demand {usd(cost.total.total.on_demand_cost_usd)}, "
        f"saved {percent(cost.total.saved_frac)}{unknown_time(cost.total)}"
    )


def _best(summary: SweepSummary) -> str:
    for trial in summary.trials:
        if trial.trial == summary.best:
            return f"; best {summary.metric} {metric_words(trial.metric)} ({trial.trial})"
    return ""


def _print_held_back(summary: SweepSummary) -> None:
    """Trials that the budget did not let begin; the reason of the last one speaks for all."""
    if summary.held_back:
        *_, why = summary.held_back.values()
        print(f"budget      {len(summary.held_back)} trials did not begin: {why}")


def _print_warnings(summary: SweepSummary) -> None:
    for warning in summary.warnings:
        print(f"warning     {warning}")
    if summary.damaged_lines:
        print(f"warning     {summary.damaged_lines} damaged journal lines were left out")
