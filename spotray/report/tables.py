"""Text for people: aligned tables, money, fractions and durations, without colours."""

from __future__ import annotations

from collections.abc import Sequence


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
