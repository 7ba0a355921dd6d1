"""What rides along with a step's gradient: all workers learn it without a message of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spotray.errors import ConfigError
from spotray.train.audit import Tally
from spotray.train.keeper import Wish
from spotray.train.loader import Shard

_NAMED = 3 + len(Wish.FIELDS)  # loss, samples, step, wishes
_STEP_CYCLE = 1024  # steps are compared modulo this: the sum over shards stays exact


@dataclass(frozen=True)
class Agreed:
    """What all workers know of a step once its gradient is complete."""

    loss: float  # mean over the global batch
    samples: int
    wish: Wish


class Riders:
    """Packs numbers of each shard, and reads their sum over the shards of a step.

    Args:
        tally: Counts samples; None without an audit.
    """

    def __init__(self, tally: Tally | None) -> None:
        self._tally = tally
        self.count = _NAMED + (len(tally.counts) if tally is not None else 0)

    def of(
        self, shard: Shard, *, loss: float, step: int, wishes: Sequence[float] | None
    ) -> list[float]:
        """The numbers of one shard.

        Args:
            shard: It counts for nothing if it is not real.
            loss: Its part of the mean over the global batch.
            step: Steps done before this one.
            wishes: Of this worker; None: with another of its shards.
        """
        riders = [loss]
        riders += [float(len(shard.ids)), float(step % _STEP_CYCLE)] if shard.real else [0.0, 0.0]
        riders += wishes if wishes is not None else [0.0] * len(Wish.FIELDS)
        if self._tally is not None:
            riders += self._tally.uses(shard)
        return riders

    def agreed(self, total: Sequence[float], *, step: int, shards: int) -> Agreed:
        """What the sum over all ``shards`` of a step says; samples are counted.

        Raises:
            ConfigError: some worker is at another step.
        """
        if round(total[2]) != step % _STEP_CYCLE * shards:
            raise ConfigError(
                f"the workers are not at the same step (one is at {step + 1}): leave the loop "
                "over the loader by run.step, never by counting batches or seconds"
            )
        if self._tally is not None:
            self._tally.add(list(total[_NAMED:]))
        return Agreed(total[0], round(total[1]), Wish.from_riders(total[3:_NAMED]))
