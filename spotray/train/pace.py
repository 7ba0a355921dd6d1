"""How often a run's state is saved, from what saving costs: plain values.

Saving pays for itself in time: what a save cost, the time until the next one must be
worth (`SpotConfig.save_cost_frac`). A save costs the time that training stands still
for it and, where training itself runs on the CPU, the CPU time taken beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

from spotray.checkpoint.interval import checkpoint_interval_s
from spotray.train.checkpointer import Committed
from spotray.train.config import SpotConfig

# Of what saves may cost, what they are planned to: they also slow the steps beside them, by
# caches and memory, which cannot be seen from inside. benchmarks/checkpoint found 1.15 % and 1.22 %
# (standard errors 0.27 and 0.17) of training at 200 MB on two cores where 1 % and 0.8 % were
# planned, from saves that come oftener than they are planned; 0.86 % (0.14) from planned ones.
_AIM = 0.65
# Before the first save is measured. A new slot's pages cost more than the copy into them.
_COPY_BYTES_PER_S = 2e9
_WRITE_BYTES_PER_S = 2e8  # of CPU time: serializing and hashing


@dataclass(frozen=True, kw_only=True)
class Pace:
    """What is known of one worker's saves, and the intervals that follow from it."""

    spot: SpotConfig
    workers: int
    on_cpu: bool  # training itself runs there
    size_bytes: int  # of the state, as far as known
    has_storage: bool
    storage_alone: bool  # no node holds snapshots now
    losses: tuple[int, float]  # nodes lost so far, and seconds that workers have been up in all
    snapshot_cost_s: float  # what the last one cost training; 0: nobody knows yet
    checkpoint: Committed | None  # the last one

    def snapshot_interval_s(self) -> float:
        """Time between two snapshots, where there are any."""
        frac = _AIM * self.spot.save_cost_frac
        if self.has_storage:
            used = self._checkpoint_training_cost_s() / self.checkpoint_interval_s()
            frac -= min(used, frac / 2)
        cost_s = self.snapshot_cost_s or self.size_bytes / _COPY_BYTES_PER_S
        return max(self.spot.snapshot_interval_s, cost_s / frac)

    def checkpoint_interval_s(self) -> float:
        """Training time between two checkpoint starts.

        Where nodes hold snapshots, a checkpoint serves when all of them are lost at
        once, which is no more likely than the loss of one; without, when any is lost.
        """
        spot, alone = self.spot, self.storage_alone
        if spot.checkpoint_interval_s is not None:
            return spot.checkpoint_interval_s
        lost, up_s = self.losses
        # The first guess counts as one preemption seen after that time.
        node_mtbp_s = (spot.node_mtbp_s + up_s) / (1 + lost)
        cost_s = self._checkpoint_training_cost_s()
        best_s = checkpoint_interval_s(
            write_s=max(cost_s, 1e-6),
            mtbp_s=node_mtbp_s / self.workers if alone else node_mtbp_s,
        )
        frac = _AIM * spot.save_cost_frac
        affordable_s = cost_s / (frac if alone else frac / 2)
        written_s = self.checkpoint.seconds if self.checkpoint else 0.0
        return max(best_s, affordable_s, spot.checkpoint_min_interval_s, 2 * written_s)

    def _checkpoint_training_cost_s(self) -> float:
        """What the last checkpoint cost training on this worker; a guess before the first."""
        done = self.checkpoint
        if done is not None:
            return done.blocked_s + (done.cpu_s if self.on_cpu else 0.0)
        mine = self.size_bytes / self.workers
        return mine / _COPY_BYTES_PER_S + (mine / _WRITE_BYTES_PER_S if self.on_cpu else 0.0)
