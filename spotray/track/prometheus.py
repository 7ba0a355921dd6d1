"""A run's numbers as metrics of Ray, which Prometheus reads from every node of a cluster.

All are gauges, also what only grows: they are told anew from the journal after a restart, where
a counter that begins at 0 and jumps would be counted twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from spotray.ledger.summary import RunSummary

# Name, what it is, and its tag beside ``run``, the job's name: ``job`` is a word of Prometheus's
# own. Ray puts ``ray_`` before each name.
METRICS: Mapping[str, tuple[str, str]] = {
    "spotray_running": ("1 while the job runs, else 0", ""),
    "spotray_step": ("Optimizer steps of the present state", ""),
    "spotray_loss": ("Mean loss of the last step", ""),
    "spotray_world_size": ("Workers of the present group", ""),
    "spotray_min_workers": ("Fewest workers that the job goes on with", ""),
    "spotray_max_workers": ("Most workers that the job uses", ""),
    "spotray_nodes": ("Nodes that are up, by price kind", "market"),
    "spotray_preemptions": ("Nodes with a worker that the cloud took, by notice", "notice"),
    "spotray_recoveries": ("Losses that the job came back from", ""),
    "spotray_recovery_seconds_last": ("Seconds from the last loss to the next new step", ""),
    "spotray_recovery_seconds_median": ("Median of these over all losses", ""),
    "spotray_recovery_seconds_max": ("The longest of these", ""),
    "spotray_checkpoint_step": ("Step of the newest committed checkpoint", ""),
    "spotray_goodput_ratio": ("Part of the job's time in steps that survive, 0 to 1", ""),
    "spotray_lost_seconds": ("Time that made no progress, by cause", "cause"),
    "spotray_cost_usd": ("What the nodes cost so far, where prices are known", ""),
    "spotray_on_demand_cost_usd": ("What the same time would have cost on demand", ""),
}
_GONE = ("preempted", "maintained", "failed", "shut down")


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One value of one metric."""

    name: str
    value: float
    tag: str = ""  # of the metric's own tag


def measures(summary: RunSummary) -> Iterator[Measure]:
    """A run at a glance as values of `METRICS`; what nobody knows is left out."""
    losses, money, goodput = summary.recovery, summary.cost.total, summary.goodput
    over = [one for one in losses.recoveries if one.kind != "resize" and one.seconds is not None]
    up = [one for one in summary.nodes if one.state not in _GONE]
    plain: dict[str, float | None] = {
        "spotray_running": float(summary.state == "running"),
        "spotray_step": summary.step,
        "spotray_loss": summary.loss,
        "spotray_world_size": summary.world_size,
        "spotray_min_workers": summary.min_workers,
        "spotray_max_workers": summary.max_workers,
        "spotray_recoveries": len(over),
        "spotray_recovery_seconds_last": over[-1].seconds if over else None,
        "spotray_recovery_seconds_median": losses.recovery_s_median,
        "spotray_recovery_seconds_max": losses.recovery_s_max,
        "spotray_checkpoint_step": summary.checkpoint_step,
        "spotray_goodput_ratio": goodput.goodput_frac,
        "spotray_cost_usd": money.cost_usd,
        "spotray_on_demand_cost_usd": money.on_demand_cost_usd,
    }
    for name, value in plain.items():
        if value is not None:
            yield Measure(name=name, value=float(value))
    yield Measure(name="spotray_nodes", tag="spot", value=sum(one.spot for one in up))
    yield Measure(name="spotray_nodes", tag="on-demand", value=sum(not one.spot for one in up))
    noticed, silent = losses.preemptions_noticed, losses.preemptions_silent
    yield Measure(name="spotray_preemptions", tag="yes", value=noticed)
    yield Measure(name="spotray_preemptions", tag="no", value=silent)
    for cause, seconds in goodput.lost_s.items():
        yield Measure(name="spotray_lost_seconds", tag=cause, value=seconds)


class RayMetrics:
    """Sets Ray's gauges, of this process, to a run's numbers."""

    def __init__(self, run: str) -> None:
        from ray.util.metrics import Gauge

        self._run = run
        self._gauges: dict[str, Any] = {
            name: Gauge(name, description=what, tag_keys=("run", tag) if tag else ("run",))
            for name, (what, tag) in METRICS.items()
        }

    def __call__(self, summary: RunSummary) -> None:
        """Show the run as it is now."""
        for one in measures(summary):
            tag = METRICS[one.name][1]
            tags = {"run": self._run} | ({tag: one.tag} if tag else {})
            self._gauges[one.name].set(one.value, tags)
