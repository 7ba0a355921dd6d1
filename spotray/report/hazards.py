"""A picture of the hazard against age: as it was seen, and as it is believed to be."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spotray.errors import ConfigError
from spotray.market.hazards import HOUR_S, AgeBand, Hazard
from spotray.market.survival import PRIOR

_YOUNGEST_H, _OLDEST_H = 0.05, 72.0
_POINTS = 200


def plot_hazard(path: str | os.PathLike[str], hazard: Hazard, bands: Sequence[AgeBand]) -> None:
    """Write a PNG or SVG: losses per hour by age, with 95 % confidence of both.

    Args:
        path: its ending says which kind of file.
        hazard: the fit.
        bands: what was seen of the same nodes, from `age_bands`.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure  # without pyplot: no display is needed
    except ImportError as exc:
        raise ConfigError(
            "a plot needs matplotlib: pip install 'spotray[plot]', or leave --plot out"
        ) from exc
    oldest_h = max([_OLDEST_H, *(band.from_s / HOUR_S * 2 for band in bands)])
    oldest_h = min(oldest_h, hazard.fit.limit_s / HOUR_S)
    ages_h = [
        _YOUNGEST_H * (oldest_h / _YOUNGEST_H) ** (index / _POINTS) for index in range(_POINTS)
    ]
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    ranges = [hazard.fit.hazard_range(age_h * HOUR_S) for age_h in ages_h]
    if all(math.isfinite(high) for _, high in ranges):
        lows, highs = [low for low, _ in ranges], [high for _, high in ranges]
        axes.fill_between(ages_h, lows, highs, alpha=0.25, color="tab:blue")
    axes.plot(
        ages_h,
        [hazard.fit.hazard_per_hour(age_h * HOUR_S) for age_h in ages_h],
        color="tab:blue",
        label=f"Weibull, shape {hazard.fit.shape:.2f}, with 95 % confidence",
    )
    axes.plot(
        ages_h,
        [PRIOR.hazard_per_hour(age_h * HOUR_S) for age_h in ages_h],
        color="tab:gray",
        linestyle="dashed",
        label="believed before anything was seen",
    )
    _draw_bands(axes, bands, oldest_h)
    if math.isfinite(hazard.fit.limit_s):
        axes.axvline(
            hazard.fit.limit_s / HOUR_S,
            color="tab:red",
            label=f"stopped by the cloud after {hazard.fit.limit_s / HOUR_S:g} h",
        )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="age of a node, hours",
        ylabel="losses per hour",
        title=f"{hazard.name}: {hazard.losses} losses of {hazard.lives} nodes in "
        f"{hazard.node_hours:,.0f} node-hours",
    )
    axes.legend()
    kind = Path(path).suffix.lower().lstrip(".")
    if kind not in ("png", "svg", "pdf"):
        raise ConfigError(f"{os.fspath(path)}: name a file that ends in .png, .svg or .pdf")
    try:
        figure.savefig(path, format=kind)
    except OSError as exc:
        raise ConfigError(f"cannot write {os.fspath(path)}: {exc.strerror or exc}") from exc


def _draw_bands(axes: Any, bands: Sequence[AgeBand], oldest_h: float) -> None:
    """Crosses at what was seen; an arrow's length down where no loss was."""
    for index, band in enumerate(bands):
        low_h = max(band.from_s / HOUR_S, _YOUNGEST_H)
        high_h = min(band.to_s / HOUR_S, max(oldest_h, low_h * 2))
        middle_h = math.sqrt(low_h * high_h)
        seen = band.hazard_per_hour or band.high_per_hour
        axes.errorbar(
            middle_h,
            seen,
            xerr=[[middle_h - low_h], [high_h - middle_h]],
            yerr=[
                [seen - band.low_per_hour if band.losses else 0.0],
                [band.high_per_hour - seen],
            ],
            uplims=not band.losses,
            fmt="o" if band.losses else "none",
            color="black",
            linewidth=1,
            label="seen, with 95 % confidence" if index == 0 else None,
        )
