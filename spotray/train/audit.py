"""Whether each sample was used exactly once an epoch: counted, not concluded."""

from __future__ import annotations

import logging
import time
from typing import Any

import torch

from spotray.events import EpochAudited
from spotray.train.loader import Shard
from spotray.train.order import BatchPlan
from spotray.train.session import Journal

log = logging.getLogger(__name__)

_KEPT_VERDICTS = 16  # epochs whose audit is part of the state


class Tally:
    """Counts how often each sample was used in this epoch, in the steps that count.

    It is part of the state, so that it goes back with the weights.

    Args:
        samples: In the dataset.
        journal: Told of the verdicts.
    """

    def __init__(self, samples: int, journal: Journal) -> None:
        self._journal = journal
        self.counts = torch.zeros(samples, dtype=torch.int32)
        self.verdicts: list[list[int | bool]] = []  # epoch, exactly once, most, fewest uses

    def uses(self, shard: Shard) -> list[float]:
        """One number per sample: uses in this shard."""
        used = torch.zeros(len(self.counts))
        if shard.real:
            used.index_add_(0, torch.from_numpy(shard.ids), torch.ones(len(shard.ids)))
        numbers: list[float] = used.tolist()
        return numbers

    def add(self, uses: list[float]) -> None:
        """Add a whole step's uses, summed over all workers."""
        self.counts += torch.tensor(uses).round().to(torch.int32)

    def judge(self, epoch: int, plan: BatchPlan) -> None:
        """Judge the counts of an epoch that ends, tell the verdict, and begin anew."""
        due = plan.steps_per_epoch * plan.global_batch_size if plan.drop_last else plan.length
        most, fewest = int(self.counts.max()), int(self.counts.min())
        once = int((self.counts == 1).sum()) == due and int(self.counts.sum()) == due
        self.verdicts.append([epoch, once, most, fewest])
        del self.verdicts[:-_KEPT_VERDICTS]
        if not once:
            log.error("epoch %d: samples were used %d to %d times, not once", epoch, fewest, most)
        self.counts.zero_()
        self.tell(last=1)

    def tell(self, *, last: int = _KEPT_VERDICTS) -> None:
        """Tell the last verdicts, by default all that are kept."""
        for epoch, once, most, fewest in self.verdicts[-last:]:
            self._journal.append(
                EpochAudited(
                    at_s=time.time(),
                    epoch=int(epoch),
                    samples=len(self.counts),
                    exactly_once=bool(once),
                    most=int(most),
                    fewest=int(fewest),
                )
            )

    def state_dict(self) -> dict[str, Any]:
        return {"counts": self.counts, "verdicts": self.verdicts}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.counts.copy_(state_dict["counts"])
        self.verdicts = list(state_dict["verdicts"])
