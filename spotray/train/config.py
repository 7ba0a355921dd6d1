"""What a user may set about spot: every default works."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spotray.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class SpotConfig:
    """How a job guards itself against the loss of nodes.

    Raises:
        ConfigError: a value is out of its range.
    """

    snapshot_interval_s: float = 3.0  # at least this long between two snapshots in node memory
    snapshot_cost_frac: float = 0.01  # snapshots may take this part of the training time
    checkpoint_interval_s: float | None = None  # None: Young/Daly, from measured times
    checkpoint_min_interval_s: float = 30.0  # Young/Daly is not followed below this
    node_mtbp_s: float = 4 * 3600.0  # one node's mean time between preemptions, as a first guess
    keep_checkpoints: int = 2  # the newest ones; older ones are deleted
    notice_margin_s: float = 4.0  # stop stepping this long before an announced loss
    max_restarts_without_progress: int = 5  # then a loss is taken for a bug of the job
    audit_samples: bool = False  # count every sample's use; costs one number a sample and step
    cluster_journal: str | None = None  # URL of the nodes' facts; None: $SPOTRAY_JOURNAL or the run
    labels: Mapping[str, str] = field(default_factory=dict)  # the user's own, for cost by label

    def __post_init__(self) -> None:
        for name in ("snapshot_interval_s", "checkpoint_min_interval_s", "node_mtbp_s"):
            _positive(name, getattr(self, name))
        if self.checkpoint_interval_s is not None:
            _positive("checkpoint_interval_s", self.checkpoint_interval_s)
        if not 0 < self.snapshot_cost_frac < 1:
            raise ConfigError(
                f"snapshot_cost_frac must lie between 0 and 1, got {self.snapshot_cost_frac}"
            )
        if self.keep_checkpoints < 1:
            raise ConfigError(f"keep_checkpoints must be at least 1, got {self.keep_checkpoints}")
        if not self.notice_margin_s >= 0:  # so that NaN is refused too
            raise ConfigError(f"notice_margin_s must not be negative, got {self.notice_margin_s}")
        if self.max_restarts_without_progress < 1:
            raise ConfigError(
                "max_restarts_without_progress must be at least 1, "
                f"got {self.max_restarts_without_progress}"
            )


def _positive(name: str, value: float) -> None:
    if not value > 0:
        raise ConfigError(f"{name} must be a positive number of seconds, got {value}")
