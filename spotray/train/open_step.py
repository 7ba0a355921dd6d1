"""The step under way: which of its micro-batches is out, and what the loop's body may do."""

from __future__ import annotations

from dataclasses import dataclass

from spotray.errors import ConfigError
from spotray.train.loader import Shard


@dataclass(frozen=True)
class MicroBatch:
    """What the loop is given for one pass of its body."""

    shard: Shard
    weight: float  # the shard's part of the global batch


class OpenStep:
    """From a step's first micro-batch to the end of the loop's body of its last one."""

    def __init__(self) -> None:
        self._micro: MicroBatch | None = None  # handed out, backward still to come
        self.is_open = False  # its first micro-batch was handed out, its gradient is not summed
        self.is_complete = True  # optimizers may act: no step is open
        self._is_summed = False  # its gradient is complete, the loop's body is not through

    def begin(self) -> None:
        """Its first micro-batch is about to be handed out."""
        self.is_open, self.is_complete = True, False

    def hand_out(self, micro: MicroBatch) -> None:
        """The loop gets ``micro``."""
        self._micro = micro

    def take(self) -> MicroBatch:
        """The micro-batch of which the backward pass begins.

        Raises:
            ConfigError: none is out.
        """
        micro, self._micro = self._micro, None
        if micro is None:
            raise ConfigError(
                "run.backward() belongs into the loop over the loader, once for each batch: add "
                "up several losses before it"
            )
        return micro

    def check_backward_was_called(self) -> None:
        """After the loop's body.

        Raises:
            ConfigError: it made no backward pass.
        """
        if self._micro is not None:
            self._micro = None
            raise ConfigError(
                "a batch went by without run.backward(loss): call it once for each batch, "
                "instead of loss.backward()"
            )

    def summed(self) -> None:
        """Its gradient is complete: for the rest of the loop's body, optimizers act."""
        self.is_open, self.is_complete, self._is_summed = False, True, True

    def count(self) -> bool:
        """Whether a step counts from now on: the loop's body is through. True once a step."""
        was_summed, self._is_summed = self._is_summed, False
        return was_summed

    def drop(self) -> None:
        """Forget it, also if its gradient is complete."""
        self._micro = None
        self.is_open, self.is_complete, self._is_summed = False, True, False

    def keep_still(self) -> None:
        """For the rest of the loop's body, optimizers must not act."""
        self.is_complete = False

    def close(self) -> None:
        """No body of a loop is under way: what comes next may act."""
        self.is_complete = True
