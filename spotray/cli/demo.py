"""``spotray demo``: a training run that outlives its machines, on this one."""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from spotray.lab.demo import DemoResult, Stage
    from spotray.ledger.summary import RunSummary

_LOOK_S = 1.0  # between two looks at the journals
_LINE_S = 5.0  # between two lines about progress, where there is no terminal


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "demo",
        help="train on this machine while nodes are taken away, and compare",
        description=(
            "Start a Ray cluster of one on-demand head and four spot workers on this machine, "
            "train a vision transformer on handwritten digits while nodes are taken away, train "
            "once more undisturbed, and compare. Takes about five minutes on two cores; "
            "exit code 1 if a promise was broken."
        ),
    )
    parser.add_argument("--quick", action="store_true", help="a shorter job, the same losses")
    parser.add_argument("--json", metavar="FILE", help="write the result there, - for stdout")
    parser.add_argument(
        "--run-dir", metavar="DIR", help="for data, checkpoints and journals [demo-run/TIME]"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the demo and print what it showed."""
    import json

    from rich.console import Console

    from spotray.cli.tables import plain
    from spotray.lab.demo import FULL, QUICK, run_demo

    folder = Path(args.run_dir or f"demo-run/{time.strftime('%Y%m%d-%H%M%S')}")
    # With the result on standard output, all the rest goes beside it.
    console = Console(file=sys.stderr if args.json == "-" else sys.stdout)
    view = LiveView(console)
    folder.mkdir(parents=True, exist_ok=True)
    # Ray tells its driver on standard error of every node that dies: here they all do.
    with open(folder / "ray.log", "a") as ray_log, contextlib.redirect_stderr(ray_log):
        try:
            result = run_demo(folder, size=QUICK if args.quick else FULL, show=view.show)
        finally:
            view.close()
    for line in result_lines(result, folder):
        console.print(line, highlight=False)
    if args.json:
        text = json.dumps(plain(result), indent=2)
        if args.json == "-":
            print(text)
        else:
            Path(args.json).write_text(text + "\n")
    return 1 if result.broken else 0


class LiveView:
    """Shows a run while it goes on: a table on a terminal, lines elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def show(self, stage: Stage) -> None:
        """Go on to the next stage."""
        self.close()
        self._console.print(f"[bold]==> {stage.title}[/bold]", highlight=False)
        if stage.run_dir:
            self._stop.clear()
            work = self._table if self._console.is_terminal else self._lines
            self._thread = threading.Thread(target=work, args=(stage,), name="view", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop showing."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _table(self, stage: Stage) -> None:
        from rich.live import Live

        from spotray.ledger.summary import summarize

        reader = None
        with Live(
            console=self._console, refresh_per_second=2, redirect_stderr=False, transient=True
        ) as live:
            while not self._stop.wait(_LOOK_S):
                reader = reader or _open(stage.run_dir)
                if reader is not None:
                    live.update(_render(summarize(reader.poll(), until_s=time.time())))

    def _lines(self, stage: Stage) -> None:
        from spotray.cli.status import headline
        from spotray.ledger.describe import describe
        from spotray.ledger.summary import summarize

        began_s = time.time()
        reader, shown, told_at = None, 0, 0.0
        while True:
            last_look = self._stop.wait(_LOOK_S)
            reader = reader or _open(stage.run_dir)
            if reader is not None:
                run = reader.poll()
                fresh = [e for e in run.events[shown:] if e.at_s >= began_s]
                news = [e for e in fresh if type(e).__name__ in _NEWS]
                shown = len(run.events)
                for event in news:
                    self._console.print(f"    {describe(event)}", highlight=False)
                if time.monotonic() - told_at >= _LINE_S or last_look:
                    told_at = time.monotonic()
                    line = headline(summarize(run, until_s=time.time()))
                    self._console.print(f"  {line}", highlight=False)
            if last_look:
                return


# What a newcomer should see go by; the rest is in the journal.
_NEWS = {
    "NoticeReceived",
    "NodeDown",
    "FaultInjected",
    "WorkerGroupStarted",
    "Restored",
    "ResizeAgreed",
    "FellBack",
    "MemberFencedOut",
    "MemberReady",
    "CheckpointCommitted",
    "Warned",
    "TrainingDone",
}


def _open(run_dir: str) -> Any:
    """A reader of the run's journal; None while there is none yet."""
    from spotray.errors import SpotrayError
    from spotray.ledger.rundir import RunReader

    try:
        return RunReader(run_dir)
    except SpotrayError:
        return None


def _render(summary: RunSummary) -> RenderableType:
    """One frame of the live view."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from spotray.cli.tables import duration, percent, usd

    table = Table(box=None, pad_edge=False)
    for name in ("NODE", "MARKET", "STATE", "FOR", "WORKER"):
        table.add_column(name)
    for node in summary.nodes:
        if node.state in ("preempted", "failed", "shut down") and (
            summary.until_s - node.since_s > 15
        ):
            continue
        style = {"preempted": "red", "failed": "red", "noticed": "yellow", "draining": "yellow"}
        table.add_row(
            node.name,
            node.market,
            Text(node.state, style=style.get(node.state, "green")),
            duration(summary.until_s - node.since_s),
            "yes" if node.has_worker else "",
        )
    loss = "" if summary.loss is None else f"   loss {summary.loss:.3f}"
    head = (
        f"step {summary.step}{loss}   workers {summary.world_size}   "
        f"goodput {percent(summary.goodput.goodput_frac)}   "
        f"cost {usd(summary.cost.total.cost_usd)} "
        f"(on demand {usd(summary.cost.total.on_demand_cost_usd)})"
    )
    return Group(Text(head, style="bold"), table, Text(f"last: {summary.last_event}", style="dim"))


def result_lines(result: DemoResult, folder: Path) -> list[str]:
    """The result for a reader, line by line."""
    from spotray.cli.tables import duration, percent, usd

    lost, sha = result.preemptions, result.weights_sha256
    accuracy = {k: "-" if v is None else f"{v:.4f}" for k, v in result.accuracy.items()}
    lines = [
        "",
        f"[bold]{lost['noticed'] + lost['silent']} nodes lost in {result.steps} steps[/bold]: "
        f"{lost['noticed']} with notice, {lost['silent']} without",
        f"  {'event':<10} {'workers':>9} {'seconds':>8} {'steps lost':>11}  state from",
    ]
    for row in result.recoveries:
        before, after = row["world_size"]
        seconds = "-" if row["seconds"] is None else f"{row['seconds']:.1f}"
        steps = "-" if row["steps_lost"] is None else row["steps_lost"]
        kind = f"{row['kind']}{' (all)' if row['all_lost'] else ''}"
        lines.append(
            f"  {kind:<12} {before:>3} -> {after} {seconds:>8} {steps:>11}  {row['source']}"
        )
    once = "each exactly once an epoch" if result.samples_exactly_once else "NOT exactly once"
    same = "the same, bit for bit" if result.same_weights else "DIFFERENT"
    lines += [
        f"weights        {sha['disturbed'][:16]} disturbed",
        f"               {sha['undisturbed'][:16]} undisturbed: {same}",
        f"accuracy       {accuracy['disturbed']} disturbed, {accuracy['undisturbed']} undisturbed",
        f"samples        {once}",
        f"steps lost     {result.steps_lost_noticed} with notice, at most "
        f"{result.steps_lost_silent_max} without, {result.steps_lost_all_max} when all were lost",
        f"recovery       {duration(result.recovery_s['median'])} median, "
        f"{duration(result.recovery_s['max'])} at most",
        f"goodput        {percent(result.goodput_frac)} of "
        f"{duration(result.wall_s['disturbed'])}; undisturbed, the job took "
        f"{duration(result.wall_s['undisturbed'])}",
        f"cost           {usd(result.cost_usd)} on spot; the same machines for the same time on "
        f"demand {usd(result.on_demand_cost_usd)} ({percent(result.saved_frac)} saved)",
        f"               the undisturbed run on demand "
        f"{usd(result.undisturbed_on_demand_cost_usd)}: here minutes stand for hours, so losses "
        "weigh more than in a real run",
        f"more           spotray status {folder}/disturbed --recoveries",
    ]
    if result.broken:
        lines.append(f"[bold red]broken: {'; '.join(result.broken)}[/bold red]")
    return lines
