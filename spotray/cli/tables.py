"""Text for people: tables, money and durations, and results as JSON.

On a terminal tables are drawn by rich; elsewhere they are plain aligned lines, fit
for a log or for ``grep``.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under their columns. A column that starts with ``>`` is set right."""
    if not sys.stdout.isatty():
        print("\n".join(plain_table(title, columns, rows)))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(column.lstrip(">"), justify="right" if column[0] == ">" else "left")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # a name in brackets is no markup
    Console().print(table)


def plain_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table without colours and frames."""
    names = [column.lstrip(">") for column in columns]
    widths = [max(len(cell) for cell in cells) for cells in zip(names, *rows, strict=True)]
    lines = [title] if title else []
    for row in [names, *rows]:
        cells = [
            cell.rjust(width) if column[0] == ">" else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        ]
        lines.append(("  " + "  ".join(cells)).rstrip())
    return lines


def print_json(result: Any) -> None:
    """Print a result object as JSON; numbers that JSON does not know become null."""
    print(json.dumps(plain(result), indent=2, allow_nan=False))


def plain(value: Any) -> Any:
    """A result object as dicts, lists, strings and finite numbers."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        derived = [name for name, kind in vars(type(value)).items() if isinstance(kind, property)]
        return fields | {name: plain(getattr(value, name)) for name in derived}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def usd(value: float | None) -> str:
    """Money, with cents; more digits where it is less than a dollar.

    >>> usd(12.345), usd(0.01234), usd(None)
    ('$12.35', '$0.0123', 'unknown')
    """
    if value is None:
        return "unknown"
    return f"${value:.2f}" if abs(value) >= 1 or value == 0 else f"${value:.4f}"


def percent(frac: float | None) -> str:
    """A fraction in percent.

    >>> percent(0.625), percent(None)
    ('62.5 %', 'unknown')
    """
    return "unknown" if frac is None else f"{100 * frac:.1f} %"


def duration(seconds: float | None) -> str:
    """Seconds in the largest units that say something.

    >>> duration(2.345), duration(75), duration(7384), duration(None)
    ('2.3 s', '1 min 15 s', '2 h 3 min', '-')
    """
    if seconds is None:
        return "-"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def fine_duration(seconds: float | None) -> str:
    """Like `duration`, with hundredths where seconds are few.

    >>> fine_duration(0.0523), fine_duration(12.34), fine_duration(75), fine_duration(None)
    ('0.05 s', '12.3 s', '1 min 15 s', '-')
    """
    if seconds is not None and seconds < 9.995:
        return f"{seconds:.2f} s"
    return duration(seconds)
