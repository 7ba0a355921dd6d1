"""What a user may set about spot: every default works."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeGuard

from spotray.checkpoint.manifest import Retention
from spotray.errors import ConfigError
from spotray.track.tracker import check_names


@dataclass(frozen=True, kw_only=True)
class SpotConfig:
    """How a job guards itself against the loss of nodes.

    Raises:
        ConfigError: a value is out of its range.
    """

    # Snapshots and checkpoints together take at most this part of the training time. Half is
    # for checkpoints; what they do not need goes to snapshots, which are cheaper: so these
    # come oftener. A checkpoint_interval_s of your own is obeyed, whatever it costs.
    save_cost_frac: float = 0.01
    snapshot_interval_s: float = 3.0  # at least this long between two snapshots in node memory
    checkpoint_interval_s: float | None = None  # None: Daly's, from measured cost and losses
    checkpoint_min_interval_s: float = 30.0  # Daly's is not followed below this
    checkpoint_bytes_per_s: float | None = None  # of each worker, beside training; None: no limit
    node_mtbp_s: float = 4 * 3600.0  # one node's mean time between preemptions, as a first guess
    # Which checkpoints stay; others are deleted. Those that end a training always stay.
    keep_checkpoints: int = 2  # the newest ones
    keep_best: tuple[str, Literal["min", "max"]] | None = None  # and the best by run.report's
    keep_every_steps: int | None = None  # and the first at or after each multiple of it
    notice_margin_s: float = 4.0  # stop stepping this long before an announced loss
    # Live recovery takes a worker for lost that was silent for so long; one that was only
    # slow then begins anew beside the others.
    heartbeat_timeout_s: float = 3.0
    max_restarts_without_progress: int = 5  # then a loss is taken for a bug of the job
    audit_samples: bool = False  # count every sample's use; costs one number a sample and step
    # A sweep starts no more trials when one more might cost more than this, USD; None: no limit.
    # A training is stopped by its cluster's controller when the cluster has cost so much since it
    # began. The default of both is what `spotray launch --max-cost --deadline` said.
    max_cost_usd: float | None = field(default_factory=lambda: _wish("SPOTRAY_MAX_COST_USD"))
    deadline_s: float | None = field(default_factory=lambda: _wish("SPOTRAY_DEADLINE_S"))  # Unix
    # Shortly before the deadline the controller replaces no worker, and on-demand comes first.
    cluster_journal: str | None = None  # URL of the nodes' facts; None: $SPOTRAY_JOURNAL or the run
    labels: Mapping[str, str] = field(default_factory=dict)  # the user's own, for cost by label
    # Who is told of the run while it goes on: "tensorboard", "mlflow", "wandb", or several; ():
    # nobody. A sweep's trials are told by Ray Tune's own callbacks instead.
    tracking: str | tuple[str, ...] = ("tensorboard",)

    def __post_init__(self) -> None:
        check_names(self.tracking)
        seconds = {
            "snapshot_interval_s": "leave it out for 3.0, or give 86400 for about none",
            "checkpoint_interval_s": "leave it out for one from measured cost and losses, or give "
            "86400 for about none",
            "checkpoint_min_interval_s": "leave it out for 30.0",
            "heartbeat_timeout_s": "leave it out for 3.0",
            "node_mtbp_s": "leave it out for 14400.0, or give 1e9 for nodes that nobody takes",
        }
        for name, instead in seconds.items():
            value = getattr(self, name)
            if name == "checkpoint_interval_s" and value is None:
                continue
            _positive(name, value, unit="seconds", instead=instead)
        if self.checkpoint_bytes_per_s is not None:
            _positive(
                "checkpoint_bytes_per_s",
                self.checkpoint_bytes_per_s,
                unit="bytes",
                instead="leave it out for no limit",
            )
        if self.max_cost_usd is not None:
            _positive(
                "max_cost_usd",
                self.max_cost_usd,
                unit="dollars",
                instead="leave it out for no limit",
            )
        if self.deadline_s is not None:
            _positive(
                "deadline_s",
                self.deadline_s,
                unit="seconds since 1970",
                instead="give time.time() + 6 * 3600, say, or leave it out for none",
            )
        if not (_is_number(self.save_cost_frac) and 0 < self.save_cost_frac < 1):
            raise ConfigError(
                f"save_cost_frac must lie between 0 and 1, got {self.save_cost_frac}: give 0.01 "
                "for one percent of the training time"
            )
        if self.keep_checkpoints < 1:
            raise ConfigError(f"keep_checkpoints must be at least 1, got {self.keep_checkpoints}")
        if self.keep_every_steps is not None and self.keep_every_steps < 1:
            raise ConfigError(
                f"keep_every_steps must be at least 1, got {self.keep_every_steps}: leave it out "
                "to keep none for its step"
            )
        best = self.keep_best
        if best is not None and (
            not isinstance(best, tuple) or len(best) != 2 or best[1] not in ("min", "max")
        ):
            raise ConfigError(
                f"keep_best must be a metric's name and 'min' or 'max', got {best!r}: give "
                '("val_loss", "min"), say'
            )
        if not self.notice_margin_s >= 0:  # so that NaN is refused too
            raise ConfigError(f"notice_margin_s must not be negative, got {self.notice_margin_s}")
        if self.max_restarts_without_progress < 1:
            raise ConfigError(
                "max_restarts_without_progress must be at least 1, "
                f"got {self.max_restarts_without_progress}"
            )

    @property
    def is_watched(self) -> bool:
        """Whether the budget is that by which `spotray launch` stops the job itself."""
        return self.max_cost_usd is not None and self.max_cost_usd == _wish("SPOTRAY_MAX_COST_USD")

    @property
    def trackers(self) -> tuple[str, ...]:
        """Names of those who are told of the run."""
        return check_names(self.tracking)

    @property
    def retention(self) -> Retention:
        """Which checkpoints stay."""
        return Retention(
            last=self.keep_checkpoints, best=self.keep_best, every_steps=self.keep_every_steps
        )


def _wish(variable: str) -> float | None:
    """What a launch wishes, from the environment that it gives its job."""
    text = os.environ.get(variable, "")
    try:
        return float(text) if text else None
    except ValueError as exc:
        raise ConfigError(f"{variable} is {text!r}: give a number, or unset it") from exc


def _positive(name: str, value: object, *, unit: str, instead: str) -> None:
    if not (_is_number(value) and 0 < value < math.inf):
        raise ConfigError(f"{name} must be a positive number of {unit}, got {value!r}: {instead}")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
