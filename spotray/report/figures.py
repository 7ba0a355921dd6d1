"""Pictures of a run as plotly's own figures: plain values, drawn by the page itself.

A colour is the name of one of the page's own, ``@spot``, so that light and dark follow the
reader. No state is told by colour alone: bars have patterns, losses have signs, lines have dashes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from spotray.ledger.goodput import Goodput
from spotray.ledger.pricing import Money
from spotray.market.hazards import HOUR_S, AgeBand
from spotray.report.rows import (
    DRAINING,
    NOTICED,
    ON_DEMAND,
    SPOT,
    STARTING,
    Bar,
    Curve,
    Loss,
    MoneyRow,
    Rows,
)
from spotray.report.tables import duration, usd

Figure = dict[str, Any]

_STATES = {  # colour, pattern
    STARTING: ("@starting", "."),
    SPOT: ("@spot", ""),
    ON_DEMAND: ("@on-demand", "x"),
    NOTICED: ("@noticed", "/"),
    DRAINING: ("@draining", "\\"),
}
_KINDS = {  # of losses: words, colour, sign, dash
    "noticed": ("lost after a notice", "@lost", "x", "dot"),
    "silent": ("lost without notice", "@silent", "star-diamond", "solid"),
    "failure": ("failed", "@text", "triangle-down", "dash"),
}
# Seven colours that are told apart with any kind of colour vision, then again with dashes.
_LINES = tuple(f"@line{i}" for i in range(1, 8))
_DASHES = ("solid", "dash", "dot", "dashdot")
# A pattern lies on the colour, in that of the page.
_OVER = {"fillmode": "overlay", "fgcolor": "@page", "fgopacity": 0.55, "size": 6}
_NAMED_ROWS = 40  # of machines; more bear no names


@dataclass(frozen=True)
class Axis:
    """Time since ``zero_s`` (Unix seconds) in a unit that suits how long it lasts."""

    zero_s: float
    end_s: float

    @property
    def unit(self) -> tuple[float, str]:
        """Seconds of one unit, and its name."""
        lasts_s = self.end_s - self.zero_s
        for unit_s, name in ((60.0, "minutes"), (3600.0, "hours")):
            if lasts_s < 180 * unit_s:
                return unit_s, name
        return 86400.0, "days"

    def at(self, at_s: float) -> float:
        """A time on the axis; a ten-thousandth of the whole is more than anybody sees."""
        return round((at_s - self.zero_s) / self.unit[0], 4)


def figure(
    name: str, data: list[Figure], axis: Axis | None = None, *, height: int = 260, **layout: Any
) -> Figure:
    """One picture; with an ``axis`` it shows time, and moves with the others that do."""
    told: Figure = {"height": height, **layout}
    if axis is not None:
        told["xaxis"] = {
            "title": {"text": f"{axis.unit[1]} since the start"},
            "range": [0, axis.at(axis.end_s)],
            **layout.get("xaxis", {}),
        }
    return {"id": name, "data": data, "layout": told, "time": axis is not None}


def time_line(rows: Rows, axis: Axis) -> Figure:
    """What each machine did."""
    machines = list(dict.fromkeys(escape(bar.machine) for bar in rows.bars))
    data = [_bars(state, rows.bars, axis) for state in _STATES]
    lost = [_lost(kind, rows.losses, axis) for kind in _KINDS]
    row_px = 24 if len(machines) <= _NAMED_ROWS else max(2, 900 // len(machines))
    return figure(
        "nodes",
        [one for one in (*data, *lost) if one["x"]],
        axis,
        height=130 + row_px * max(len(machines), 2),
        barmode="overlay",
        bargap=0.25,
        yaxis={
            "autorange": "reversed",
            "categoryorder": "array",
            "categoryarray": machines,
            "showticklabels": len(machines) <= _NAMED_ROWS,
            "automargin": True,
            "fixedrange": True,
        },
    )


def _bars(state: str, bars: Iterable[Bar], axis: Axis) -> Figure:
    mine = [bar for bar in bars if bar.state == state]
    colour, pattern = _STATES[state]
    return {
        "type": "bar",
        "orientation": "h",
        "name": state,
        "y": [escape(bar.machine) for bar in mine],
        "base": [axis.at(bar.start_s) for bar in mine],
        "x": [axis.at(bar.end_s) - axis.at(bar.start_s) for bar in mine],
        "hovertext": [
            f"{escape(bar.machine)}: {state} for {duration(bar.end_s - bar.start_s)}<br>"
            f"{escape(bar.market or 'unknown market')}"
            for bar in mine
        ],
        "hoverinfo": "text",
        "textposition": "none",
        "marker": {
            "color": colour,
            "line": {"width": 0},
            "pattern": {"shape": pattern, **_OVER},
        },
    }


def _lost(kind: str, losses: Iterable[Loss], axis: Axis) -> Figure:
    words, colour, sign, _ = _KINDS[kind]
    mine = [loss for loss in losses if loss.kind == kind]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": words,
        "x": [axis.at(loss.at_s) for loss in mine],
        "y": [escape(loss.machine) for loss in mine],
        "hovertext": [f"{escape(loss.machine)} {words}" for loss in mine],
        "hoverinfo": "text+x",
        "marker": {
            "symbol": sign,
            "size": 10,
            "color": colour,
            "line": {"color": "@page", "width": 1},
        },
    }


def world(rows: Rows, axis: Axis) -> Figure:
    """How many workers trained together."""
    x = [axis.at(at_s) for at_s, _ in rows.world]
    y = [workers for _, workers in rows.world]
    if x:
        x, y = [*x, axis.at(axis.end_s)], [*y, y[-1]]
    line = {
        "type": "scatter",
        "mode": "lines",
        "name": "workers",
        "x": x,
        "y": y,
        "line": {"shape": "hv", "color": "@line1", "width": 2},
        "fill": "tozeroy",
        "fillcolor": "@line1-soft",
    }
    data = [line, *marks(rows.losses, axis)]
    return figure("world", data, axis, height=220, yaxis={"title": {"text": "workers"}, **_ZERO})


def throughput(rows: Rows, axis: Axis) -> Figure:
    """Samples per second."""
    data = [_line(rows.throughput, axis, 0), *marks(rows.losses, axis)]
    title = {"text": rows.throughput.name}
    return figure("throughput", data, axis, height=240, yaxis={"title": title, **_ZERO})


def curve(one: Curve, rows: Rows, axis: Axis, index: int) -> Figure:
    """The loss, or a metric, with the losses of machines."""
    data = [_line(one, axis, index), *marks(rows.losses, axis)]
    return figure(
        f"curve-{index}", data, axis, height=240, yaxis={"title": {"text": escape(one.name)}}
    )


def trials(curves: Sequence[Curve], metric: str, axis: Axis) -> Figure:
    """A sweep's metric, a line for each trial."""
    data = [_line(one, axis, index) for index, one in enumerate(curves)]
    return figure("trials", data, axis, height=360, yaxis={"title": {"text": escape(metric)}})


def money(
    rows: Sequence[MoneyRow], axis: Axis, *, same_steps_usd: float | None, losses: Sequence[Loss]
) -> Figure:
    """The price of the node time so far, beside what the same time costs on demand."""
    x = [axis.at(row.at_s) for row in rows]
    data = [
        _money_line("node time", x, [row.cost_usd for row in rows], "@spot", "solid"),
        _money_line(
            "the same nodes, on demand", x, [r.on_demand_usd for r in rows], "@on-demand", "dash"
        ),
    ]
    if same_steps_usd is not None and x:
        flat = [round(same_steps_usd, 6)] * 2
        name = "the same steps on demand, undisturbed"
        data.append(_money_line(name, [x[0], x[-1]], flat, "@line4", "dot"))
    yaxis = {"title": {"text": "USD"}, "tickprefix": "$", **_ZERO}
    return figure("money", [*data, *marks(losses, axis)], axis, height=300, yaxis=yaxis)


def _money_line(
    name: str, x: Sequence[float], y: Sequence[float], colour: str, dash: str
) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": list(x),
        "y": [round(value, 6) for value in y],
        "line": {"color": colour, "width": 2, "dash": dash},
    }


def goodput_bars(spent: Goodput, by_cause: Mapping[str, Money]) -> Figure:
    """Where the job's time went, the longest first."""
    parts = {"useful": spent.useful_s, **spent.lost_s}
    shown = sorted((s, name) for name, s in parts.items() if s > 0)
    words = []
    for seconds, name in shown:
        price = by_cause.get(name, Money()).cost_usd
        paid = "" if price is None else f", {usd(price)}"
        words.append(f"{duration(seconds)}, {100 * seconds / spent.wall_s:.1f} %{paid}")
    bars = {
        "type": "bar",
        "orientation": "h",
        "y": [name for _, name in shown],
        "x": [round(seconds, 3) for seconds, _ in shown],
        "text": words,
        "textposition": "auto",
        "hoverinfo": "text+y",
        "cliponaxis": False,
        "marker": {
            "color": ["@useful" if name == "useful" else "@lost-time" for _, name in shown],
            "pattern": {
                "shape": ["" if name == "useful" else "/" for _, name in shown],
                **_OVER,
            },
        },
    }
    return figure(
        "goodput",
        [bars],
        height=110 + 28 * len(shown),
        showlegend=False,
        xaxis={"title": {"text": "seconds"}, "rangemode": "tozero"},
        yaxis={"automargin": True, "fixedrange": True},
    )


def hazard(bands: Sequence[AgeBand]) -> Figure:
    """Losses per hour by the age of a node, as they were seen."""
    top = [band.hazard_per_hour for band in bands]
    points = {
        "type": "scatter",
        "mode": "markers",
        "x": [age_words(band) for band in bands],
        "y": [round(value, 6) for value in top],
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [round(b.high_per_hour - b.hazard_per_hour, 6) for b in bands],
            "arrayminus": [round(b.hazard_per_hour - b.low_per_hour, 6) for b in bands],
            "color": "@text",
        },
        "hovertext": [f"{b.losses} losses in {b.node_hours:.2f} node-hours" for b in bands],
        "marker": {"color": "@lost", "size": 10, "symbol": "diamond"},
    }
    return figure(
        "hazard",
        [points],
        height=280,
        showlegend=False,
        xaxis={"title": {"text": "age of the node"}, "type": "category"},
        yaxis={"title": {"text": "losses per node-hour"}, **_ZERO},
    )


def age_words(band: AgeBand) -> str:
    """Two ages, in the unit that tells them best."""
    low, high = band.from_s / HOUR_S, band.to_s / HOUR_S
    if high <= 1:
        return f"{60 * low:g}-{60 * high:g} min"
    return f"{low:g}-{high:g} h" if high < float("inf") else f"over {low:g} h"


def marks(losses: Sequence[Loss], axis: Axis) -> list[Figure]:
    """Upright lines where machines were lost: one trace for each kind, however many there are."""
    found = []
    for kind, (words, colour, _, dash) in _KINDS.items():
        mine = [loss for loss in losses if loss.kind == kind]
        if not mine:
            continue
        x: list[float | None] = []
        for loss in mine:
            x += [axis.at(loss.at_s)] * 2 + [None]
        found.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": words,
                "x": x,
                "y": [0, 1, None] * len(mine),
                "yaxis": "y2",
                "text": [f"{escape(one.machine)} {words}" for one in mine for _ in range(3)],
                "hoverinfo": "text",
                "line": {"color": colour, "width": 1.5, "dash": dash},
            }
        )
    return found


def _line(one: Curve, axis: Axis, index: int) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines" if len(one.values) > 60 else "lines+markers",
        "name": escape(one.name),
        "x": [axis.at(at_s) for at_s in one.at_s],
        "y": [float(f"{value:.6g}") for value in one.values],
        "text": [f"step {step}" for step in one.steps],
        "hovertemplate": "%{y:.5g}, %{text}<extra>%{fullData.name}</extra>",
        "line": {
            "color": _LINES[index % len(_LINES)],
            "width": 1.8,
            "dash": _DASHES[index // len(_LINES) % len(_DASHES)],
        },
        "marker": {"size": 4},
    }


_ZERO = {"rangemode": "tozero"}
