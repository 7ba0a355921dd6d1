"""What rides along with a step's gradient: all workers learn it without a message of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

from spotray.errors import ConfigError
from spotray.train.audit import Tally
from spotray.train.loader import Shard

_STEP_CYCLE = 1024  # steps are compared modulo this: the sum over shards stays exact


@dataclass(frozen=True)
class Wish:
    """What rank 0 wants done after this step; 0 or 1 each."""

    snapshot: float = 0.0
    notice: float = 0.0  # a snapshot because of a notice
    checkpoint: float = 0.0
    stop: float = 0.0
    durable: float = 0.0  # with stop: the state must reach storage


_NAMED = 3 + len(fields(Wish))  # loss, samples, step, wishes


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

    def of(self, shard: Shard, *, loss: float, step: int, wish: Wish) -> list[float]:
        """The numbers of one shard.

        Args:
            shard: It counts for nothing if it is not real.
            loss: Its part of the mean over the global batch.
            step: Steps done before this one.
            wish: Of this worker, with one of its shards; with the others none.
        """
        riders = [loss]
        riders += [float(len(shard.ids)), float(step % _STEP_CYCLE)] if shard.real else [0.0, 0.0]
        riders += astuple(wish)
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
        return Agreed(total[0], round(total[1]), Wish(*total[3:_NAMED]))
