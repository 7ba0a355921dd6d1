"""A small table as CSV: read by pyarrow, each row with the place that an error can name."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Literal

from spotray.errors import ConfigError


def read_table(
    text: str, *, name: str, columns: Sequence[str], optional: Sequence[str] = ()
) -> Iterator[tuple[str, dict[str, str]]]:
    """The rows of a CSV document, and where each stands.

    Lines that are empty or begin with ``#`` are left out; cells are stripped of spaces.

    Args:
        text: with a line of column names first, in any order.
        name: what errors call the document.
        columns: all that it may have.
        optional: those of them that it may lack.

    Yields:
        ``"FILE, line 3"`` and the row's cells by column.

    Raises:
        ConfigError: no rows, other columns, or a row with more or fewer cells.
    """
    lines = [(n, line) for n, line in enumerate(text.splitlines(), 1) if _says_something(line)]
    if not lines:
        raise ConfigError(f"{name} has no rows: write {','.join(columns)} and rows below")
    head = [word.strip() for word in lines[0][1].split(",")]
    missing = [one for one in columns if one not in head and one not in optional]
    unknown = [one for one in head if one not in columns]
    if missing or unknown:
        raise ConfigError(
            f"{name}, line {lines[0][0]}: the columns are {', '.join(columns)}; "
            + "; ".join(
                f"{what} {', '.join(which)}"
                for what, which in (("missing", missing), ("unknown", unknown))
                if which
            )
        )
    read = _cells([line for _, line in lines[1:]], head, name, [n for n, _ in lines[1:]])
    for (number, _), row in zip(lines[1:], read, strict=True):
        cells = {key: (value or "").strip() for key, value in row.items()}
        yield f"{name}, line {number}", cells


def _cells(
    lines: list[str], head: list[str], name: str, numbers: list[int]
) -> list[dict[str, str | None]]:
    if not lines:
        return []
    # Here, since it takes a tenth of a second that few who import this module need.
    import pyarrow
    from pyarrow import csv

    short: list[str] = []

    def refuse(row: csv.InvalidRow) -> Literal["error"]:
        where = numbers[row.number - 1] if row.number else "?"
        short.append(
            f"{name}, line {where}: {row.actual_columns} cells, and {row.expected_columns} columns"
        )
        return "error"

    try:
        table = csv.read_csv(
            io.BytesIO("\n".join(lines).encode()),
            # On one thread pyarrow knows the number of a row that it refuses.
            read_options=csv.ReadOptions(column_names=head, use_threads=False),
            parse_options=csv.ParseOptions(invalid_row_handler=refuse),
            convert_options=csv.ConvertOptions(
                column_types={one: pyarrow.string() for one in head}, strings_can_be_null=False
            ),
        )
    except pyarrow.ArrowInvalid as exc:
        words = " ".join(str(exc).split())
        raise ConfigError(short[0] if short else f"{name}: {words}") from exc
    rows: list[dict[str, str | None]] = table.to_pylist()
    return rows


def _says_something(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")
