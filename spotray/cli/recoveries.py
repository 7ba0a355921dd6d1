"""``spotray status RUN_DIR --recoveries``: each recovery, and where its seconds went."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from spotray.cli.tables import duration, fine_duration, plain_table

if TYPE_CHECKING:
    from spotray.ledger.recovery import Recovery, RecoverySummary

_LOG_WIDTH = 100  # where there is no terminal
_NARROWEST = 30
_INDENT = " " * 6
_KEPT = "\xa0"  # a space at which no line is broken


def print_recoveries(summary: RecoverySummary, *, began_s: float) -> None:
    """Print a row and a line of phases for each recovery, sums, and what went wrong.

    Args:
        began_s: Start of the job, Unix seconds; times are told from there.
    """
    on_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if on_terminal else _LOG_WIDTH
    lines = recovery_lines(summary, began_s=began_s, width=width)
    if not on_terminal:
        print("\n".join(text for text, _ in lines))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console()
    for text, style in lines:
        console.print(Text(text, style=style))


def recovery_lines(
    summary: RecoverySummary, *, began_s: float, width: int
) -> Iterator[tuple[str, str]]:
    """Lines and their styles. Only rows of a table may be wider than ``width``."""
    if summary.recoveries:
        yield from _table(summary, began_s=began_s, width=width)
        yield "", ""
        yield from _sums(summary)
    setbacks = sorted((*summary.fallbacks, *summary.fenced_out), key=lambda event: event.at_s)
    if setbacks:
        from spotray.ledger.describe import describe

        yield "", ""
        for event in setbacks:
            text = f"{duration(event.at_s - began_s)}: {describe(event)}"
            for line in _wrapped(text, width, first="  ", then=_INDENT):
                yield line, "yellow"


def _table(summary: RecoverySummary, *, began_s: float, width: int) -> Iterator[tuple[str, str]]:
    columns = [">at", "kind", "mode", "workers", ">took", ">pause", ">steps lost", "from"]
    rows = [
        [
            duration(one.lost_at_s - began_s),
            one.kind + (", all" if one.all_lost else ""),
            one.mode,
            f"{one.world_before} -> {one.world_after}",
            fine_duration(one.seconds),
            fine_duration(one.pause_s),
            "?" if one.steps_lost is None else str(one.steps_lost),
            one.source or "?",
        ]
        for one in summary.recoveries
    ]
    title, header, *rest = plain_table("Recoveries", columns, rows)
    yield title, "bold"
    yield header, "bold"
    for row, one in zip(rest, summary.recoveries, strict=True):
        yield row, ""
        for line in _wrapped(_below(one), width, first=_INDENT, then=_INDENT):
            yield line, "dim"


def _below(one: Recovery) -> str:
    """The phases of a recovery, seconds, and the nodes that it was about."""
    from spotray.ledger.describe import short

    phases = " + ".join(
        f"{phase.replace('_', _KEPT)}{_KEPT}{seconds:.2f}" for phase, seconds in one.parts.items()
    )
    nodes = " ".join(short(node_id) for node_id in one.node_ids)
    return f"{phases or 'not over yet'}{f'; nodes{_KEPT}' if nodes else ''}{nodes}"


def _sums(summary: RecoverySummary) -> Iterator[tuple[str, str]]:
    columns = ["kind", "mode", ">times", ">took, median", ">longest"]
    columns += [">pause, median", ">longest", ">steps lost, most"]
    rows = [
        [
            spread.kind,
            spread.mode,
            str(spread.count),
            fine_duration(spread.seconds_median),
            fine_duration(spread.seconds_max),
            fine_duration(spread.pause_s_median),
            fine_duration(spread.pause_s_max),
            str(spread.steps_lost_max),
        ]
        for spread in summary.spreads
    ]
    header, *rest = plain_table("", columns, rows)
    yield header, "bold"
    for row in rest:
        yield row, ""


def _wrapped(text: str, width: int, *, first: str, then: str) -> list[str]:
    lines = textwrap.wrap(
        text, width=max(width, _NARROWEST), initial_indent=first, subsequent_indent=then
    )
    return [line.replace(_KEPT, " ") for line in lines]
