"""Text for people: tables, money and durations, and results as JSON.

On a terminal tables are drawn by rich; elsewhere they are plain aligned lines, fit
for a log or for ``grep``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from spotray.report.plain import plain as plain
from spotray.report.tables import duration as duration
from spotray.report.tables import fine_duration as fine_duration
from spotray.report.tables import percent as percent
from spotray.report.tables import plain_table as plain_table
from spotray.report.tables import usd as usd


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


def print_json(result: Any) -> None:
    """Print a result object as JSON; numbers that JSON does not know become null."""
    print(json.dumps(plain(result), indent=2, allow_nan=False))
