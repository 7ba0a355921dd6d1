"""One run as one HTML file that needs nothing from the network."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from typing import Any

from spotray.errors import ConfigError
from spotray.report.figures import Figure
from spotray.report.plain import plain

_MOST_ROWS = 2000  # of one table; a browser takes seconds for many more

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="spotray">
<title>{title}</title>
<style>
{css}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the report</a>
<header>
<h1>{title}</h1>
<p class="soft">{subtitle}</p>
<nav aria-label="Sections"><ul>{links}</ul></nav>
</header>
<main id="main">
{body}
</main>
<footer>Written by spotray from the journals of the run alone; times are UTC.
The numbers are those of <code>spotray cost --json</code> and
<code>spotray status --json</code>.</footer>
<noscript><p>The pictures need JavaScript; every one of them has a table.</p></noscript>
<script type="application/json" id="report-data">{data}</script>
<script type="application/json" id="figures">{figures}</script>
<script type="text/plain">{plotly}</script>
<script>
{js}</script>
</body>
</html>
"""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows under their columns. A column that starts with ``>`` is set right."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading, what there is to see, pictures with their tables, tables alone."""

    name: str  # of the link to it
    title: str
    text: str = ""
    figures: Sequence[tuple[Figure, str]] = ()  # with what a picture shows, in words
    alternative: Sequence[Table] = ()  # the pictures' numbers, folded away
    tables: Sequence[Table] = ()


@dataclass(frozen=True, kw_only=True)
class Page:
    """All that a page says."""

    title: str
    subtitle: str
    numbers: Sequence[tuple[str, str, str]]  # name, value, small print
    warnings: Sequence[str] = ()
    sections: Sequence[Section] = ()
    data: Mapping[str, Any] = field(default_factory=dict)  # result objects, for programs


def to_html(page: Page) -> str:
    """The page as one file.

    Raises:
        ConfigError: plotly, which draws the pictures, is not installed.
    """
    sections = [one for one in page.sections if one.figures or one.tables or one.text]
    figures = [figure for one in sections for figure, _ in one.figures]
    links = "".join(
        f'<li><a href="#{escape(one.name)}">{escape(one.title)}</a></li>' for one in sections
    )
    here = files("spotray.report")
    body = [_numbers(page.numbers), _warnings(page.warnings), *map(_section, sections)]
    return _PAGE.format(
        title=escape(page.title),
        subtitle=escape(page.subtitle),
        links=links,
        body="\n".join(body),
        data=_json(page.data),
        figures=_json(figures),
        css=here.joinpath("page.css").read_text(encoding="utf-8"),
        js=here.joinpath("page.js").read_text(encoding="utf-8"),
        plotly=_plotly(),
    )


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as exc:
        raise ConfigError(
            "a report needs plotly for its pictures: pip install 'spotray[report]'"
        ) from exc
    return str(get_plotlyjs()).replace("</script", "<\\/script")


def _json(value: Any) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(plain(value), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _numbers(numbers: Iterable[tuple[str, str, str]]) -> str:
    items = [
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(small)}</small></dd></div>"
        for name, value, small in numbers
    ]
    return f'<dl class="figures">{"".join(items)}</dl>'


def _warnings(warnings: Sequence[str]) -> str:
    if not warnings:
        return ""
    items = "".join(f"<li>{escape(one)}</li>" for one in warnings)
    return (
        '<section class="warnings" aria-label="What is missing">'
        f"<strong>Left out, or taken on trust</strong><ul>{items}</ul></section>"
    )


def _section(one: Section) -> str:
    parts = [f'<section id="{escape(one.name)}"><h2>{escape(one.title)}</h2>']
    if one.text:
        parts.append(f"<p>{escape(one.text)}</p>")
    for figure, words in one.figures:
        height = figure["layout"]["height"]
        parts.append(
            f'<div class="figure" id="{escape(figure["id"])}" style="min-height:{height}px" '
            f'role="img" tabindex="0" aria-label="{escape(words)}"></div>'
        )
    if one.alternative:
        tables = "".join(map(_table, one.alternative))
        parts.append(f"<details><summary>As a table</summary>{tables}</details>")
    parts += map(_table, one.tables)
    return "".join([*parts, "</section>"])


def _table(table: Table) -> str:
    def row(cells: Iterable[str], tag: str, scope: str = "") -> str:
        line = ""
        for cell, column in zip(cells, table.columns, strict=True):
            right = ' class="n"' if column[0] == ">" else ""
            line += f"<{tag}{scope}{right}>{escape(cell)}</{tag}>"
        return f"<tr>{line}</tr>"

    caption = table.caption
    if len(table.rows) > _MOST_ROWS:
        caption += f" (the first {_MOST_ROWS} of {len(table.rows)} rows)"
    head = row([column.lstrip(">") for column in table.columns], "th", ' scope="col"')
    lines = "\n".join(row(cells, "td") for cells in table.rows[:_MOST_ROWS])
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.caption)}">'
        f"<table><caption>{escape(caption)}</caption><thead>{head}</thead>"
        f"<tbody>{lines}</tbody></table></div>"
    )


def clock(at_s: float) -> str:
    """A time as people write it.

    >>> clock(0.0)
    '1970-01-01 00:00:00'
    """
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M:%S}"
