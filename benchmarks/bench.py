"""What all benchmarks share: arguments, progress lines, rows, summaries, a bar picture.

A row is one flat measurement: plain columns, one value each. All rows of a run go to
one JSON file as a list, and the picture of them beside it.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from spotray.lab import processes

Row = Mapping[str, Any]

ROOT = Path(__file__).parents[1]
_STARTED_S = time.monotonic()


def parser(file: str, description: str | None) -> argparse.ArgumentParser:
    """A parser with ``--quick`` and ``--json``; a benchmark adds its own.

    Args:
        file: The benchmark's ``__file__``; without ``--json``, rows go to ``out/rows.json``
            beside it.
        description: The first paragraph is shown by ``--help``.
    """
    first = (description or "").split("\n\n")[0]
    made = argparse.ArgumentParser(description=first, allow_abbrev=False)
    made.add_argument("--quick", action="store_true", help="the smallest run that shows anything")
    made.add_argument(
        "--json",
        type=Path,
        default=Path(file).parent / "out" / "rows.json",
        metavar="FILE",
        help="where the rows go, and the picture of them beside it; default: %(default)s",
    )
    return made


def names(known: Iterable[str]) -> Callable[[str], tuple[str, ...]]:
    """An argument's type: some of the known names, with commas between them."""
    choices = tuple(known)

    def read(text: str) -> tuple[str, ...]:
        given = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
        for name in given:
            if name not in choices:
                near = difflib.get_close_matches(name, choices, n=1, cutoff=0.0)
                raise argparse.ArgumentTypeError(f"unknown {name!r}: did you mean {near[0]!r}?")
        if not given:
            raise argparse.ArgumentTypeError(f"give some of {','.join(choices)}")
        return given

    return read


def at_least(low: int) -> Callable[[str], int]:
    """An argument's type: a whole number not below ``low``."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = low - 1
        if number < low:
            raise argparse.ArgumentTypeError(f"{text!r}: give a whole number of {low} or more")
        return number

    return read


def say(text: str) -> None:
    """One line of progress, on stderr, with the seconds since the start."""
    print(f"[{time.monotonic() - _STARTED_S:6.1f} s] {text}", file=sys.stderr, flush=True)


def end_like_ctrl_c() -> None:
    """Make SIGTERM raise as Ctrl-C does, so that every ``finally`` runs."""

    def stop(number: int, frame: Any) -> NoReturn:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)


def end_descendants() -> None:
    """Kill all that this process started, also what got away from its parent and came to it."""
    processes.kill(os.getpid())
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return  # nobody is left


def machine() -> str:
    """One line on where and of what the numbers are: hardware, versions, commit, date."""
    import ray
    import torch

    sha = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True
    )
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} CPUs ({platform.machine()}), {memory_gib:.0f} GiB, "
        f"Python {platform.python_version()}, Ray {ray.__version__}, torch {torch.__version__}, "
        f"commit {sha.stdout.strip() or 'unknown'}, {time.strftime('%Y-%m-%d')}"
    )


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """All rows as a JSON list, one a line; the file is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(row, allow_nan=False) for row in rows)
    part = path.with_name(path.name + ".part")
    part.write_text(f"[\n{lines}\n]\n" if rows else "[]\n")
    part.replace(path)


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Some values of one kind."""

    count: int
    median: float
    low: float
    high: float

    def text(self, digits: int = 1) -> str:
        """The median, and where there are several values the least and the most.

        >>> Spread(count=3, median=2.0, low=1.0, high=4.0).text()
        '2.0 (1.0-4.0)'
        """
        middle = f"{self.median:.{digits}f}"
        if self.count == 1:
            return middle
        return f"{middle} ({self.low:.{digits}f}-{self.high:.{digits}f})"


def spread(values: Iterable[float], *, inner: bool = False) -> Spread | None:
    """Median with least and most, or with ``inner`` the first and third quartile; None of none."""
    given = sorted(values)
    if not given:
        return None
    low, high = given[0], given[-1]
    if inner and len(given) > 1:
        low, _, high = statistics.quantiles(given, n=4, method="inclusive")
    return Spread(count=len(given), median=statistics.median(given), low=low, high=high)


def by_key(rows: Iterable[Row], *columns: str) -> dict[tuple[Any, ...], list[Row]]:
    """Rows with the same values in some columns together, in the order of their first."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[c] for c in columns), []).append(row)
    return groups


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Columns under their heads: the first to the left, the others to the right."""
    body = [list(header), *(list(line) for line in lines)]
    widths = [max(len(line[i]) for line in body) for i in range(len(header))]

    def render(line: Sequence[str]) -> str:
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        return "  ".join(cells).rstrip()

    return "\n".join(render(line) for line in body)


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bar of a picture; ``parts`` add up to its length."""

    group: str
    label: str
    parts: tuple[tuple[str, float], ...]  # name ("" for the whole), length
    note: str = ""  # written instead of the length


def bars(path: Path, given: Sequence[Bar], *, title: str, unit: str, log_scale: bool) -> bool:
    """Draw horizontal bars in groups to ``path`` (.svg or .png); False without matplotlib.

    On a log scale the parts of a bar share its drawn length as they share the true one,
    for parts that are laid end to end on such a scale cannot be compared.
    """
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups = by_key(({"group": bar.group, "bar": bar} for bar in given), "group")
    totals = [sum(length for _, length in bar.parts) for bar in given]
    floor = min((t for t in totals if t > 0), default=1.0) / 2 if log_scale else 0.0
    kinds = [name for bar in given for name, _ in bar.parts if name]
    colors = {name: f"C{i + 1}" for i, name in enumerate(dict.fromkeys(kinds))}
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.3 * (len(given) + len(groups))))
    position, ticks = 0.0, []
    for (group,), members in groups.items():
        axes.text(0, position, f"{group} ", transform=axes.get_yaxis_transform(), weight="bold")
        position += 1
        for bar in (member["bar"] for member in members):
            total = sum(length for _, length in bar.parts)
            left = floor
            for name, length in bar.parts if total > 0 else ():
                share = (total / floor) ** (length / total) if log_scale else 0.0
                width = left * (share - 1) if log_scale else length
                axes.barh(position, width, left=left, color=colors.get(name, "C0"))
                left += width
            axes.text(max(total, floor), position, " " + (bar.note or f"{total:.3g}"), va="center")
            ticks.append((position, bar.label))
            position += 1
    axes.set_yticks([at for at, _ in ticks], [label for _, label in ticks])
    axes.set_ylim(position - 0.4, -0.6)
    most = max([*totals, 2 * floor])
    if log_scale:
        axes.set_xscale("log")
        axes.set_xlim(floor, floor * (most / floor) ** 1.2)
    elif most > 0:
        axes.set_xlim(0, most * 1.15)
    axes.set_xlabel(unit)
    axes.set_title(title)
    for name, color in colors.items():
        axes.barh(0, 0, color=color, label=name)
    if colors:
        axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, bbox_inches="tight")
    pyplot.close(figure)
    return True
