"""Goodput: which part of a job's time went into steps that survive, and where the rest went."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from spotray.events import Event
from spotray.ledger.activity import activities
from spotray.ledger.history import groups


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """A job's time, seconds, split without rest: the parts add up to ``wall_s``."""

    wall_s: float = 0.0
    useful_s: float = 0.0  # steps that survive
    startup_s: float = 0.0  # to the first step of all
    repeated_s: float = 0.0  # steps that were, or have to be, done again
    detection_s: float = 0.0  # from a loss without notice until somebody knew
    waiting_s: float = 0.0  # too few nodes were left, and none booted
    provisioning_s: float = 0.0  # a node that was needed booted
    restart_s: float = 0.0  # the rest from a group's last step to the next group's first
    snapshot_s: float = 0.0  # training stood still for a snapshot
    checkpoint_s: float = 0.0  # training stood still for a checkpoint
    stopped_s: float = 0.0  # nobody ran the job
    other_s: float = 0.0
    steps: int = 0  # that survive

    @property
    def goodput_frac(self) -> float | None:
        """Useful part of the wall time, 0..1; None before the job began."""
        return self.useful_s / self.wall_s if self.wall_s > 0 else None

    @property
    def lost_s(self) -> dict[str, float]:
        """Time that made no progress, by cause."""
        parts = asdict(self)
        for key in ("wall_s", "useful_s", "steps"):
            del parts[key]
        return {name.removesuffix("_s"): seconds for name, seconds in parts.items()}


def goodput(events: Iterable[Event], *, until_s: float | None = None) -> Goodput:
    """Split a job's time by what it was good for: the sums of its `activities`."""
    facts = sorted(events, key=lambda event: event.at_s)
    spans = activities(facts, until_s=until_s)
    if not spans:
        return Goodput()
    parts: dict[str, list[float]] = defaultdict(list)
    for span in spans:
        parts[f"{span.name}_s"].append(span.end_s - span.start_s)
    surviving = {run.step for group in groups(facts) for run in group.steps if run.survives}
    return Goodput(
        wall_s=spans[-1].end_s - spans[0].start_s,
        steps=len(surviving),
        **{name: math.fsum(seconds) for name, seconds in parts.items()},
    )
